// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
)

func (c *Checker) agentExists(id actor.ID) bool {
	_, ok := c.limits.Agents[id.Agent]
	if !ok {
		c.fail(StartsOnlyKnown, "%s: agent %s does not exist", id, id.Agent)
	}
	return ok
}

// checkChain checks the chain of callers of a call: it contains no cycle and is not longer than
// allowed.
func (c *Checker) checkChain(call actor.CallID, chain []actor.ID, to actor.ID) {
	for i := range chain {
		if containsAgent(chain[i+1:], chain[i], c.limits.Agents[chain[i].Agent].ByActor) {
			c.fail(AcyclicCalls, "call %s has the path %s, with a cycle through %s", call, path(chain, to), chain[i].Agent)
			return
		}
	}
	if containsAgent(chain, to, c.limits.Agents[to.Agent].ByActor) {
		c.fail(AcyclicCalls, "call %s has the path %s, back to %s", call, path(chain, to), to.Agent)
		return
	}
	if len(chain) > c.limits.AgentCallDepthMax {
		c.fail(DepthBounded, "call %s has the path %s: %d calls above it, at most %d allowed", call, path(chain, to), len(chain), c.limits.AgentCallDepthMax)
	}
}

func path(chain []actor.ID, to actor.ID) string {
	return actor.PathString(append(slices.Clone(chain), to))
}

// checkCarriedChain checks that a message carries the same chain as its call had when it was
// made.
func (c *Checker) checkCarriedChain(e *history.Event, k *ask) {
	if !isCallChain(e.Chain, k.parent) {
		c.fail(ChainKept, "call %s carries the chain %s, want that of its caller %s", k.id, actor.PathString(e.Chain), path(k.parent.chain, k.parent.actor.id))
	}
}

// admit handles a call that its callee admits.
func (c *Checker) admit(e *history.Event) {
	a := c.acting(e)
	if a == nil || !c.agentExists(e.Actor) {
		return
	}
	c.requireEntries(a, 1)
	if old := c.runs[e.Call]; old != nil {
		forgot := old.volatile && old.activation != old.actor.activations
		if !forgot && (!old.ended || c.now <= old.forgetAt) {
			c.fail(EffectOncePerAttempt, "%s admits call %s, which %s has admitted before", a.id, e.Call, old.actor.id)
			return
		}
		c.treeOf(e.Root).lost = true
	}
	if k := c.asks[e.Call]; k != nil {
		c.checkCarriedChain(e, k)
		c.checkInherited(e, k)
		if k.to != a.id {
			c.fail(ReplyToCallerOnly, "%s admits call %s, which is addressed to %s", a.id, k.id, k.to)
		}
		if e.Left > k.left {
			c.fail(TimeLeftShrinks, "call %s arrives with %v left, but was made with %v", k.id, e.Left, k.left)
		}
	}
	c.checkChain(e.Call, e.Chain, a.id)
	if e.What != history.Delivered { // an outcome is never refused, and waits outside of the mailbox
		c.checkMailboxAge(e, a)
	}
	if a.turns() > 0 && !c.limits.Agents[a.id.Agent].Interleaved {
		c.Premises.TurnExclusive++
	}
	r := &run{id: e.Call, actor: a, volatile: a.volatile, activation: a.activations, chain: slices.Clone(e.Chain), lane: e.Lane, context: e.Context, left: e.Left, clock: startStopwatch(a.cell.node, e.At), bytes: max(0, e.Bytes-a.queuedBytes)}
	r.delivered = e.What == history.Delivered
	r.tainted = a.volatile && c.deliveredDurable("request", e.Call)
	r.readmitted = c.lostRuns[e.Call] != nil
	if old := c.runs[e.Call]; old != nil && old.volatile && old.ended { // its answer may still be on the way
		r.former = append(old.former, old.outcome)
	}
	r.confirmed = c.formerConfirmed[e.Call]
	delete(c.formerConfirmed, e.Call)
	r.admittedSeq, r.admittedAt = c.seq, c.globalNow()
	c.runs[r.id] = r
	if r.delivered {
		c.detached.admitted(r)
	}
	a.add(r)
	c.recordChange(change{kind: runAdmitted, run: r})
	if a.queued == c.limits.MaxPendingPerActor {
		c.Premises.MailboxBounded++
	}
	switch {
	case a.queued > c.limits.MaxPendingPerActor:
		c.fail(MailboxBounded, "%s has %d messages waiting, at most %d allowed", a.id, a.queued, c.limits.MaxPendingPerActor)
	case e.Bytes > c.limits.MailboxBytesMax && a.queued > 1:
		c.fail(MailboxBounded, "%s has %d bytes waiting in %d messages, at most %d allowed", a.id, e.Bytes, a.queued, c.limits.MailboxBytesMax)
	}
	c.checkMailbox(e, a)
}

func (c *Checker) checkMailbox(e *history.Event, a *actorState) {
	if e.Count != a.queued || e.Bytes != a.queuedBytes {
		c.fail(EventsTellTruth, "%s reports %d messages of %d bytes in its mailbox, want %d of %d", a.id, e.Count, e.Bytes, a.queued, a.queuedBytes)
	}
}

func (c *Checker) checkPending(e *history.Event, a *actorState) {
	if e.Pending != a.pending {
		c.fail(OutstandingBounded, "%s reports %d outstanding calls, want %d", a.id, e.Pending, a.pending)
	}
}

// deliveredDurable reports whether the step received a message about this call under the name
// what. It ignores messages that depend on no log.
func (c *Checker) deliveredDurable(what string, call actor.CallID) bool {
	d := c.delivered
	return d != nil && d.Durable && d.What == what && d.Call == call
}

// start handles a call whose turn begins.
func (c *Checker) start(e *history.Event) {
	a := c.acting(e)
	if a == nil || !c.agentExists(e.Actor) {
		return
	}
	r := c.runs[e.Call]
	if _, cancelled := c.cancelledAt(a, e.Call); cancelled {
		c.fail(CancelledNeverStarts, "%s starts a turn for call %s, which was cancelled before", a.id, e.Call)
		return
	}
	switch {
	case r != nil && r.victim:
		c.fail(RefusedNeverRuns, "%s starts a turn for call %s, which was refused to break a wait cycle", a.id, e.Call)
		return
	case r == nil || r.actor != a || r.ended || r.started:
		c.fail(TurnExclusive, "%s starts a turn for call %s, which is not queued", a.id, e.Call)
		return
	case a.turns() > 0 && !c.limits.Agents[a.id.Agent].Interleaved:
		c.fail(TurnExclusive, "%s starts a turn for call %s during another turn", a.id, e.Call)
		return
	case r.clock.elapsed(e.At) >= r.left+c.slack(&r.clock, a.cell.node):
		c.fail(NoWorkPastDeadline, "%s starts a turn for call %s, whose time of %v has passed", a.id, r.id, r.left)
		return
	}
	c.requireEntries(a, 0)
	if r.outcomeOf != nil {
		c.detached.started(r)
	} else {
		c.checkQueueOrder(a, r)
	}
	r.started, r.unbegun = true, r.parked() // the turn of a parked run records nothing
	r.startedSeq, r.startedAt = c.seq, c.globalNow()
	a.dequeue(r)
	c.recordChange(change{kind: turnStarted, run: r})
	c.checkMailbox(e, a)
}

// ask handles an operation requested by a turn.
func (c *Checker) ask(e *history.Event) {
	a := c.acting(e)
	if a == nil {
		return
	}
	c.requireAskEntry(a, e)
	if c.limits.Clamps(e) {
		c.clamped++
		c.Premises.ClampReported++
	}
	r := c.runs[e.Parent]
	switch {
	case r == nil || r.actor != a || !r.started || r.ended:
		c.fail(Structured, "%s asks for a %s in run %s, which has no turn", a.id, e.What, e.Parent)
		return
	}
	if r.unbegun {
		r.unbegun = false
		c.recordChange(change{kind: turnBegun, run: r})
	}
	switch {
	case e.What == "wait" || e.Why == "approval":
		c.openWait(r, e)
		return
	case e.Call.IsZero() || !c.agentExists(e.Peer):
		return
	case c.asks[e.Call] != nil:
		c.fail(OneAnswer, "%s makes call %s twice", a.id, e.Call)
		return
	}
	if c.limits.Agents[e.Peer.Agent].System {
		c.fail(StartsOnlyKnown, "%s calls the system actor %s", a.id, e.Peer)
		return
	}
	k := &ask{id: e.Call, parent: r, to: e.Peer, root: e.Root, lane: e.Lane, left: e.Left, clock: startStopwatch(a.cell.node, e.At), open: true, lastSent: c.observation, madeSeq: c.seq, madeAt: c.globalNow()}
	c.checkCarriedChain(e, k)
	c.checkChain(e.Call, e.Chain, e.Peer)
	left := r.left - r.clock.elapsed(e.At)
	if e.Left >= min(left, c.limits.AgentCallTimeoutMax) {
		c.Premises.TimeLeftShrinks++
	}
	switch slack := c.slack(&r.clock, a.cell.node); {
	case e.Left <= 0 || left+slack <= 0:
		c.fail(NoWorkPastDeadline, "%s calls %s with %v left while its own turn has %v left", a.id, k.to, e.Left, left)
	case e.Left > left+slack:
		c.fail(TimeLeftShrinks, "%s calls %s with %v left while its own turn has %v left", a.id, k.to, e.Left, left)
	case e.Left > c.limits.AgentCallTimeoutMax:
		c.fail(TimeLeftShrinks, "%s calls %s with %v left, at most %v allowed", a.id, k.to, e.Left, c.limits.AgentCallTimeoutMax)
	}
	c.countCall(e)
	r.asks = append(r.asks, k)
	c.asks[k.id] = k
	a.pending++
	c.recordChange(change{kind: askMade, run: r, ask: k})
	if a.pending == c.limits.AgentConcurrentCallsMax {
		c.Premises.OutstandingBounded++
	}
	if a.pending > c.limits.AgentConcurrentCallsMax {
		c.fail(OutstandingBounded, "%s has %d outstanding calls, at most %d allowed", a.id, a.pending, c.limits.AgentConcurrentCallsMax)
	}
}

// requireAskEntry counts the entry of an ask. All asks of one step of a turn share one entry.
func (c *Checker) requireAskEntry(a *actorState, e *history.Event) {
	entries := 0
	if p := (askPosition{e.Parent, e.Step}); p != c.lastAsk {
		c.lastAsk, entries = p, 1
	}
	c.requireEntries(a, entries)
}

// checkRefusedRepeat checks the refusal of a repeated call: a call that was admitted before gets its
// outcome, unless too many repeats of an open call of a client wait already.
func (c *Checker) checkRefusedRepeat(e *history.Event) {
	r := c.runs[e.Call]
	if e.Attempt <= 1 || r == nil || r.volatile || r.ended && c.now > r.forgetAt || !r.ended && len(r.chain) == 0 && e.Reason == actor.Busy {
		return
	}
	c.fail(ReplyToCallerOnly, "%s refuses attempt %d of call %s, which it has admitted, as %s", e.Actor, e.Attempt, e.Call, e.Reason)
}

// refuse handles a call that was refused by its caller's or its callee's cell.
func (c *Checker) refuse(e *history.Event) {
	c.refusals = append(c.refusals, refusal{e.Call, e.Reason})
	switch e.Reason {
	case actor.Cycle:
		c.Premises.AcyclicCalls++
	case actor.Depth:
		c.Premises.DepthBounded++
	case actor.NotFound:
		c.Premises.StartsOnlyKnown++
	case actor.Deadline:
		c.Premises.NoWorkPastDeadline++
	}
	switch e.Why {
	case "client":
		c.expectResponse(e, e.Actor)
	case "callee":
		if a := c.actors[e.Actor]; a != nil && a.active && e.Reason == actor.Busy && e.Scope == actor.ScopeCallee {
			if _, tooOld := c.mailboxTooOld(a, e.At); tooOld {
				c.Premises.MailboxAgeBounded++
			}
		}
		c.checkRefusedRepeat(e)
	case "caller":
		a := c.acting(e)
		if a == nil {
			return
		}
		c.requireAskEntry(a, e)
		if e.Reason == actor.Budget {
			c.Premises.TreeBudgetKept++
		}
		if e.What == "call" && e.Reason == actor.Busy && e.Scope == actor.ScopeCaller && a.pending < c.limits.AgentConcurrentCallsMax {
			c.fail(OutstandingBounded, "%s is refused a call as one too many, with %d of %d outstanding", a.id, a.pending, c.limits.AgentConcurrentCallsMax)
		}
	}
}

// answer handles the result of an ask.
func (c *Checker) answer(e *history.Event) {
	a := c.acting(e)
	if a == nil {
		return
	}
	c.requireEntries(a, 1)
	if e.Call.IsZero() {
		if r := c.runs[e.Parent]; r != nil {
			if e.What == "wait" {
				c.closeWait(r, e)
			}
			d := c.delivered
			c.recordInput(r, e.What == "wait" && e.Status != actor.Failed && d != nil && d.Durable && d.What == "request" && d.Actor == a.id)
		}
		return
	}
	k := c.asks[e.Call]
	switch {
	case k == nil:
		c.fail(ReplyToCallerOnly, "%s receives an answer to call %s, which it has not made", a.id, e.Call)
		return
	case k.parent.actor != a:
		c.fail(ReplyToCallerOnly, "%s receives an answer to call %s, which %s has made", a.id, e.Call, k.parent.actor.id)
		return
	case !k.open:
		c.fail(OneAnswer, "%s receives a second answer to call %s to %s", a.id, e.Call, k.to)
		return
	}
	if r := c.runs[e.Call]; r != nil && !r.volatile && e.Status != actor.Failed && (!r.ended || r.status == actor.Failed) {
		c.fail(ReplyToCallerOnly, "%s receives the answer to call %s with status %s, which %s has not recorded", a.id, e.Call, e.Status, r.actor.id)
		return
	}
	if r := c.runs[e.Call]; r.outcomeDiffers(e) {
		c.fail(ReplyToCallerOnly, "%s receives an answer to call %s that differs from the outcome recorded by %s", a.id, e.Call, r.actor.id)
		return
	}
	c.recordInput(k.parent, c.deliveredDurable("answered", e.Call))
	c.close(k)
	c.checkPending(e, a)
}

// outcomeDiffers reports whether e carries another outcome than the one in the journal of the
// callee. Repeated requests must get the same outcome. A volatile actor forgets its outcomes, and may have become a
// journaled one since.
func (r *run) outcomeDiffers(e *history.Event) bool {
	return r != nil && r.ended && !r.volatile && e.Status != 0 && e.Status != actor.Failed && e.Digest != r.outcome && !slices.Contains(r.former, e.Digest)
}

// recordInput records whether a run of a volatile actor has read durable data. Effects that
// preceded the input in the same step do not depend on the input. The checker cannot tell those
// effects from later ones. All effects of the step are therefore exempt from the gate until the
// next step.
func (c *Checker) recordInput(r *run, durable bool) {
	switch {
	case !durable || !r.volatile || r.tainted:
	case r.lastActed == c.observation:
		c.tainting = append(c.tainting, r)
	default:
		r.tainted = true
	}
	r.lastActed = c.observation
}

func (c *Checker) close(k *ask) {
	k.open, k.closedSeq = false, c.seq
	k.parent.actor.pending--
	c.recordChange(change{kind: askClosed, run: k.parent, ask: k})
}

// cancel handles a call that its caller cancels.
func (c *Checker) cancel(e *history.Event) {
	a := c.acting(e)
	if a == nil {
		return
	}
	if k := c.asks[e.Call]; k != nil && k.open && k.parent.actor == a {
		c.requireEntries(a, 0)
		c.close(k)
		c.Premises.Structured++
	}
}

// reply handles a call that its callee completes.
func (c *Checker) reply(e *history.Event) {
	a := c.acting(e)
	if a == nil {
		return
	}
	c.requireEntries(a, 1)
	r := c.runs[e.Call]
	if r == nil || r.actor != a || r.ended {
		c.fail(OneAnswer, "%s completes call %s, which is not open there", a.id, e.Call)
		return
	}
	for _, k := range r.asks {
		if k.open {
			c.fail(Structured, "%s completes call %s while its call %s to %s is open", a.id, r.id, k.id, k.to)
			return
		}
	}
	a.remove(r)
	r.endedSeq = c.seq
	r.ended, r.status, r.reason, r.outcome = true, e.Status, e.Reason, e.Digest
	r.forgetAt = c.now.Add(c.limits.RememberDone)
	c.scheduleForget(expiry{at: r.forgetAt, run: r})
	c.recordChange(change{kind: runEnded, run: r})
	c.checkPending(e, a)
}

// expire handles a timer that has fired.
func (c *Checker) expire(e *history.Event) {
	a := c.acting(e)
	if a == nil {
		return
	}
	var w *stopwatch
	var left actor.Duration
	switch r, k := c.runs[e.Call], c.asks[e.Call]; {
	case e.What == "run" && r != nil && r.actor == a && !r.ended:
		w, left = &r.clock, r.left
		if !r.started {
			c.Premises.NoWorkPastDeadline++
		}
	case e.What == "call" && k != nil && k.parent.actor == a && k.open:
		w, left = &k.clock, k.left
		c.expiredCalls = append(c.expiredCalls, k)
	default:
		return
	}
	c.Premises.ExpireOnlyWhenDue++
	if r := c.runs[e.Call]; r != nil && !r.ended {
		c.checkExpiredWaits(r)
	}
	if ran := w.elapsed(e.At); ran < left-c.slack(w, a.cell.node) {
		c.fail(ExpireOnlyWhenDue, "%s lets the %s %s expire after %v not held, want %v", a.id, e.What, e.Call, ran, left)
	}
}

// hold stops a clock until the given time; 0 restarts it.
func (c *Checker) hold(e *history.Event, until actor.Time) {
	a := c.acting(e)
	if a == nil {
		return
	}
	switch r, k := c.runs[e.Call], c.asks[e.Call]; {
	case e.What == "run" && r != nil && r.actor == a && !r.ended:
		c.requireEntries(a, 0)
		c.recordChange(change{kind: runHeld, run: r, clock: r.clock})
		r.clock.hold(a.cell.node, e.At, until)
		a.agingFrom = max(until, e.At)
		c.clockChanged = append(c.clockChanged, r)
		c.waiting = append(c.waiting, r)
	case e.What == "approval" && r != nil && r.actor == a && !r.ended:
		c.requireEntries(a, 1)
		c.closeWait(r, e)
	case e.What == history.Parked && r != nil && r.actor == a && !r.ended:
		c.requireEntries(a, 1)
		markParked(c, r, e)
		r.unbegun = r.unbegun || e.Why == history.Queued
	case e.What == "ask" && k != nil && k.parent.actor == a && k.open:
		c.requireEntries(a, 1)
		if e.N <= k.lastHold {
			c.fail(ExpireOnlyWhenDue, "%s applies Held or Resumed %d of call %s after number %d", a.id, e.N, k.id, k.lastHold)
			return
		}
		c.recordChange(change{kind: askHeld, run: k.parent, ask: k, clock: k.clock, lastHold: k.lastHold})
		if longest := c.limits.WaitTimeoutMax; longest > 0 && until > e.At.Add(longest) {
			c.fail(EveryCallEnds, "%s stops the clock of call %s for %v, at most %v allowed", a.id, k.id, until.Sub(e.At), longest)
		}
		k.clock.hold(a.cell.node, e.At, until)
		k.lastHold = e.N
		c.clockChanged = append(c.clockChanged, k.parent)
	}
}

// checkCancelled checks a call that expired in this step: if it still runs, its caller cancels it.
// While shards have no owner, a message to the callee may have no address.
func (c *Checker) checkCancelled(k *ask) {
	below := c.runs[k.id]
	if below == nil || below.ended || c.unownedShards > 0 || c.now <= c.ownedSince.Add(c.limits.Settle) {
		return
	}
	c.fail(Structured, "call %s of %s to %s expires and is not cancelled", k.id, k.parent.actor.id, k.to)
}

// checkTurnOutlivesCalls checks that no open call of a run can expire later than the run itself.
// While a call is held, the turn that waits for the call must therefore be held too.
func (c *Checker) checkTurnOutlivesCalls(r *run) {
	n := r.actor.cell.node
	for _, k := range r.asks {
		// The clocks of nodes differ, and a clock may have been set back. The two times are then
		// compared with a tolerance.
		slack := max(c.slack(&r.clock, n), c.slack(&k.clock, n))
		if k.open && !r.ended && k.clock.due(k.left) > r.clock.due(r.left).Add(slack) {
			c.fail(TimeLeftShrinks, "call %s of %s to %s may expire %v later than the turn that waits for it",
				k.id, r.actor.id, k.to, k.clock.due(k.left).Sub(r.clock.due(r.left)))
		}
	}
}

// deliver handles a message received by a cell. A step receives at most one.
func (c *Checker) deliver(e *history.Event) {
	c.delivered, c.pendingHold = e, nil
	c.detached.delivered(e)
	if a := c.actors[e.Actor]; a != nil && e.What == "request" {
		if overtook, cancelled := c.cancelledAt(a, e.Call); cancelled && overtook {
			c.Premises.CancelledNeverStarts++
		}
	}
	switch k, r := c.asks[e.Call], c.runs[e.Call]; {
	case e.What == "cancel":
		c.deliverCancel(e)
	case e.What == "answered" && k != nil && !k.open:
		c.Premises.OneAnswer++
	case e.What == "request" && r != nil:
		c.Premises.EffectOncePerAttempt++
		if r.victim {
			c.Premises.RefusedNeverRuns++
		}
	}
	// An answer that depends on no log is a refusal. The refusal was checked when its sender
	// made it: the node of a client only forwards the refusal.
	if e.What == "answered" && !e.Durable {
		c.refusals = append(c.refusals, refusal{e.Call, 0})
	}
	if e.What == "held" || e.What == "resumed" {
		// The first Held or Resumed of a call cannot be outdated: this step MUST apply it.
		if k := c.asks[e.Call]; k != nil && k.open && k.lastHold == 0 && k.parent.actor.id == e.Actor {
			c.pendingHold = k
		}
	}
}

// send handles a message sent by an actor.
func (c *Checker) send(e *history.Event) {
	k := c.asks[e.Call]
	switch e.What {
	case "request":
		if e.Left <= 0 {
			c.fail(NoWorkPastDeadline, "%s sends call %s with no time left", e.Actor, e.Call)
		}
		if k == nil {
			c.detached.sent(e)
			return
		}
		k.lastSent, k.sentUngated = c.observation, k.parent.ungated()
		c.checkCarriedChain(e, k)
		if left := k.left - k.clock.elapsed(e.At); e.Left > left+c.slack(&k.clock, c.node(e.From.Node)) {
			c.fail(TimeLeftShrinks, "%s sends call %s with %v, want at most the %v left", e.Actor, k.id, e.Left, left)
		}
	case "cancel":
		c.expiredCalls = slices.DeleteFunc(c.expiredCalls, func(o *ask) bool { return o == k })
		switch {
		case k == nil:
		case e.Actor == (actor.ID{}):
			k.forwards++
		default:
			k.sentUngated = k.parent.ungated()
		}
	case "answered":
		var caller actor.ID
		r := c.runs[e.Call]
		if k != nil {
			caller = k.parent.actor.id
		} else if r != nil && len(r.chain) > 0 {
			caller = r.chain[len(r.chain)-1]
		} else {
			return
		}
		if r != nil && len(r.chain) > 1 {
			c.Premises.ReplyToCallerOnly++
		}
		if e.Peer != caller {
			c.fail(ReplyToCallerOnly, "%s sends the outcome of call %s to %s; its caller is %s", e.Actor, e.Call, e.Peer, caller)
		}
	}
}

// askClient handles a call of a client at the cell that will respond to it.
func (c *Checker) askClient(e *history.Event) { c.expectResponse(e, e.Peer) }

// expectResponse records that a client expects one more response.
func (c *Checker) expectResponse(e *history.Event, to actor.ID) {
	key := clientKeyOf(e)
	at := c.cell(e.From)
	cl := c.clients[key]
	if cl == nil {
		cl = &client{call: e.Call, cell: at, generation: at.generation}
		c.clients[key] = cl
		c.scheduleForget(expiry{at: c.now.Add(e.Left + c.limits.RememberDone), client: key})
	}
	if !cl.waiting() {
		cl.stale, cl.expected = cl.stale+cl.expected, 0
		cl.cell, cl.generation = at, at.generation
	}
	cl.expected++
	cl.to, cl.askedAt = to, e.At
}
