// SPDX-License-Identifier: Apache-2.0

package history

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"github.com/troupe-run/troupe/actor"
)

// TestJSONContainsEveryField clears one field at a time. Each time the JSON form MUST
// change.
func TestJSONContainsEveryField(t *testing.T) {
	id := actor.NewCallID(1, 2, 3)
	full := Event{Kind: Ask, At: 1, From: actor.Address{Node: "n", Cell: 1, Incarnation: 1}, Actor: actor.NewID("a", ""), Epoch: 1, Call: id, Parent: id, Root: id,
		Peer: actor.NewID("b", ""), What: "call", Why: "x", Chain: []actor.ID{actor.NewID("c", "")}, Left: 1, ParentLeft: 1, Given: 1, Attempt: 1,
		Status: actor.Succeeded, Reason: actor.Busy, Scope: actor.ScopeCaller, Digest: 1, Lane: actor.High, Count: 1, Bytes: 1, Pending: 1, N: 1, Until: 1, Step: 1, Index: 1,
		Durable: true, Pos: 1, Synced: 1, Wrote: 1, Ring: []actor.Hop{{Call: id, Turn: id}}, ShardLo: 1, ShardHi: 2}
	whole := full.AppendJSON(nil)
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
		line := less.AppendJSON(nil)
		if bytes.Equal(line, whole) {
			t.Errorf("%s is missing in %s", v.Type().Field(i).Name, whole)
		}
		if !json.Valid(line) || bytes.Count(line, []byte("\n")) != 1 || line[len(line)-1] != '\n' {
			t.Errorf("%q is not one line of JSON", line)
		}
	}
	if got, want := string((&Event{Kind: Sync, At: 7, Synced: 3}).AppendJSON(nil)), `{"kind":"Sync","at":7,"cell":0,"synced":3}`+"\n"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestHeaderCarriesVersion(t *testing.T) {
	line := TraceHeader{Source: "sim seed 7", Agents: []TraceAgent{{Name: "ana", ByActor: true}}}.AppendTo(nil)
	var back TraceHeader
	if err := json.Unmarshal(line, &back); err != nil {
		t.Fatal(err)
	}
	if back.Trace != TraceVersion || back.Source != "sim seed 7" || len(back.Agents) != 1 || !back.Agents[0].ByActor {
		t.Errorf("got %+v from %s", back, line)
	}
	if got := string(AppendAgents(nil, []TraceAgent{{Name: "bob"}})); got != `{"agents":[{"name":"bob"}]}`+"\n" {
		t.Errorf("got %q", got)
	}
	if got := string(AppendLost(nil, 3)); got != "{\"lost\":3}\n" {
		t.Errorf("got %q", got)
	}
}
