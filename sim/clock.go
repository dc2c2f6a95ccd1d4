// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"github.com/troupe-run/troupe/actor"
)

// Origin is when every world begins.
const Origin = actor.Time(1_767_225_600_000_000_000) // 2026-01-01

// clock is what a node believes the time is: off by some, and more so as time
// goes by. It never goes back: after a jump backwards it stands still until the
// time it told has come, and a process that starts meanwhile waits no less.
type clock struct {
	offset actor.Duration // how far it was off
	since  actor.Time     // then, by the world's time
	drift  int64          // parts per million from then on
	last   actor.Time     // the last it told
}

// now is the node's time at the world's.
func (c *clock) now(world actor.Time) actor.Time {
	c.last = max(c.last, c.raw(world))
	return c.last
}

const million = 1_000_000

const (
	// driftMax is how far a clock runs wrong at most, in parts per million: as much
	// as leases allow for.
	driftMax = 50_000
	// clockJumpMax is how far a clock jumps, ahead or while its process is down
	// back: less than outcomes are remembered for repeats.
	clockJumpMax = 30 * time.Second
	// clockSlewAbove and clockFarOff are how far a clock is off when somebody who looks does something.
	clockSlewAbove, clockStepAbove = time.Second, 5 * time.Second
)

// offsetAt is how far the clock is off.
func (c *clock) offsetAt(world actor.Time) actor.Duration {
	return c.offset + actor.Duration(int64(world.Sub(c.since))*c.drift/million)
}

func (c *clock) raw(world actor.Time) actor.Time { return world.Add(c.offsetAt(world)) }

// setDrift has the clock run at another rate from now on; it does not jump.
func (c *clock) setDrift(world actor.Time, drift int64) {
	c.offset, c.since, c.drift = c.offsetAt(world), world, drift
}

// jumpTo has the clock be off by so much from now on, and tells how far it jumps.
func (c *clock) jumpTo(world actor.Time, to actor.Duration) actor.Duration {
	by := to - c.offsetAt(world)
	c.offset, c.since = to, world
	return by
}

// correct is what somebody does to a clock now and then who knows the time:
// one that is far off jumps, one that is a little off runs the other way from
// now on. It tells by how much it was off if it jumps.
func (c *clock) correct(world actor.Time) actor.Duration {
	switch off := c.offsetAt(world); {
	case off.Abs() > clockStepAbove:
		return -c.jumpTo(world, 0)
	case off.Abs() > clockSlewAbove && (off > 0) == (c.drift > 0):
		c.setDrift(world, -c.drift)
	}
	return 0
}

// setBack is a clock that is put back while its process is down, as far as
// clocks are behind at most: nobody remembers what it told. It tells by how much.
func (c *clock) setBack(world actor.Time, by time.Duration) time.Duration {
	by = min(by, c.offsetAt(world)+clockJumpMax)
	if by <= 0 {
		return 0
	}
	c.offset -= by
	c.last = 0
	return by
}

// simTimeAt is the world's time at which the node's will be the given one, or
// nanoseconds later.
func (c *clock) simTimeAt(local actor.Time) actor.Time {
	if local == actor.Forever {
		return local
	}
	elapsed := int64(local.Add(-c.offset).Sub(c.since))
	return c.since.Add(actor.Duration(elapsed*million/(million+c.drift) + 2))
}
