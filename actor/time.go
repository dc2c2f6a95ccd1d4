// SPDX-License-Identifier: Apache-2.0

package actor

import "time"

// Time is an instant in Unix nanoseconds, supplied by the host or the simulator.
// It never decreases within one process. Packages below layer 3 never read a
// clock.
type Time int64

// Duration is a time span in nanoseconds.
type Duration = time.Duration

// Forever is later than any instant a host supplies.
const Forever = Time(1<<63 - 1)

// Add returns t + d, or Forever if the sum overflows.
func (t Time) Add(d Duration) Time {
	if d > 0 && t > Forever-Time(d) {
		return Forever
	}
	return t + Time(d)
}

// Sub returns t - u.
func (t Time) Sub(u Time) Duration { return Duration(t - u) }

// Clock is a countdown that can be held.
//
// The field Left is the time that remained at the instant Since. A held clock does
// not run before HeldUntil. It then resumes without a further event: if the message
// Resumed is lost, the clock is delayed until HeldUntil at most.
type Clock struct {
	Left      Duration
	Since     Time
	HeldUntil Time // 0 if the clock is running
}

// NewClock returns a running clock with the given time left.
func NewClock(now Time, left Duration) Clock { return Clock{Left: max(left, 0), Since: now} }

// Due returns the instant at which the clock expires.
func (c Clock) Due() Time { return max(c.Since, c.HeldUntil).Add(c.Left) }

// Remaining returns the time left at now.
func (c Clock) Remaining(now Time) Duration {
	return max(min(c.Left, c.Due().Sub(now)), 0)
}

// Hold stops the clock until the given instant.
func (c *Clock) Hold(now, until Time) {
	c.Left, c.Since = c.Remaining(now), now
	c.HeldUntil = until
}

// Resume restarts the clock.
func (c *Clock) Resume(now Time) {
	c.Left, c.Since, c.HeldUntil = c.Remaining(now), now, 0
}

// Rebase sets Since to now if Since is later than now. It moves HeldUntil back by
// the same amount. Otherwise a run would stall after the system clock was set back.
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

// Held reports whether the clock is held at now.
func (c Clock) Held(now Time) bool { return now < c.HeldUntil }
