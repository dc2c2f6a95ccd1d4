// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
)

// TestClockOffsetAfterJumpAndDrift checks the offset of a clock over hours. A jump sets
// the offset exactly. Between jumps the offset changes by no more than the maximum
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
					t.Fatalf("offset before %v, jump by %v to %v, offset now %v", before, by, to, c.offsetAt(now))
				}
			case 1:
				c.setDrift(now, rapid.Int64Range(-driftMax, driftMax).Draw(t, "drift"))
				if c.offsetAt(now) != before {
					t.Fatalf("setDrift changed the offset from %v to %v", before, c.offsetAt(now))
				}
			case 2:
				if by := c.correct(now); by != 0 && (by != before || c.offsetAt(now) != 0) {
					t.Fatalf("offset before %v, corrected by %v, offset now %v", before, by, c.offsetAt(now))
				}
				if c.offsetAt(now).Abs() > clockStepAbove {
					t.Fatalf("offset after correction is %v, want at most clockStepAbove", c.offsetAt(now))
				}
			case 3:
				by := c.setBack(now, time.Duration(rapid.Int64Range(int64(time.Second), int64(clockJumpMax)).Draw(t, "by")))
				if c.offsetAt(now) != before-by || by > 0 && c.offsetAt(now) < -clockJumpMax || by < 0 {
					t.Fatalf("offset before %v, set back by %v, offset now %v", before, by, c.offsetAt(now))
				}
				if by > 0 {
					last = 0 // the last reading is forgotten
				}
			}
			later := now.Add(time.Minute)
			if bound := c.offsetAt(now).Abs() + actor.Duration(driftMax*time.Minute/million); c.offsetAt(later).Abs() > bound {
				t.Fatalf("offset %v a minute after offset %v: exceeds the maximum drift", c.offsetAt(later), c.offsetAt(now))
			}
			if at := c.simTimeAt(c.raw(later)); at.Sub(later).Abs() > time.Microsecond || c.raw(at) < c.raw(later) {
				t.Fatalf("clock reads %v at %v, simTimeAt returned %v", c.raw(later), later, at)
			}
			if c.now(now) < last {
				t.Fatalf("reading went back from %v to %v", last, c.last)
			}
			last = c.last
		}
	})
}
