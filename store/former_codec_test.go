// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/hex"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
)

// testdata/v6.txt holds entries as version 6 encoded them, one a line, in hexadecimal.
func TestFormerVersionIsReadable(t *testing.T) {
	text, err := os.ReadFile("testdata/v6.txt")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(string(text))
	want := formerEntries()
	if len(lines) != len(want) {
		t.Fatalf("got %d entries, want %d", len(lines), len(want))
	}
	for i, line := range lines {
		b, err := hex.DecodeString(line)
		if err != nil {
			t.Fatal(err)
		}
		got, err := DecodeEntry(b)
		if err != nil || b[0] != 6 {
			t.Errorf("entry %d of version %d: %v", i, b[0], err)
			continue
		}
		if s, ok := got.Record.(Snapshot); ok { // version 7 encodes the same journal in other bytes
			j, err := DecodeJournal(s.Journal)
			if err != nil || s.Journal[0] != 6 {
				t.Errorf("snapshot of version %d: %v", s.Journal[0], err)
			}
			got.Record = Snapshot{Journal: EncodeJournal(&j)}
		}
		if !reflect.DeepEqual(got, want[i]) {
			t.Errorf("entry %d: got %+v\nwant %+v", i, got, want[i])
		}
	}
}

// formerEntries returns the entries in testdata/v6.txt, one for each record.
func formerEntries() []Entry {
	id, run, child := actor.NewID("alice", "s-1"), actor.NewCallID(1, 2, 3), actor.NewCallID(4, 5, 6)
	call := actor.Call{ID: run, Root: run, To: id, Operation: "o", Kind: actor.Waiting, Lane: actor.Low, Left: 7, Attempt: 1, Principal: "p",
		Origin: actor.Human, Idempotency: actor.Idempotency{Principal: "p", Route: "r", Key: "k"}, Budget: 8, Workflow: "w", Parts: actor.Text("hello")}
	ask := Asked{Ask: actor.Ask{Kind: actor.AskCall, Name: "bob", Parts: actor.Text("hi"), Timeout: 9}, Call: child, To: actor.NewID("bob", "s-1"),
		Budget: 3, Stamp: 10, Clock: actor.NewClock(10, 9), Attempt: 1}
	added := ask
	added.Added, added.Callback = true, actor.NewCallID(7, 8, 9)
	ended := Ended{Call: run, At: 20, Until: 99, Idempotency: call.Idempotency,
		Reply: actor.Reply{Call: run, Run: run, Status: actor.Succeeded, Parts: actor.Text("bye"), Usage: actor.Usage{Input: 1, Output: 2, Total: 3}}}
	journal := Journal{N: 3, Runs: []*Run{{Call: call, At: 10, Clock: actor.NewClock(10, 7), Budget: 5, Steps: []Step{{[]Asked{ask}}}, Seq: 3, StartedAt: 10}},
		Ended: []Ended{ended}}
	entries := []Entry{
		{Record: Accepted{Call: call, At: 10}, Events: []RunEvent{{run, 1, []byte(`{"type":"user_input"}`)}, {run, 2, []byte(`{"type":"run_started"}`)}}},
		{Record: Asking{Run: run, At: 10, Asks: []Asked{ask}, StateUpdates: []actor.StateItem{{Name: "n", Value: []byte("v")}}}},
		{Record: Added{Run: run, At: 11, Ask: added}},
		{Record: Streamed{Run: run, Step: 1, At: 12, StreamedAfter: 3}},
		{Record: Held{Run: run, Step: 1, At: 13, N: 1, Until: 50}},
		{Record: Resumed{Run: run, Step: 1, At: 14, N: 2}},
		{Record: Retried{Run: run, Step: 1, At: 15, Attempt: 2}},
		{Record: Answered{Run: run, Step: 1, At: 16, Answer: actor.Answer{Parts: actor.Text("yes"), Warnings: []string{"slow"}}, Budget: 2}},
		{Record: Parked{Run: run, At: 17, Detail: "diverged"}},
		{Record: Rebased{At: 18}},
		{Record: Buried{Call: child, At: 19, Until: 99}},
		{Record: ended},
		{Record: Snapshot{Journal: EncodeJournal(&journal)}},
	}
	for i := range entries {
		e := &entries[i]
		e.Actor, e.Shard, e.Epoch, e.N, e.WasDue, e.Due = id, 5, 6, uint64(i+1), 17, 17
	}
	return entries
}
