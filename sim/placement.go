// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/specs/linear"
)

// A node owns its claims as long as its lease runs. The store counts from when a
// renewal came, the node from when it sent it, and less a margin: so the node
// has stopped before anybody else may begin.
const (
	leaseTTL    = 3 * time.Second
	leaseMargin = 200 * time.Millisecond
	leaseRenew  = 800 * time.Millisecond
)

// owns tells whether the node may serve: its lease runs, by its own clock.
func (n *node) owns() bool { return n.lease > n.w.now }

// join makes a starting process a member: it has a lease, and takes again, under
// new epochs, what its predecessor has not lost.
func (w *World) join(n *node) {
	defer w.turn(w.turn(aboutLease + StreamID(n.index)))
	n.lease = w.now.Add(w.leaseOf(n))
	w.claims.leases[n.index] = w.now.Add(leaseTTL)
	for g := range w.claims.groups {
		if cl := &w.claims.groups[g]; cl.node == n {
			w.claim(g, n, cl.cell)
		}
	}
	n.later(w.between(leaseRenew/2, leaseRenew), func() { w.renew(n) })
}

// leaseOf is how long the node believes a renewal lasts, in the world's time:
// its clock runs faster or slower than that.
func (w *World) leaseOf(n *node) time.Duration {
	d := leaseTTL - leaseMargin
	return d - d/1_000_000*time.Duration(n.clock.drift)
}

// renew is a node's heartbeat: it extends its lease at the store, hears who owns
// what, and takes what nobody owns.
func (w *World) renew(n *node) {
	n.later(leaseRenew, func() { w.renew(n) })
	if w.net.isCut(n, w.now) {
		return
	}
	if !n.owns() {
		w.halt(n, "lease")
		return
	}
	sent := w.now
	process := n.process
	w.after(w.between(200*time.Microsecond, 4*time.Millisecond), func() {
		if !n.up || n.process != process {
			return
		}
		w.claims.leases[n.index] = w.now.Add(leaseTTL)
		n.lease = max(n.lease, sent.Add(w.leaseOf(n)))
		w.adopt(n)
		n.refresh()
	})
}

// adopt claims for a node what is nobody's, or was claimed by one whose lease
// has run out.
func (w *World) adopt(n *node) {
	for g := range w.claims.groups {
		cl := &w.claims.groups[g]
		if cl.node != nil && (w.claims.leases[cl.node.index] > w.now || cl.node.log.rot != nil) || w.choose.Int(2) == 1 {
			continue
		}
		cell := uint16(w.choose.Int(len(n.cells)))
		if !n.cells[cell].gone {
			if cl.node != nil { // and not only let go of, for another
				w.Stats.Sometimes[Adopted]++
			}
			w.claim(g, n, cell)
		}
	}
}

// claim gives a group to a cell, and lets everybody know in time.
func (w *World) claim(g int, n *node, cell uint16) {
	epoch := w.claims.claim(g, n, cell)
	lo, hi := w.claims.span(g)
	w.log.world(w.now, "claim group %d for %s under epoch %d", g, n.cells[cell].self, epoch)
	w.judge.Claims(w.now, w.groups[g], linear.Owner{Cell: n.cells[cell].self, Epoch: epoch})
	w.tell(history.Event{Kind: history.Claim, At: n.clock.now(w.now), From: n.cells[cell].self, Epoch: epoch, ShardLo: lo, ShardHi: hi})
	w.tellOwners()
}

// lose says that a cell is to own a group no more.
func (w *World) lose(g int) {
	cl := &w.claims.groups[g]
	lo, hi := w.claims.span(g)
	n := cl.node
	w.tell(history.Event{Kind: history.Lose, At: n.clock.now(w.now), From: n.cells[cl.cell].self, Epoch: cl.epoch, ShardLo: lo, ShardHi: hi})
}

// tellOwners lets the nodes learn of a change of the claims, each in its time.
func (w *World) tellOwners() {
	for _, n := range w.nodes {
		if n.up {
			n.later(w.between(100*time.Microsecond, 20*time.Millisecond), n.refresh)
		}
	}
}

// refresh tells the cells who owns what, if they were not told and the store can
// be asked.
func (n *node) refresh() {
	w := n.w
	if n.view == w.claims.version || w.net.isCut(n, w.now) {
		return
	}
	n.view = w.claims.version
	table, bytes := w.claims.owners()
	for _, c := range n.cells {
		c.put(input{stream: streamWorld, in: runtime.Owners{Table: table}, bytes: bytes, version: n.view})
	}
}

// move hands a group to another cell: its owner stops, and says so when its log
// is durable; then the new one claims it.
func (w *World) move(g int, to *node, cell uint16) {
	cl := &w.claims.groups[g]
	from, epoch := cl.node, cl.epoch
	w.lose(g)
	cl.stopping = true
	w.claims.version++
	w.tellOwners()
	stopped := w.claims.version
	process := from.process
	still := func() bool {
		return from.up && from.process == process && cl.node == from && cl.epoch == epoch && cl.stopping
	}
	var flushed func()
	flushed = func() {
		if !still() {
			return
		}
		switch owner := from.cells[cl.cell]; {
		case owner.gone || owner.knows < stopped || from.log.released() < from.log.writer.End() || w.net.isCut(from, w.now):
			from.later(5*time.Millisecond, flushed)
		default:
			w.claims.release(g)
			w.judge.Releases(w.now, w.groups[g], from.id)
			w.after(w.between(time.Millisecond, 50*time.Millisecond), func() {
				if cl.node == nil && to.up && to.owns() && !to.cells[cell].gone && !w.net.isCut(to, w.now) {
					w.Stats.Sometimes[Moved]++
					w.claim(g, to, cell)
				}
			})
		}
	}
	from.later(time.Millisecond, flushed)
}

// halt ends a process that may not go on: its lease is over, or its writes are refused.
func (w *World) halt(n *node, why string) {
	if !n.up {
		return
	}
	if why == "lease" {
		w.Stats.Sometimes[LeaseLost]++
	}
	w.crash(n, why)
}

// crash ends a process. What its disk has not made durable is gone, but for what
// had been written and happens to survive; its clients lose their connections.
func (w *World) crash(n *node, why string) {
	w.log.world(w.now, "%s ends: %s", n.id, why)
	n.log.crash()
	if w.disk != nil {
		invariant.Must(0, w.disk.Crash())
	}
	n.up, n.paused = false, 0
	for _, c := range n.cells {
		c.end()
	}
	w.tell(history.Event{Kind: history.Crash, At: n.clock.now(w.now), From: actor.Address{Node: n.id}, Why: why,
		Pos: uint64(n.log.durable()), Synced: uint64(n.log.durable())})
	n.held, n.doing, n.outside.exchanges = nil, nil, nil
	w.disconnect(func(l *line) bool { return l.at.n == n })
	w.cutStreams(n)
	w.after(w.between(50*time.Millisecond, 6*time.Second), func() { w.restart(n) })
}

func (w *World) restart(n *node) {
	if n.up {
		return
	}
	if w.net.isCut(n, w.now) {
		w.after(storeAsked, func() { w.restart(n) })
		return
	}
	if wait := n.refused(); wait > 0 {
		w.after(wait, func() { w.restart(n) })
		return
	}
	if w.fault(ClockBehind) {
		if by := n.clock.setBack(w.now, w.between(time.Second, clockJumpMax)); by > 0 {
			w.hit(ClockBehind, "the clock of %s is put back by %v before it starts", n.id, by)
			w.delayed(0)
		}
	}
	w.Stats.Sometimes[NodeRestarted]++
	n.start()
}

// end has a cell do nothing more. Its turns do not wait for answers any more.
func (c *cell) end() {
	c.gone = true
	c.core.Abandon()
}

// panicked ends a cell. What it appended will be committed, effects it returned
// will be performed; then the next incarnation boots behind them, under new epochs.
func (c *cell) panicked(planned plannedPanic) {
	n, w := c.n, c.n.w
	blame := c.core.FaultingCall()
	c.end()
	n.orphan(c.index)
	n.orphanExchanges(c.index)
	w.hit(planned.fault, "%s: %s", c.self, planned.why)
	end := n.log.writer.End()
	w.disconnect(func(l *line) bool { return l.at == c })
	var next func()
	next = func() {
		if n.log.released() < end || w.net.isCut(n, w.now) {
			n.later(2*time.Millisecond, next)
			return
		}
		n.revive(c, blame)
	}
	// Who falls again and again is raised ever later, as a supervisor does it.
	n.later(w.between(time.Millisecond, 20*time.Millisecond)<<min(c.fell, 6), next)
}

// revive boots the next incarnation of a cell that panicked.
func (n *node) revive(old *cell, blame actor.CallID) {
	w := n.w
	if !n.owns() {
		w.halt(n, "lease")
		return
	}
	c := n.newCell(old.index, old.self.Incarnation+1)
	c.strikes, c.fell = struck(old.strikes, blame), old.fell+1
	n.cells[c.index] = c
	w.Stats.Sometimes[CellRestarted]++
	w.log.world(w.now, "%s begins", c.self)
	w.tell(history.Event{Kind: history.Restart, At: n.clock.now(w.now), From: c.self})
	for g := range w.claims.groups {
		if cl := &w.claims.groups[g]; cl.node == n && cl.cell == c.index {
			w.claim(g, n, c.index)
		}
	}
	var running []actor.EffectID
	for _, d := range n.doing {
		if d.cell == c.index {
			running = append(running, d.id)
		}
	}
	for _, x := range n.outside.exchanges {
		if x.cell == c.index {
			running = append(running, x.id)
		}
	}
	for _, h := range n.held {
		if h.c.index == c.index && isWork(h.effect.Op) {
			running = append(running, h.effect.ID)
		}
	}
	c.boot(running)
	for _, other := range n.cells {
		if other != c {
			other.put(input{stream: streamWorld, in: runtime.CellRestarted{Cell: c.self}})
		}
	}
}

// struck counts one more strike of a call.
func struck(strikes []runtime.Strike, call actor.CallID) []runtime.Strike {
	if call.IsZero() {
		return strikes
	}
	all := append([]runtime.Strike(nil), strikes...)
	for i := range all {
		if all[i].Call == call {
			all[i].Times++
			return all
		}
	}
	return append(all, runtime.Strike{Call: call, Times: 1})
}
