// SPDX-License-Identifier: Apache-2.0

package store

import (
	"reflect"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// listedRun returns the ID of the i-th run of a list that begins with the oldest.
func listedRun(i int) actor.CallID { return actor.NewCallID(actor.Time(i+1)*1_000_000, 1, uint64(i)) }

// putRuns puts the rows of n runs. The oldest run belongs to alice, the others to bob.
func putRuns(t *testing.T, n int, row func(*runs.Summary) []byte) *testLog {
	t.Helper()
	l := newTestLog(t)
	for i := range n {
		s := runs.Summary{Run: listedRun(i), Root: listedRun(i), Actor: actor.NewID("bob", "s-1"), Status: runs.Done}
		if i == 0 {
			s.Actor = actor.NewID("alice", "s-1")
		}
		if err := l.m.Apply([]Row{{Key: runKey("default", s.Run), Value: row(&s)}}); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// A page reads 2,000 rows at most. If it selects none of them, it continues after the
// last one.
func TestPageOfRunsReadsBoundedRows(t *testing.T) {
	const rows = 4500
	l := putRuns(t, rows, func(s *runs.Summary) []byte { return appendSummary(nil, s) })
	var before actor.CallID
	for _, next := range []actor.CallID{listedRun(rows - 2000), listedRun(rows - 4000)} {
		page, err := l.Runs("default", runs.Filter{Agent: "alice"}, before, 20)
		if err != nil || len(page.All) != 0 || page.Next != next {
			t.Fatalf("after %s: got %d runs, next %s, error %v, want none and next %s", before, len(page.All), page.Next, err, next)
		}
		before = next
	}
	page, err := l.Runs("default", runs.Filter{Agent: "alice"}, before, 20)
	if err != nil || len(page.All) != 1 || page.All[0].Run != listedRun(0) || !page.Next.IsZero() {
		t.Errorf("last page: got %+v, error %v, want run %s", page, err, listedRun(0))
	}
}

// A row of version 1 costs as much as 51 rows, because its events are read. A run
// without events has been accepted.
func TestPageOfRunsReadsFewRowsOfVersion1(t *testing.T) {
	const rows = 50
	l := putRuns(t, rows, func(s *runs.Summary) []byte { return appendOwner(nil, s.Actor, s.Root) })
	page, err := l.Runs("default", runs.Filter{Agent: "alice"}, actor.CallID{}, 20)
	if next := listedRun(rows - 40); err != nil || len(page.All) != 0 || page.Next != next {
		t.Fatalf("got %d runs, next %s, error %v, want none and next %s", len(page.All), page.Next, err, next)
	}
	page, err = l.Runs("default", runs.Filter{Agent: "alice"}, page.Next, 20)
	want := runs.Summary{Run: listedRun(0), Root: listedRun(0), Actor: actor.NewID("alice", "s-1"), Status: runs.Running, Created: 1_000_000}
	if err != nil || len(page.All) != 1 || !reflect.DeepEqual(page.All[0], want) {
		t.Errorf("got %+v, error %v, want %+v", page.All, err, want)
	}
}

// The summary of a run without a stored one includes all its events, however many.
func TestFoldedSummaryReadsAllEvents(t *testing.T) {
	for _, pieces := range []uint64{1, 997, 998, 2500} {
		l := newTestLog(t)
		s := newEntryBuilder(t, "alice")
		accepted, ended := s.accept("hello"), s.end("bye")
		accepted.Summary, ended.Summary = nil, nil
		run, seq := s.run(1), uint64(0)
		event := func(e runs.Event) RunEvent {
			seq++
			e.Run, e.Seq, e.At = run, seq, s.at
			return RunEvent{run, seq, runs.Encode(e)}
		}
		accepted.Events = []RunEvent{event(runs.Event{Type: runs.UserInput, Actor: s.id, Text: "hello"}),
			event(runs.Event{Type: runs.RunStarted, Actor: s.id, Kind: actor.Waiting.String(), Operation: actor.HandleMessageFull, Origin: actor.Human.String(), Root: run, Left: 1_000_000})}
		for range pieces {
			accepted.Events = append(accepted.Events, event(runs.Event{Type: runs.AgentStreamDelta, Step: 1, Text: "b"}))
		}
		ended.Events = []RunEvent{event(runs.Event{Type: runs.RunDone, Status: actor.Succeeded, Text: "bye"})}
		l.write(accepted, ended)
		page, err := l.Runs("default", runs.Filter{}, actor.CallID{}, 20)
		if err != nil || len(page.All) != 1 {
			t.Fatalf("%d events: got %+v, error %v", seq, page, err)
		}
		if got := page.All[0]; got.Status != runs.Done || got.Text != "bye" || got.Ended != s.at {
			t.Errorf("%d events: got %+v, want the outcome", seq, got)
		}
	}
}
