// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"slices"

	"github.com/troupe-run/troupe/actor"
)

// A change is a modification of the derived state of a journaled actor, made by the entries of
// one step. Later steps on the same log see it at once. It is final when the log is synced up to
// pos, the end of the step's entries. A crash undoes the changes that were not synced, from the
// newest to the oldest.
type change struct {
	pos      uint64
	kind     uint8
	undone   bool // undone already: another node owns the actor and never read these entries
	run      *run
	ask      *ask
	wait     *wait
	clock    stopwatch // value before the change
	lastHold uint64    // value before the change

	detached    *detachedCall
	wasDetached detachedCall // value before the change
}

const (
	runAdmitted = iota
	turnStarted
	turnBegun
	askMade
	askClosed
	askHeld
	runHeld
	runEnded
	callCancelled
	waitOpened
	waitClosed
	detachedMade
	detachedChanged
)

func (c *Checker) recordChange(ch change) {
	if !ch.run.volatile {
		n := ch.run.actor.cell.node
		n.changes = append(n.changes, ch)
	}
}

// undo restores the state before a change. Changes MUST be undone newest first.
func (c *Checker) undo(ch *change) {
	r, a := ch.run, ch.run.actor
	switch ch.kind {
	case runAdmitted:
		a.remove(r)
		c.keepConfirmed(r)
		if c.runs[r.id] == r {
			delete(c.runs, r.id)
		}
	case turnStarted:
		if r.started { // else its actor was activated with it in the queue
			r.started, r.startedSeq = false, 0
			a.enqueue(r)
		}
	case turnBegun:
		r.unbegun = true
	case callCancelled:
		delete(c.cancelled, r.id)
	case detachedMade:
		delete(c.detached.calls, ch.detached.id)
	case detachedChanged:
		*ch.detached = ch.wasDetached
	case waitOpened:
		ch.wait.open = false
	case waitClosed:
		ch.wait.open = true
	case askMade:
		ch.ask.open = false
		c.treeOf(ch.ask.root).calls--
		a.pending--
		r.asks = slices.DeleteFunc(r.asks, func(k *ask) bool { return k == ch.ask })
		delete(c.asks, ch.ask.id)
	case askClosed:
		ch.ask.open, ch.ask.closedSeq = true, 0
		a.pending++
	case askHeld:
		ch.ask.clock, ch.ask.lastHold = ch.clock, ch.lastHold
	case runHeld:
		r.clock = ch.clock
	case runEnded:
		r.ended, r.endedSeq, r.status, r.reason, r.victim = false, 0, 0, 0, false
		a.add(r)
		c.runs[r.id] = r
		for _, k := range r.asks {
			c.asks[k.id] = k
		}
	}
}

func (a *actorState) add(r *run) {
	a.openRuns = append(a.openRuns, r)
	if !r.started {
		a.enqueue(r)
	}
}

// enqueue counts a run that waits for its turn: in the mailbox, or outside of it if its message is an outcome.
func (a *actorState) enqueue(r *run) {
	if r.delivered {
		a.outcomes++
		return
	}
	a.queued++
	a.queuedBytes += r.bytes
}

func (a *actorState) dequeue(r *run) {
	if r.delivered {
		a.outcomes--
		return
	}
	a.queued--
	a.queuedBytes -= r.bytes
}

func (a *actorState) remove(r *run) {
	if i := slices.Index(a.openRuns, r); i >= 0 {
		a.openRuns = slices.Delete(a.openRuns, i, i+1)
		if !r.started {
			a.dequeue(r)
		}
	}
}

// recordSync makes changes final. A change that the current owner of an actor has never read must
// not become durable.
func (c *Checker) recordSync(n *node, pos uint64) {
	done := 0
	for done < len(n.changes) && n.changes[done].pos <= pos {
		if ch := &n.changes[done]; ch.undone {
			c.fail(FencedWrites, "%s made a change of %s in run %s durable after the actor moved to %s under epoch %d",
				n.id, ch.run.actor.id, ch.run.id, ch.run.actor.at, ch.run.actor.epoch)
			return
		}
		done++
	}
	n.changes = slices.Delete(n.changes, 0, done)
	n.synced = max(n.synced, pos)
}

// recordCrash discards the memory of a node and the entries that its disk did not keep.
func (c *Checker) recordCrash(n *node, kept uint64, at actor.Time) {
	n.died = at
	if c.recordSync(n, kept); c.violation != nil {
		return
	}
	for _, cl := range n.cells {
		c.stopCell(cl)
	}
	for i := len(n.changes) - 1; i >= 0; i-- {
		if ch := &n.changes[i]; !ch.undone {
			c.undo(ch)
		}
	}
	n.changes = n.changes[:0]
	n.end, n.synced = kept, kept
}

// stopCell ends an incarnation of a cell. The journals of its actors remain.
func (c *Checker) stopCell(cl *cell) {
	cl.generation++
	for _, a := range cl.active {
		a.active = false
		c.dropVolatile(a)
	}
	clear(cl.active)
	cl.active = cl.active[:0]
}

// recordMove undoes the changes of an actor that its previous node has not synced, because the
// new owner cannot read them. The clocks of the actor's runs and calls continue on another node's
// time. These clocks stay inexact even if the actor returns.
func (c *Checker) recordMove(a *actorState) {
	from := a.cell.node
	unsynced := false
	for i := len(from.changes) - 1; i >= 0; i-- {
		if ch := &from.changes[i]; ch.run.actor == a && !ch.undone {
			c.undo(ch)
			ch.undone = true
			unsynced = true
		}
	}
	if unsynced {
		c.Premises.FencedWrites++
	}
	for _, r := range a.openRuns {
		r.clock.mixed = true
		for _, k := range r.asks {
			k.clock.mixed = true
		}
	}
	for _, k := range c.detached.of(a) {
		k.clock.mixed = true
	}
}

// dropVolatile discards the state that a volatile actor had in memory.
func (c *Checker) dropVolatile(a *actorState) {
	if !a.volatile {
		return
	}
	for _, r := range a.openRuns {
		for _, k := range r.asks {
			c.treeOf(k.root).lost = true
			delete(c.asks, k.id)
		}
		delete(c.runs, r.id)
		c.keepConfirmed(r)
		if len(r.performed) > 0 {
			c.lostRuns[r.id] = r
			c.scheduleForget(expiry{at: c.now.Add(r.left + c.limits.RememberDone), run: r})
		}
	}
	clear(a.openRuns)
	a.openRuns, a.queued, a.outcomes, a.queuedBytes, a.pending = a.openRuns[:0], 0, 0, 0, 0
}

// expiry is a record to be discarded at a given time.
type expiry struct {
	at     actor.Time
	run    *run
	client clientKey
}

func (c *Checker) scheduleForget(p expiry) { c.expiries = append(c.expiries, p) }

// forget discards completed calls that can no longer be repeated.
func (c *Checker) forget() {
	for c.expired < len(c.expiries) && c.expiries[c.expired].at < c.now {
		p := c.expiries[c.expired]
		c.expiries[c.expired] = expiry{}
		c.expired++
		switch {
		case p.run == nil:
			if cl := c.clients[p.client]; cl != nil && cl.waiting() {
				p.at = c.now.Add(c.limits.RememberDone)
				c.scheduleForget(p)
			} else {
				delete(c.clients, p.client)
			}
		case c.lostRuns[p.run.id] == p.run:
			delete(c.lostRuns, p.run.id)
		case p.run.ended && p.run.forgetAt == p.at:
			for _, k := range p.run.asks {
				if c.asks[k.id] == k {
					delete(c.asks, k.id)
				}
			}
			if c.runs[p.run.id] == p.run {
				delete(c.runs, p.run.id)
				delete(c.trees, p.run.id)
			}
		}
	}
	if c.expired > 1024 && c.expired > len(c.expiries)/2 {
		n := copy(c.expiries, c.expiries[c.expired:])
		clear(c.expiries[n:])
		c.expiries, c.expired = c.expiries[:n], 0
	}
}
