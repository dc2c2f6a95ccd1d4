// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
)

// Timers fire in the order of their times, and of their setting at the same time, whatever
// was pushed, popped and removed before.
func TestTimersAreOrdered(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var timers timers
		var want []timer
		order := func(a, b timer) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.seq, b.seq)) }
		for seq := range rapid.IntRange(0, 400).Draw(t, "operations") {
			switch op := rapid.IntRange(0, 20).Draw(t, "operation"); {
			case op == 0:
				odd := func(x timer) bool { return x.at%2 == 1 }
				timers.removeStale(odd)
				want = slices.DeleteFunc(want, func(x timer) bool { return !odd(x) })
			case op < 8 && len(want) > 0:
				if got := timers.pop(); got != want[0] {
					t.Fatalf("got timer %+v, want %+v", got, want[0])
				}
				want = want[1:]
				timers.shrink()
			default:
				x := timer{at: actor.Time(rapid.IntRange(0, 30).Draw(t, "at")), seq: uint64(seq)}
				timers.push(x)
				want = append(want, x)
				slices.SortFunc(want, order)
			}
			if len(timers) != len(want) {
				t.Fatalf("got %d timers, want %d", len(timers), len(want))
			}
		}
	})
}
