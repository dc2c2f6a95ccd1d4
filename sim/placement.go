// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/specs/linear"
)

// A node owns its claims for as long as its lease is valid. The store counts the lease
// from the arrival of a renewal. The node counts it from sending the renewal, and
// deducts a margin. A node thus stops before another node can take over.
const (
	leaseTTL    = 3 * time.Second
	leaseMargin = 200 * time.Millisecond
	leaseRenew  = 800 * time.Millisecond
)

// leaseValid reports whether the node may serve, by its own clock.
func (n *node) leaseValid() bool { return n.leaseUntil > n.w.now }

// join adds a starting process to the cluster. The process acquires a lease. It then
// claims the groups that its node still owns, under new epochs.
func (w *Simulation) join(n *node) {
	defer w.setStream(w.setStream(topicLease + StreamID(n.index)))
	n.leaseUntil = w.now.Add(w.leaseDuration(n))
	w.claims.leases[n.index] = w.now.Add(leaseTTL)
	for g := range w.claims.groups {
		if cl := &w.claims.groups[g]; cl.node == n {
			w.claimGroup(g, n, cl.cell)
		}
	}
	n.after(w.between(leaseRenew/2, leaseRenew), func() { w.renewLease(n) })
}

// leaseDuration returns the duration for which the node relies on a renewed lease. The
// node measures it by its own, drifting clock. The result is in virtual time.
func (w *Simulation) leaseDuration(n *node) time.Duration {
	d := leaseTTL - leaseMargin
	return d - d/1_000_000*time.Duration(n.clock.drift)
}

// renewLease is the heartbeat of a node: it renews the lease at the store, claims
// groups without owner, and fetches the owners of all groups.
func (w *Simulation) renewLease(n *node) {
	n.after(leaseRenew, func() { w.renewLease(n) })
	if w.storeRefuses(n) {
		return
	}
	if !n.leaseValid() {
		w.halt(n, "lease")
		return
	}
	sentAt := w.now
	process := n.process
	w.after(w.between(200*time.Microsecond, 4*time.Millisecond), func() {
		if !n.up || n.process != process {
			return
		}
		w.claims.leases[n.index] = w.now.Add(leaseTTL)
		n.leaseUntil = max(n.leaseUntil, sentAt.Add(w.leaseDuration(n)))
		w.adoptGroups(n)
		n.refreshOwners()
	})
}

// adoptGroups claims groups that have no owner, or whose owner's lease has expired, for
// the node n. Random groups are left for a later renewal. The groups of a node with
// corrupt rows stay claimed until that node has restarted.
func (w *Simulation) adoptGroups(n *node) {
	for g := range w.claims.groups {
		cl := &w.claims.groups[g]
		if cl.node != nil && (w.claims.leases[cl.node.index] > w.now || cl.node.log.corruption != nil) || w.entropy.Int(2) == 1 {
			continue
		}
		cell := uint16(w.entropy.Int(len(n.cells)))
		if !n.cells[cell].stopped {
			if cl.node != nil { // the group was not released for a move
				w.Stats.Points[Adopted]++
			}
			w.claimGroup(g, n, cell)
		}
	}
}

// claimGroup claims a group for a cell, and publishes the new owner.
func (w *Simulation) claimGroup(g int, n *node, cell uint16) {
	epoch := w.claims.claim(g, n, cell)
	lo, hi := w.claims.shardRange(g)
	w.log.note(w.now, "claim group %d for %s under epoch %d", g, n.cells[cell].self, epoch)
	w.judge.RecordClaim(w.now, w.groupNames[g], linear.Owner{Cell: n.cells[cell].self, Epoch: epoch})
	w.emit(history.Event{Kind: history.Claim, At: n.clock.now(w.now), From: n.cells[cell].self, Epoch: epoch, ShardLo: lo, ShardHi: hi})
	w.publishOwners()
}

// emitLose records that a cell loses a group.
func (w *Simulation) emitLose(g int) {
	cl := &w.claims.groups[g]
	lo, hi := w.claims.shardRange(g)
	n := cl.node
	w.emit(history.Event{Kind: history.Lose, At: n.clock.now(w.now), From: n.cells[cl.cell].self, Epoch: cl.epoch, ShardLo: lo, ShardHi: hi})
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
	table, bytes := w.claims.owners()
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
		return from.up && from.process == process && cl.node == from && cl.epoch == epoch && cl.releasing
	}
	var flushed func()
	flushed = func() {
		if !unchanged() {
			return
		}
		switch owner := from.cells[cl.cell]; {
		case owner.stopped || owner.ownersVersion < stopped || from.log.released() < from.log.writer.End() || w.storeRefuses(from):
			from.after(5*time.Millisecond, flushed)
		default:
			w.claims.release(g)
			recordChange(w, ShardMove, from, cl.node, "group %d leaves %s.%d, for %s.%d", g, from.id, cl.cell, to.id, cell)
			w.judge.RecordRelease(w.now, w.groupNames[g], from.id)
			w.after(w.between(time.Millisecond, 50*time.Millisecond), func() {
				if cl.node == nil && to.up && to.leaseValid() && !to.cells[cell].stopped && !w.storeRefuses(to) {
					w.Stats.Points[Moved]++
					w.claimGroup(g, to, cell)
				}
			})
		}
	}
	from.after(time.Millisecond, flushed)
}

// halt ends a process that MUST NOT continue: its lease has expired, or its writes are
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
		if n.log.released() < end || w.storeRefuses(n) {
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
	if !n.leaseValid() {
		w.halt(n, "lease")
		return
	}
	c := n.newCell(old.index, old.self.Incarnation+1)
	c.strikes, c.panics = addStrike(old.strikes, blame), old.panics+1
	n.cells[c.index] = c
	w.Stats.Points[CellRestarted]++
	w.log.note(w.now, "%s begins", c.self)
	w.emit(history.Event{Kind: history.Restart, At: n.clock.now(w.now), From: c.self})
	for g := range w.claims.groups {
		if cl := &w.claims.groups[g]; cl.node == n && cl.cell == c.index {
			w.claimGroup(g, n, c.index)
		}
	}
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
