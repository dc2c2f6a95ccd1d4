// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
)

// TestClockOffsetAfterJumpAndDrift covers runs of hours: whatever the offset was
// before, after a jump it is the one set, and from then on it grows by no more than the
// drift.
func TestClockOffsetAfterJumpAndDrift(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := clock{since: Origin, drift: rapid.Int64Range(-driftMax, driftMax).Draw(t, "drift")}
		now, last := Origin, actor.Time(0)
		for range rapid.IntRange(1, 40).Draw(t, "events") {
			now = now.Add(actor.Duration(rapid.Int64Range(0, int64(10*time.Minute)).Draw(t, "passed")))
			before := c.offsetAt(now)
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				to := actor.Duration(rapid.Int64Range(0, int64(clockJumpMax)).Draw(t, "to"))
				if by := c.jumpTo(now, to); c.offsetAt(now) != to || before+by != to {
					t.Fatalf("was off by %v, jumped by %v to %v, and is off by %v", before, by, to, c.offsetAt(now))
				}
			case 1:
				c.setDrift(now, rapid.Int64Range(-driftMax, driftMax).Draw(t, "drift"))
				if c.offsetAt(now) != before {
					t.Fatalf("was off by %v, runs at another rate, and is off by %v", before, c.offsetAt(now))
				}
			case 2:
				if by := c.correct(now); by != 0 && (by != before || c.offsetAt(now) != 0) {
					t.Fatalf("was off by %v, was put right by %v, and is off by %v", before, by, c.offsetAt(now))
				}
				if c.offsetAt(now).Abs() > clockStepAbove {
					t.Fatalf("put right and off by %v", c.offsetAt(now))
				}
			case 3:
				by := c.setBack(now, time.Duration(rapid.Int64Range(int64(time.Second), int64(clockJumpMax)).Draw(t, "by")))
				if c.offsetAt(now) != before-by || by > 0 && c.offsetAt(now) < -clockJumpMax || by < 0 {
					t.Fatalf("was off by %v, was put back by %v, and is off by %v", before, by, c.offsetAt(now))
				}
				if by > 0 {
					last = 0 // the last reading is forgotten
				}
			}
			later := now.Add(time.Minute)
			if bound := c.offsetAt(now).Abs() + actor.Duration(driftMax*time.Minute/million); c.offsetAt(later).Abs() > bound {
				t.Fatalf("off by %v a minute after %v", c.offsetAt(later), c.offsetAt(now))
			}
			if at := c.simTimeAt(c.raw(later)); at.Sub(later).Abs() > time.Microsecond || c.raw(at) < c.raw(later) {
				t.Fatalf("tells %v at %v, and would tell it at %v", c.raw(later), later, at)
			}
			if c.now(now) < last {
				t.Fatalf("went back from %v to %v", last, c.last)
			}
			last = c.last
		}
	})
}
