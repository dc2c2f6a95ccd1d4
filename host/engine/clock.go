// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"time"

	"github.com/troupe-run/troupe/actor"
)

// clock is a monotonic clock. It adds the time elapsed since its start to the
// wall time of the start, so changes of the wall clock never turn it back.
type clock struct{ start time.Time }

func newClock() clock { return clock{time.Now()} }

func (c clock) now() actor.Time {
	return actor.Time(c.start.UnixNano()).Add(time.Since(c.start))
}

// until returns the time left until t; 0 if t has passed.
func (c clock) until(t actor.Time) time.Duration { return max(t.Sub(c.now()), 0) }
