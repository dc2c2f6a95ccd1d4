// SPDX-License-Identifier: Apache-2.0

package store

import (
	"testing"

	"github.com/troupe-run/troupe/actor"
)

// Of all rows only those of a deleted session, a deleted run and events that were cut take something from
// readers.
func TestDeletionOf(t *testing.T) {
	run := actor.NewCallID(5, 1, 2)
	session := sessionKey("acme", "s-1")
	key := runKey("acme", run)
	for what, c := range map[string]struct {
		row  Row
		want Deletion
		ok   bool
	}{
		"session":             {Row{Key: session, To: prefixEnd(session), Delete: true}, Deletion{Tenant: "acme", Session: "s-1"}, true},
		"run":                 {Row{Key: key, Delete: true}, Deletion{Tenant: "acme", Run: run}, true},
		"events that are cut": {droppedRow(tenantRun{"acme", run}, 7), Deletion{Tenant: "acme", Run: run, Events: 7}, true},
		"changed run":         {Row{Key: key, Value: []byte("x")}, Deletion{}, false},
		"events of a run":     {Row{Key: eventsKey("acme", run), To: prefixEnd(eventsKey("acme", run)), Delete: true}, Deletion{}, false},
		"snapshot":            {Row{Key: snapshotKey(actor.ID{Tenant: "acme", Agent: "a", Key: "s-1"}), Delete: true}, Deletion{}, false},
		"batch":               {Row{Key: partKey("n1", 1, 0), Value: []byte("x")}, Deletion{}, false},
	} {
		got, ok, err := DeletionOf(&c.row)
		if err != nil || ok != c.ok || ok && got != c.want {
			t.Errorf("%s: got %+v, %v, error %v, want %+v, %v", what, got, ok, err, c.want, c.ok)
		}
	}
}
