// SPDX-License-Identifier: Apache-2.0

package actor

import "time"

// Time is an instant in Unix nanoseconds, as the world tells it. It never goes
// back within one process; nothing below floor 3 reads a clock.
type Time int64

// Duration is a span of time in nanoseconds.
type Duration = time.Duration

// Forever is later than any instant a world will tell.
const Forever = Time(1<<63 - 1)

// Add returns t + d; what would overflow is Forever.
func (t Time) Add(d Duration) Time {
	if d > 0 && t > Forever-Time(d) {
		return Forever
	}
	return t + Time(d)
}

// Sub returns the span from u to t.
func (t Time) Sub(u Time) Duration { return Duration(t - u) }

// Clock is a span that runs out, and that stands still while it is held.
//
// Left is what remained at Since. While HeldUntil is set the clock stands still
// until that instant and runs again by itself afterwards, so that a lost Resumed
// costs at most the time a person had anyway.
type Clock struct {
	Left      Duration
	Since     Time
	HeldUntil Time // 0: running
}

// NewClock returns a running clock with left to go.
func NewClock(now Time, left Duration) Clock { return Clock{Left: max(left, 0), Since: now} }

// Due is the instant at which the clock has run out.
func (c Clock) Due() Time { return max(c.Since, c.HeldUntil).Add(c.Left) }

// Remaining is what is left at now.
func (c Clock) Remaining(now Time) Duration {
	return max(min(c.Left, c.Due().Sub(now)), 0)
}

// Hold makes the clock stand still until the given instant.
func (c *Clock) Hold(now, until Time) {
	c.Left, c.Since = c.Remaining(now), now
	c.HeldUntil = until
}

// Resume lets the clock run again.
func (c *Clock) Resume(now Time) {
	c.Left, c.Since, c.HeldUntil = c.Remaining(now), now, 0
}

// Rebase has a clock that began after now begin now.
func (c *Clock) Rebase(now Time) {
	ahead := c.Since - now
	if ahead <= 0 {
		return
	}
	c.Since = now
	if c.HeldUntil != 0 {
		c.HeldUntil -= ahead
	}
}

// Held tells whether the clock stands still at now.
func (c Clock) Held(now Time) bool { return now < c.HeldUntil }
