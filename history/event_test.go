// SPDX-License-Identifier: Apache-2.0

package history

import (
	"reflect"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
)

func TestEveryKindHasName(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range Kinds() {
		if name := k.String(); name == "" || strings.HasPrefix(name, "unknown") || seen[name] {
			t.Errorf("kind %d has the invalid or duplicate name %q", k, name)
		} else {
			seen[name] = true
		}
	}
	if Kind(0).String() != "unknown(0)" || Kind(200).String() != "unknown(200)" {
		t.Error("an unknown kind has a name")
	}
}

// TestLineContainsEveryField clears one field at a time. The line of the event MUST
// change. Otherwise the hash of a history would not cover the field.
func TestLineContainsEveryField(t *testing.T) {
	id := actor.NewCallID(1, 2, 3)
	full := Event{Kind: Ask, At: 1, From: actor.Address{Node: "n", Cell: 1, Incarnation: 1}, Actor: actor.NewID("a", ""), Epoch: 1, Call: id, Parent: id, Root: id,
		Peer: actor.NewID("b", ""), What: "call", Why: "x", Chain: []actor.ID{actor.NewID("c", "")}, Left: 1, ParentLeft: 1, Given: 1, Attempt: 1,
		Status: actor.Succeeded, Reason: actor.Busy, Scope: actor.ScopeCaller, Digest: 1, Lane: actor.High, Count: 1, Bytes: 1, Pending: 1, N: 1, Until: 1, Step: 1, Index: 1,
		Durable: true, Pos: 1, Synced: 1, Wrote: 1, Ring: []actor.Hop{{Call: id, Turn: id}}, ShardLo: 1, ShardHi: 2}
	v := reflect.ValueOf(full)
	for i := range v.NumField() {
		if v.Type().Field(i).Tag.Get("history") == "-" {
			continue
		}
		less := full
		f := reflect.ValueOf(&less).Elem().Field(i)
		if f.IsZero() {
			t.Errorf("%s is zero in this test: set it", v.Type().Field(i).Name)
		}
		f.SetZero()
		if less.String() == full.String() {
			t.Errorf("%s is missing in %s", v.Type().Field(i).Name, full)
		}
	}
	if got := (Event{Kind: Sync, At: 7, Synced: 3}).String(); got != "Sync at=7 synced=3" {
		t.Errorf("got %q", got)
	}
}
