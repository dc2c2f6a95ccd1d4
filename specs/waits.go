// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
)

// wait is an ask for which a turn waits for a person. It holds the clock of the run until
// it is answered or due.
type wait struct {
	step  uint32
	index uint16
	due   actor.Time
	open  bool
}

func (c *Checker) openWait(r *run, e *history.Event) {
	w := &wait{e.Step, e.Index, e.At.Add(e.Left), true}
	r.waits = append(r.waits, w)
	c.recordChange(change{kind: waitOpened, run: r, wait: w})
	c.waiting = append(c.waiting, r)
	c.Premises.WaitHoldsClock++
}

func (c *Checker) closeWait(r *run, e *history.Event) {
	i := slices.IndexFunc(r.waits, func(w *wait) bool { return w.open && w.step == e.Step && w.index == e.Index })
	if i >= 0 {
		r.waits[i].open = false
		c.waiting = append(c.waiting, r)
		c.recordChange(change{kind: waitClosed, run: r, wait: r.waits[i]})
	}
}

// parkedIndex is the index of the wait of a parked run, which belongs to no ask.
const parkedIndex = 1<<16 - 1

// parked reports whether a run is parked.
func (r *run) parked() bool {
	return slices.ContainsFunc(r.waits, func(w *wait) bool { return w.open && w.index == parkedIndex && w.step == 0 })
}

// markParked opens or closes the wait of a parked run for a person.
func markParked(c *Checker, r *run, e *history.Event) {
	place := *e
	place.Step, place.Index = 0, parkedIndex
	c.closeWait(r, &place)
	if e.Until > 0 {
		place.Left = e.Until.Sub(e.At)
		c.openWait(r, &place)
	}
}

// checkWaitsHold checks that the clock of a run is held until its open waits are due, and is
// not held if neither it nor a call below it waits.
func (c *Checker) checkWaitsHold(r *run) {
	if r.clock.heldUntil > c.now && !r.ended && !slices.ContainsFunc(r.waits, func(w *wait) bool { return w.open }) &&
		!slices.ContainsFunc(r.asks, func(k *ask) bool { return k.open && k.clock.heldUntil != 0 }) {
		c.fail(WaitHoldsClock, "the clock of call %s at %s is held until %v, but its turn no longer waits for a person", r.id, r.actor.id, r.clock.heldUntil)
	}
	for _, w := range r.waits {
		if w.open && !r.ended && w.due > c.now && r.clock.heldUntil < w.due.Add(-c.slack(&r.clock, r.actor.cell.node)) {
			c.fail(WaitHoldsClock, "the clock of call %s at %s is held until %v, want until %v: its turn waits for a person", r.id, r.actor.id, r.clock.heldUntil, w.due)
		}
	}
}
