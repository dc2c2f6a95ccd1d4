// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/placement"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/specs/linear"
)

// leases are the durations of the leases of nodes.
var leases = placement.Default

// leaseValid reports whether the node may serve, by its own clock.
func (n *node) leaseValid() bool { return n.member.Serves(n.clock.steady(n.w.now)) }

// join adds a starting process to the cluster. What its node owned before has no owner then.
func (n *node) join() {
	w := n.w
	defer w.setStream(w.setStream(topicLease + StreamID(n.index)))
	n.member, n.beating, n.lapsed, n.unadopted = placement.NewMember(string(n.id), string(n.id), leases), false, false, nil
	for g := range w.claims.groups {
		if cl := &w.claims.groups[g]; cl.node == n {
			w.emitLose(g)
			cl.node = nil
		}
	}
	w.claims.version++
	request := n.member.Beat(n.clock.steady(w.now))
	n.answered(request, invariant.Must(w.claims.table.Beat(request)))
	n.after(w.between(leases.Beat/2, leases.Beat), n.beat)
}

// shareOut gives each node of a new cluster its share of the groups.
func (w *Simulation) shareOut() {
	for g := range w.claims.groups {
		n := w.nodes[g%len(w.nodes)]
		w.claims.give(g, n, g/len(w.nodes)%len(n.cells))
	}
	for _, n := range w.nodes {
		request := n.member.Beat(n.clock.steady(w.now))
		n.answered(request, invariant.Must(w.claims.table.Beat(request)))
		n.refreshOwners()
	}
}

// beat renews the lease of a node, again and again.
func (n *node) beat() {
	w := n.w
	n.after(leases.Beat, n.beat)
	if w.storeRefuses(n) {
		n.member.Failed(n.clock.steady(w.now))
		return
	}
	n.askTable()
}

// awaitLease has the node do nothing until its lease is renewed, which is possible while nobody else has
// claimed a log of it. Otherwise its process ends with the answer of the table.
func (n *node) awaitLease() {
	if !n.lapsed {
		n.lapsed = true
		n.w.Stats.Points[LeaseLapsed]++
		n.w.log.note(n.w.now, "the lease of %s has run out", n.id)
	}
}

// resume continues what waited for the lease.
func (n *node) resume() {
	if !n.lapsed || !n.leaseValid() {
		return
	}
	n.lapsed = false
	n.w.Stats.Points[LeaseRenewedLate]++
	n.releaseGated()
	for _, c := range n.cells {
		c.scheduleStep()
	}
}

// askTable sends a request of the node to the table. It reaches the table although the process may have
// ended by then, and its answer may be lost.
func (n *node) askTable() {
	w := n.w
	if n.beating {
		return
	}
	n.beating = true
	request, process := n.member.Beat(n.clock.steady(w.now)), n.process
	travel := func() time.Duration { return w.between(100*time.Microsecond, 2*time.Millisecond) }
	w.after(travel(), func() {
		if n.process != process {
			return // an answer would be to another process, and a joined one replaces what this request does
		}
		answer := invariant.Must(w.claims.table.Beat(request))
		n.after(travel(), func() {
			n.beating = false
			if w.storeRefuses(n) {
				n.member.Failed(n.clock.steady(w.now))
				return
			}
			n.answered(request, answer)
			n.refreshOwners()
		})
	})
}

// answered takes the answer of the table to a request of the node.
func (n *node) answered(request placement.Request, answer placement.Answer) {
	w := n.w
	change := n.member.Answered(request, answer)
	if n.member.Ended() != "" {
		w.halt(n, "lease")
		return
	}
	n.unadopted = append(n.unadopted, change.Adopted...)
	n.adopt()
	if change.Again {
		n.after(0, n.askTable)
	}
	n.resume()
}

// adopt serves the logs that the node has been given. A cell that panicked adopts its own when it begins again.
func (n *node) adopt() {
	w := n.w
	n.unadopted = slices.DeleteFunc(n.unadopted, func(h placement.Held) bool {
		g := int(h.Log)
		cl := &w.claims.groups[g]
		switch { // another owner may have more cells
		case w.claims.owner(g) != n || cl.tenure != h.Epoch:
			return true // taken since
		case n.cells[cl.cell].stopped:
			return false
		case !cl.adopted:
			cl.adopted = true
			w.announceClaim(g)
		}
		return true
	})
}

// claimed assigns a group that the table has given to a node to one of its cells.
func (w *Simulation) claimed(g int, before tableLog) {
	row := w.claims.table.logs[g]
	n := w.nodes[slices.IndexFunc(w.nodes, func(n *node) bool { return string(n.id) == row.owner })]
	if before.owner != "" {
		w.Stats.Points[Adopted]++
	}
	cell := w.claims.nextCell
	if cell < 0 {
		cell = w.entropy.Int(len(n.cells))
	}
	w.emitLose(g)
	w.claims.groups[g] = claim{node: n, cell: uint16(cell), tenure: row.epoch, epoch: row.epoch << incarnationBits}
	w.claims.version++
	w.serveUnder(g)
}

// serveUnder begins the next epoch of a group.
func (w *Simulation) serveUnder(g int) {
	cl := &w.claims.groups[g]
	cl.epoch++
	w.claims.version++
	w.judge.RecordClaim(w.now, w.groupNames[g], linear.Owner{Cell: cl.node.cells[cl.cell].self, Epoch: cl.epoch})
}

// announceClaim publishes that the owner of a group serves it.
func (w *Simulation) announceClaim(g int) {
	cl := &w.claims.groups[g]
	n := cl.node
	self := n.cells[cl.cell].self
	cl.served = self
	lo, hi := w.claims.shardRange(g)
	w.claims.version++
	w.log.note(w.now, "claim group %d for %s under epoch %d", g, self, cl.epoch)
	w.emit(history.Event{Kind: history.Claim, At: n.clock.now(w.now), From: self, Epoch: cl.epoch, ShardLo: lo, ShardHi: hi})
	w.publishOwners()
}

// emitLose records that a cell loses a group. It records nothing if the cell has not begun to serve the group, or is
// releasing it, which was recorded.
func (w *Simulation) emitLose(g int) {
	cl := &w.claims.groups[g]
	if cl.node == nil || !cl.adopted || cl.releasing {
		return
	}
	lo, hi := w.claims.shardRange(g)
	w.emit(history.Event{Kind: history.Lose, At: cl.node.clock.now(w.now), From: cl.served, Epoch: cl.epoch, ShardLo: lo, ShardHi: hi})
}

// publishOwners notifies each node of a changed claim, after a delay that is drawn for
// each node.
func (w *Simulation) publishOwners() {
	for _, n := range w.nodes {
		if n.up {
			n.after(w.between(100*time.Microsecond, 20*time.Millisecond), n.refreshOwners)
		}
	}
}

// refreshOwners sends the owners to the cells of the node, if they changed and the
// store can be reached.
func (n *node) refreshOwners() {
	w := n.w
	if n.ownersVersion == w.claims.version || w.storeRefuses(n) {
		return
	}
	n.ownersVersion = w.claims.version
	table, bytes := w.claims.listed()
	for _, c := range n.cells {
		c.enqueue(input{orderGroup: orderWorld, in: runtime.Owners{Table: table}, bytes: bytes, ownersVersion: n.ownersVersion})
	}
}

// moveGroup hands a group over to another cell. The owner stops serving the group, and
// releases the group when the owner's log is durable. Only then does the new owner claim
// the group.
func (w *Simulation) moveGroup(g int, to *node, cell uint16) {
	cl := &w.claims.groups[g]
	from, epoch := cl.node, cl.epoch
	w.emitLose(g)
	cl.releasing = true
	w.claims.version++
	w.publishOwners()
	stopped := w.claims.version
	process := from.process
	unchanged := func() bool {
		return from.up && from.process == process && w.claims.holds(from, g, epoch) && cl.releasing
	}
	var flushed func()
	flushed = func() {
		if !unchanged() {
			return
		}
		switch owner := from.cells[cl.cell]; {
		case owner.stopped || owner.ownersVersion < stopped || from.log.released() < from.log.writer.End() || w.storeRefuses(from) || from.beating:
			from.after(5*time.Millisecond, flushed)
		default:
			from.member.Dropped(uint16(g))
			_ = w.claims.table.Release(string(from.id), uint16(g), cl.tenure) // never fails
			cl.node = nil
			w.claims.version++
			recordChange(w, ShardMove, from, cl.node, "group %d leaves %s.%d, for %s.%d", g, from.id, cl.cell, to.id, cell)
			w.judge.RecordRelease(w.now, w.groupNames[g], from.id)
			w.after(w.between(time.Millisecond, 50*time.Millisecond), func() { w.handOver(g, to, cell) })
		}
	}
	from.after(time.Millisecond, flushed)
}

// handOver gives a group without an owner to a node, which hears of it at once.
func (w *Simulation) handOver(g int, to *node, cell uint16) {
	if w.claims.table.logs[g].owner != "" || !to.up || !to.leaseValid() || w.storeRefuses(to) {
		return
	}
	w.Stats.Points[Moved]++
	w.claims.give(g, to, int(cell))
	to.askTable()
}

// halt ends a process that MUST NOT continue: another has claimed what it owned, or its writes are
// refused.
func (w *Simulation) halt(n *node, why string) {
	if !n.up {
		return
	}
	if why == "lease" {
		w.Stats.Points[LeaseLost]++
	}
	w.crash(n, why)
}

// crash ends a process. Log data that is not durable is lost, except written batches
// that happen to survive. Its clients lose their connections.
func (w *Simulation) crash(n *node, why string) {
	w.log.note(w.now, "%s ends: %s", n.id, why)
	n.log.crash()
	w.store.crash()
	w.startCrashes.begin(n)
	n.up, n.pausedUntil = false, 0
	for _, c := range n.cells {
		c.stop()
	}
	w.emit(history.Event{Kind: history.Crash, At: n.clock.now(w.now), From: actor.Address{Node: n.id}, Why: why,
		Pos: uint64(n.log.durable()), Synced: uint64(n.log.durable())})
	n.gated, n.running, n.upstreams.exchanges = nil, nil, nil
	w.dropRequests(func(l *pendingRequest) bool { return l.cell.n == n })
	w.dropStreams(n)
	w.sockets.drop(n)
	down := w.between(50*time.Millisecond, 6*time.Second)
	if w.startCrashes.concern(n) {
		down = reopenDelay
	}
	w.after(down, func() { w.restart(n) })
}

// restart starts the process of a crashed node, once the store can be reached and the
// node's data permits a start.
func (w *Simulation) restart(n *node) {
	if n.up {
		return
	}
	if w.storeRefuses(n) {
		w.after(storeRetryInterval, func() { w.restart(n) })
		return
	}
	for _, operation := range [...]string{"read the anchor", "verify the log", "read the registry"} {
		if w.startCrashes.precede(n, operation) {
			w.startCrashes.begin(n)
			w.after(reopenDelay, func() { w.restart(n) })
			return
		}
	}
	if wait := n.startDelay(); wait > 0 {
		w.after(wait, func() { w.restart(n) })
		return
	}
	w.transcripts.checkStored()
	if w.retention != nil && !w.retention.start(n) {
		w.after(reopenDelay, func() { w.restart(n) })
		return
	}
	if w.faultFires(ClockBehind) {
		by := w.extraDelay(ClockBehind, w.between(time.Second, clockJumpMax))
		n.disturbClock(ClockBehind, func(c *clock) { c.setBack(w.now, by) })
		w.noteClockJump(0)
	}
	w.Stats.Points[NodeRestarted]++
	n.start()
}

// stop stops a cell permanently. Its turns no longer wait for answers.
func (c *cell) stop() {
	c.stopped = true
	c.core.Abandon()
}

// handlePanic ends a cell that panicked. The entries it appended will be committed and
// the effects it returned will be performed. After that, its next incarnation boots
// under new epochs.
func (c *cell) handlePanic(planned injectedPanic) {
	n, w := c.n, c.n.w
	blame := c.core.FaultingCall()
	c.stop()
	n.orphanEffects(c.index)
	n.orphanExchanges(c.index)
	recordChange(w, planned.fault, false, c.stopped, "%s: %s", c.self, planned.reason)
	end := n.log.writer.End()
	w.dropRequests(func(l *pendingRequest) bool { return l.cell == c })
	var restart func()
	restart = func() {
		if n.log.released() < end || w.storeRefuses(n) || !n.leaseValid() {
			n.after(2*time.Millisecond, restart)
			return
		}
		n.restartCell(c, blame)
	}
	// The restart delay grows with each panic, as with a supervisor.
	n.after(w.between(time.Millisecond, 20*time.Millisecond)<<min(c.panics, 6), restart)
}

// restartCell boots the next incarnation of a cell that panicked.
func (n *node) restartCell(old *cell, blame actor.CallID) {
	w := n.w
	c := n.newCell(old.index, old.self.Incarnation+1)
	c.strikes, c.panics = addStrike(old.strikes, blame), old.panics+1
	n.cells[c.index] = c
	w.Stats.Points[CellRestarted]++
	w.log.note(w.now, "%s begins", c.self)
	w.emit(history.Event{Kind: history.Restart, At: n.clock.now(w.now), From: c.self})
	for g := range w.claims.groups {
		if cl := &w.claims.groups[g]; w.claims.owner(g) == n && cl.cell == c.index {
			if w.serveUnder(g); cl.adopted {
				cl.releasing = false
				w.announceClaim(g)
			}
		}
	}
	n.adopt()
	var running []actor.EffectID
	for _, d := range n.running {
		if d.cell == c.index {
			running = append(running, d.id)
		}
	}
	for _, x := range n.upstreams.exchanges {
		if x.cell == c.index {
			running = append(running, x.id)
		}
	}
	for _, h := range n.gated {
		if h.cell.index == c.index && isWork(h.effect.Op) {
			running = append(running, h.effect.ID)
		}
	}
	c.boot(running)
	for _, other := range n.cells {
		if other != c {
			other.enqueue(input{orderGroup: orderWorld, in: runtime.CellRestarted{Cell: c.self}})
		}
	}
}

// addStrike counts one more strike of a call.
func addStrike(strikes []runtime.Strike, call actor.CallID) []runtime.Strike {
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
