// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"time"

	"github.com/troupe-run/troupe/actor"
)

// clock tells the time of a process: that of the wall when it began, and from
// there on what has passed. It never goes back, whatever happens to the wall's.
type clock struct{ start time.Time }

func newClock() clock { return clock{time.Now()} }

func (c clock) now() actor.Time {
	return actor.Time(c.start.UnixNano()).Add(time.Since(c.start))
}

// until is how long it is to an instant, 0 if that has passed.
func (c clock) until(t actor.Time) time.Duration { return max(t.Sub(c.now()), 0) }
