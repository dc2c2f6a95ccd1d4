// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// A full node refuses clients with a delay that follows from its queue and its rate.
func TestDelayOfFullNodeFollowsItsRate(t *testing.T) {
	for _, c := range []struct {
		perSecond int // answers per second; ten clients come for each second
		min, max  actor.Duration
	}{{0, actor.RetryAfterMax * 3 / 4, actor.RetryAfterMax}, {2, 20 * time.Second, actor.RetryAfterMax}, {20, 0, actor.RetryAfterMin}} {
		at, table := actor.Time(time.Hour), newClients(1)
		w, _ := table.admit(&actor.Call{}, 0, at, false)
		var last actor.Duration
		for range 10 {
			for range 10 {
				_, refusal := table.admit(&actor.Call{}, 0, at, false)
				if refusal == nil || refusal.Scope != actor.ScopeNode {
					t.Fatalf("got %v", refusal)
				}
				last = refusal.RetryAfter
			}
			for range c.perSecond {
				table.release(w)
				w, _ = table.admit(&actor.Call{}, 0, at, false)
			}
			at = at.Add(time.Second)
		}
		if last < c.min || last > c.max {
			t.Errorf("%d answers a second: got %v, want %v to %v", c.perSecond, last, c.min, c.max)
		}
	}
}

// The delay while the disk lags is as long as the lag.
func TestDelayOfLaggingDisk(t *testing.T) {
	for lag, want := range map[actor.Duration]actor.Duration{0: actor.RetryAfterMin, 20 * time.Second: 20 * time.Second, time.Hour: actor.RetryAfterMax} {
		if d := lagDelay(lag); d < want*3/4 || d > want {
			t.Errorf("lag %v: got %v, want %v less at most a quarter", lag, d, want)
		}
	}
}
