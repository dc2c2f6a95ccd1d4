// SPDX-License-Identifier: Apache-2.0

package store

import (
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
