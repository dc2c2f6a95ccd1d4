// SPDX-License-Identifier: Apache-2.0

package store

import (
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// What a report reads of a row is what a list reads of it, and it refuses the same damage.
func TestSpendingIsThatOfTheRow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := spentNames{}
		for range 2 { // the second time the names are known
			whole := drawSummary(t)
			row := appendSummary(nil, &whole)
			want := runs.Summary{Run: whole.Run, Actor: whole.Actor, User: whole.User, Spent: whole.Spent}
			if got, err := decodeSpending(want.Run, row, names); err != nil || !reflect.DeepEqual(got, want) {
				t.Fatalf("encoded %+v\ndecoded %+v, error %v", want, got, err)
			}
			row[rapid.IntRange(1, len(row)-1).Draw(t, "byte")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
			if got, err := decodeSpending(want.Run, row, names); err == nil {
				t.Fatalf("row with another bit decoded as %+v", got)
			}
		}
	})
}

// Pages of what runs spent read 2,000 rows at most, and together have each run once.
func TestSpendingsReadBoundedRows(t *testing.T) {
	const rows = 4500
	l := putRuns(t, rows, func(s *runs.Summary) []byte {
		if s.Run.Time()%3 == 0 {
			s.Spent = s.Spent.Add("big", actor.Usage{Total: 1})
		}
		return appendSummary(nil, s)
	})
	for _, f := range []runs.Filter{{}, {Since: 1_000_000_000}, {Until: 3_000_000_000}, {Since: 1_000_000_000, Until: 1_000_000_000}} {
		var want, got []actor.CallID
		err := EachRun(l, "default", runs.Filter{Since: f.Since, Until: f.Until, Calls: true, System: true}, func(s *runs.Summary) {
			if len(s.Spent) > 0 {
				want = append(want, s.Run)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		pages := 0
		for before := (actor.CallID{}); ; pages++ {
			next, err := l.Spendings("default", f, before, func(s *runs.Summary) { got = append(got, s.Run) })
			if err != nil {
				t.Fatal(err)
			}
			if before = next; before.IsZero() {
				break
			}
		}
		if !slices.Equal(got, want) || f == (runs.Filter{}) && (pages != 2 || len(want) < rows/4) {
			t.Errorf("%+v: %d runs in %d further pages, want %d", f, len(got), pages, len(want))
		}
	}
}
