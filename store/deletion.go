// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/troupe-run/troupe/actor"
)

// Deletion is what a row takes from readers: a run, the first events of a run, or a session. Tables
// that are derived from entries follow it, so that they lose exactly what the log loses.
type Deletion struct {
	Tenant  string
	Session string       // the whole session, if it is not empty
	Run     actor.CallID // the run, or its events up to Events
	Events  uint64       // number of the last deleted event; 0: the whole run
}

// DeletionOf returns what a row deletes. The bool is false if it deletes nothing that readers see.
func DeletionOf(row *Row) (d Deletion, ok bool, err error) {
	parts := strings.Split(string(row.Key), "/")
	if len(parts) < 4 || parts[0] != "t" {
		return d, false, nil
	}
	d.Tenant = parts[1]
	switch parts[2] {
	case "s":
		prefix := sessionKey(d.Tenant, parts[3])
		if d.Session = parts[3]; !row.Delete || row.To == nil || !bytes.Equal(row.Key, prefix) {
			return d, false, nil
		}
		return d, true, nil
	case "r", "d":
		if row.To != nil || row.Delete != (parts[2] == "r") {
			return d, false, nil
		}
		if d.Run, err = actor.ParseCallID(parts[3]); err != nil {
			return d, false, fmt.Errorf("key %s: %w", row.Key, err)
		}
		if parts[2] == "d" {
			d.Events, err = decodeDropped(tenantRun{d.Tenant, d.Run}, row.Value)
		}
		return d, err == nil, err
	}
	return d, false, nil
}
