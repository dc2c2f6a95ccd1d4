// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"github.com/troupe-run/troupe/actor"
)

// Origin is the start of virtual time in every run.
const Origin = actor.Time(1_767_225_600_000_000_000) // 2026-01-01

// clock is the clock of a node. It is offset from virtual time, and drifts. It is
// monotonic, even across a restart of the process: after a backward jump it repeats its
// last reading until it has caught up. Only setBack makes it go back.
type clock struct {
	offset actor.Duration // offset at since
	since  actor.Time     // in virtual time
	drift  int64          // in parts per million, from since on
	last   actor.Time     // last reading
	ahead  actor.Duration // how far the monotonic clock was ahead at since
}

// now returns the reading of the clock at virtual time t.
func (c *clock) now(t actor.Time) actor.Time {
	c.last = max(c.last, c.raw(t))
	return c.last
}

// standsStill reports whether the clock repeats its last reading at virtual time t.
func (c *clock) standsStill(t actor.Time) bool { return c.raw(t) < c.last }

const million = 1_000_000

const (
	// driftMax is the maximum drift in parts per million. Leases allow for as much.
	driftMax = 50_000
	// clockJumpMax is the maximum jump of a clock: ahead, or back while its process is
	// down. It MUST be less than the time for which outcomes are remembered for
	// repeats.
	clockJumpMax = 30 * time.Second
	// clockSlewAbove is the offset above which a correction reverses the drift.
	// clockStepAbove is the offset above which a correction sets the clock instead.
	clockSlewAbove, clockStepAbove = time.Second, 5 * time.Second
)

// offsetAt returns the offset of the clock at virtual time t.
func (c *clock) offsetAt(t actor.Time) actor.Duration {
	return c.offset + actor.Duration(int64(t.Sub(c.since))*c.drift/million)
}

// steady returns the reading of the monotonic clock at virtual time t. It drifts, and does not jump.
func (c *clock) steady(t actor.Time) actor.Time { return t.Add(c.aheadAt(t)) }

func (c *clock) aheadAt(t actor.Time) actor.Duration {
	return c.ahead + actor.Duration(int64(t.Sub(c.since))*c.drift/million)
}

func (c *clock) raw(t actor.Time) actor.Time { return t.Add(c.offsetAt(t)) }

// setDrift changes the drift from t on. The clock does not jump.
func (c *clock) setDrift(t actor.Time, drift int64) {
	c.ahead = c.aheadAt(t)
	c.offset, c.since, c.drift = c.offsetAt(t), t, drift
}

// jumpTo sets the offset at t, and returns the size of the jump.
func (c *clock) jumpTo(t actor.Time, to actor.Duration) actor.Duration {
	by := to - c.offsetAt(t)
	c.ahead = c.aheadAt(t)
	c.offset, c.since = to, t
	return by
}

// correct is the periodic correction by an operator. A large offset is set to 0, and a
// small one is reduced by reversing the drift. It returns the offset that was removed
// by a jump.
func (c *clock) correct(t actor.Time) actor.Duration {
	switch offset := c.offsetAt(t); {
	case offset.Abs() > clockStepAbove:
		return -c.jumpTo(t, 0)
	case offset.Abs() > clockSlewAbove && (offset > 0) == (c.drift > 0):
		c.setDrift(t, -c.drift)
	}
	return 0
}

// setBack sets the clock back while its process is down, to an offset of -clockJumpMax
// at the lowest. It discards the last reading, because no process remembers it. It
// returns the size of the jump.
func (c *clock) setBack(t actor.Time, by time.Duration) time.Duration {
	by = min(by, c.offsetAt(t)+clockJumpMax)
	if by <= 0 {
		return 0
	}
	c.offset -= by
	c.last = 0
	return by
}

// clockFault is a fault of a clock that no step has felt yet.
type clockFault struct {
	fault   Fault
	without clock // the clock without the fault
}

// disturbClock has fault f change the clock of the node.
func (n *node) disturbClock(f Fault, change func(*clock)) {
	n.clockFault = &clockFault{f, n.clock}
	if n.w.acts(f) {
		change(&n.clock)
	}
}

// jumpClock has fault f set the clock of the node to an offset.
func (n *node) jumpClock(f Fault, offset time.Duration) {
	w := n.w
	by := offset - n.clock.offsetAt(w.now)
	if by >= 0 {
		by = w.extraDelay(f, by)
	} else {
		by = -w.extraDelay(f, -by)
	}
	n.disturbClock(f, func(c *clock) { c.jumpTo(w.now, c.offsetAt(w.now)+by) })
	w.noteClockJump(-by)
}

// readClock returns the time that the clock shows to a step. The first step that reads
// another time than without the last fault of the clock counts the fault.
func (n *node) readClock() actor.Time {
	w := n.w
	now := n.clock.now(w.now)
	if f := n.clockFault; f != nil {
		without := f.without.now(w.now)
		if recordChange(w, f.fault, without, now, "the clock of %s is off by a further %v", n.id, now.Sub(without)) {
			n.clockFault = nil
		}
	}
	return now
}

// simTimeAt returns the virtual time at which the clock reads local. The result may be
// a few nanoseconds late, but never early.
func (c *clock) simTimeAt(local actor.Time) actor.Time {
	if local == actor.Forever {
		return local
	}
	elapsed := int64(local.Add(-c.offset).Sub(c.since))
	rate := million + c.drift
	return c.since.Add(actor.Duration(elapsed/rate*million + elapsed%rate*million/rate + 2)) // elapsed*million overflows after hours
}
