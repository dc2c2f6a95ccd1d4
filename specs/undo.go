// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"slices"

	"github.com/troupe-run/troupe/actor"
)

// A journaled actor is what its entries say. An entry counts at once for who
// follows in the same log, and for good when it is synced; a crash takes back
// those at the log's end that were not. So each change is noted with the end of
// its step's entries, until the log is durable up to there.
type change struct {
	pos   uint64
	kind  uint8
	gone  bool // taken back already: another node has the actor, and has never seen it
	run   *run
	ask   *ask
	clock stopwatch // before
	heard uint64    // before
}

const (
	admitted = iota
	begun
	asked
	closed
	heldAsk
	heldRun
	ended
)

func (c *Checker) note(ch change) {
	if !ch.run.actor.volatile {
		n := ch.run.actor.cell.node
		n.changes = append(n.changes, ch)
	}
}

// takeBack makes the last change undone, and as if it had never been.
func (c *Checker) takeBack(ch *change) {
	r, a := ch.run, ch.run.actor
	switch ch.kind {
	case admitted:
		a.remove(r)
		if c.runs[r.id] == r {
			delete(c.runs, r.id)
		}
	case begun:
		r.started, r.startedNo = false, 0
		a.queue++
		a.bytes += r.bytes
	case asked:
		ch.ask.open = false
		a.pending--
		r.asks = slices.DeleteFunc(r.asks, func(k *ask) bool { return k == ch.ask })
		delete(c.asks, ch.ask.id)
	case closed:
		ch.ask.open, ch.ask.closedNo = true, 0
		a.pending++
	case heldAsk:
		ch.ask.clock, ch.ask.heard = ch.clock, ch.heard
	case heldRun:
		r.clock = ch.clock
	case ended:
		r.ended, r.endedNo, r.status, r.reason, r.victim = false, 0, 0, 0, false
		a.add(r)
		c.runs[r.id] = r
		for _, k := range r.asks {
			c.asks[k.id] = k
		}
	}
}

func (a *life) add(r *run) {
	a.runs = append(a.runs, r)
	if !r.started {
		a.queue++
		a.bytes += r.bytes
	}
}

func (a *life) remove(r *run) {
	if i := slices.Index(a.runs, r); i >= 0 {
		a.runs = slices.Delete(a.runs, i, i+1)
		if !r.started {
			a.queue--
			a.bytes -= r.bytes
		}
	}
}

// synced makes changes final. What a newer owner has never seen must not be among them.
func (c *Checker) synced(n *node, pos uint64) {
	done := 0
	for done < len(n.changes) && n.changes[done].pos <= pos {
		if ch := &n.changes[done]; ch.gone {
			c.breaks(FencedWrites, "%s became durable what it decided of %s, run %s, though that has moved to %s under epoch %d",
				n.id, ch.run.actor.id, ch.run.id, ch.run.actor.at, ch.run.actor.epoch)
			return
		}
		done++
	}
	n.changes = slices.Delete(n.changes, 0, done)
	n.synced = max(n.synced, pos)
}

// crashed ends all that was in the memory of a node, and what its disk did not keep.
func (c *Checker) crashed(n *node, kept uint64, at actor.Time) {
	n.died = at
	if c.synced(n, kept); c.broken != nil {
		return
	}
	for _, cl := range n.cells {
		c.stopped(cl)
	}
	for i := len(n.changes) - 1; i >= 0; i-- {
		if ch := &n.changes[i]; !ch.gone {
			c.takeBack(ch)
		}
	}
	n.changes = n.changes[:0]
	n.end, n.synced = kept, kept
}

// stopped ends a cell. Its actors' journals stay.
func (c *Checker) stopped(cl *cell) {
	cl.boot++
	for _, a := range cl.lives {
		a.live = false
		c.lost(a)
	}
	clear(cl.lives)
	cl.lives = cl.lives[:0]
}

// moved takes from an actor what its last node has not made durable: whoever
// reads its journal elsewhere does not find it. Its clocks go on by another
// node's time, and are not exact again when they come back.
func (c *Checker) moved(a *life) {
	from := a.cell.node
	for i := len(from.changes) - 1; i >= 0; i-- {
		if ch := &from.changes[i]; ch.run.actor == a && !ch.gone {
			c.takeBack(ch)
			ch.gone = true
		}
	}
	for _, r := range a.runs {
		r.clock.moved = true
		for _, k := range r.asks {
			k.clock.moved = true
		}
	}
}

// lost forgets what an unjournaled actor had in memory.
func (c *Checker) lost(a *life) {
	if !a.volatile {
		return
	}
	for _, r := range a.runs {
		for _, k := range r.asks {
			delete(c.asks, k.id)
		}
		delete(c.runs, r.id)
		if len(r.performed) > 0 {
			c.ghosts[r.id] = r
			c.later(past{at: c.now.Add(r.left + c.limits.RememberDone), run: r})
		}
	}
	clear(a.runs)
	a.runs, a.queue, a.bytes, a.pending = a.runs[:0], 0, 0, 0
}

// past is something to be forgotten.
type past struct {
	at     actor.Time
	run    *run
	client clientKey
}

func (c *Checker) later(p past) { c.pasts = append(c.pasts, p) }

// forget drops what is over and cannot be asked for again.
func (c *Checker) forget() {
	for c.forgotten < len(c.pasts) && c.pasts[c.forgotten].at < c.now {
		p := c.pasts[c.forgotten]
		c.pasts[c.forgotten] = past{}
		c.forgotten++
		switch {
		case p.run == nil:
			if cl := c.clients[p.client]; cl != nil && cl.waits() {
				p.at = c.now.Add(c.limits.RememberDone)
				c.later(p)
			} else {
				delete(c.clients, p.client)
			}
		case c.ghosts[p.run.id] == p.run:
			delete(c.ghosts, p.run.id)
		case p.run.ended && p.run.forget == p.at:
			for _, k := range p.run.asks {
				if c.asks[k.id] == k {
					delete(c.asks, k.id)
				}
			}
			if c.runs[p.run.id] == p.run {
				delete(c.runs, p.run.id)
			}
		}
	}
	if c.forgotten > 1024 && c.forgotten > len(c.pasts)/2 {
		n := copy(c.pasts, c.pasts[c.forgotten:])
		clear(c.pasts[n:])
		c.pasts, c.forgotten = c.pasts[:n], 0
	}
}
