// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/internal/failpoint"
	"github.com/troupe-run/troupe/store"
)

// admission decides about the calls that arrive at an actor.
type admission struct {
	cell *Cell
	act  *activation
}

// request checks a call. The order of the checks is part of the
// protocol: cancelled, duplicate, poisoned, agent, time left, capacity. The first
// attempt that passes is accepted. Later attempts of the same call are duplicates.
func (a admission) request(call *actor.Call, durable bool) {
	c, act := a.cell, a.act
	if act.journal.IsBuried(call.ID) {
		c.refuse(call, actor.Refuse(actor.Stopped, "the call was cancelled before it arrived"))
		return
	}
	if a.answerDuplicate(call) {
		return
	}
	if c.strikes[call.ID] >= c.limits.StrikesMax {
		a.refusePoisoned(call)
		return
	}
	if call.Kind == actor.Signal {
		act.signal(c, call, durable)
		return
	}
	def := c.definitions.current(call.To.Agent)
	if def == nil {
		c.refuse(call, actor.AgentNotFound(call.To.Agent))
		return
	}
	if act.durable && !journaled(def) {
		act.becomeVolatile(c)
	}
	if call.Left <= 0 {
		c.refuse(call, actor.RefuseDeadline(call.To, call.Operation, call.Left))
		return
	}
	if c.failpoints.On(failpoint.MailboxFull) {
		c.refuse(call, actor.RefuseBusy(actor.ScopeCallee, act.mailbox.RetryAfter(c.now), "the mailbox of %s has no room", act.id))
		return
	}
	if act.durable {
		if r := c.residents.admit(act, call, c.limits.ActorBytesMax, c.limits.ResendAfter); r != nil {
			c.refuse(call, r)
			return
		}
	}
	interrupted, r := a.applyBusyPolicy(call)
	if r != nil {
		c.refuse(call, r)
		return
	}
	if !act.serial && !call.IsRoot() && !act.canBeginTurn(c) { // the call would wait for the first of several turns to end; probes cannot follow such a wait, so the call is refused
		c.refuse(call, actor.RefuseBusy(actor.ScopeCallee, act.mailbox.RetryAfter(c.now), "%s already runs %d turns at once", act.id, len(act.turns)))
		return
	}
	if !act.canBeginTurn(c) || act.mailbox.Count() > 0 {
		if r := act.mailbox.Admit(c.limits, c.now, act.id, actor.SizeOf(call.Parts)); r != nil {
			c.refuse(call, r)
			return
		}
	} else if r := a.checkActive(call, def, interrupted); r != nil {
		c.refuse(call, r)
		return
	}
	for _, run := range interrupted { // the message is accepted in any case
		act.stopRun(c, run, actor.Refuse(actor.Stopped, "interrupted by the message %s", call.ID))
	}
	a.accept(call, def, durable)
}

// answerDuplicate answers an attempt of a call that was accepted before, or a
// client's duplicate under the same idempotency key. It reports whether the call
// was such a duplicate.
func (a admission) answerDuplicate(call *actor.Call) bool {
	c, act := a.cell, a.act
	reply, n := act.journal.Outcome(call.ID)
	if reply != nil || n > 0 {
		act.replyOutcome(c, call, reply, n)
		return true
	}
	if !act.durable && (call.Attempt > 1 || c.remote) { // within a node a first attempt is delivered once, so the cache need not be searched
		if reply := c.replyCache.find(call.ID, act.epoch); reply != nil {
			c.replyTo(call, reply, true)
			return true
		}
	}
	if run := act.journal.Run(call.ID); run != nil {
		a.replyOpen(call, run)
		return true
	}
	id, body, ok := act.journal.FindByKey(call.Idempotency)
	if !ok {
		return false
	}
	if body != call.Idempotency.Body {
		c.refuse(call, &actor.Refusal{Reason: actor.Invalid, Field: "Idempotency-Key",
			Detail: "the key was used with a different body; use a new key for a new request"})
		return true
	}
	act.matchKey(c, id)
	if act.journal.HasEnded(id) {
		reply, n := act.journal.Outcome(id)
		act.replyOutcome(c, call, reply, n)
		return true
	}
	if t, i := act.findAdded(id); t != nil {
		if !t.addCallbackWaiter(i, call, c.limits.MaxPendingPerActor) {
			c.refuse(call, a.tooManyDuplicates(c.limits.MaxPendingPerActor))
		}
		return true
	}
	a.joinRun(id, call)
	return true
}

// replyOpen reports to a retrying caller that its call is still open. The call of a
// client gets no such report. If the client retries through another cell, that cell
// gets the reply of the run as well.
func (a admission) replyOpen(call *actor.Call, run *store.Run) {
	c, act := a.cell, a.act
	if call.IsRoot() {
		if call.Via != run.Call.Via {
			a.joinRun(run.Call.ID, call)
		}
		return
	}
	caller, _ := call.Caller()
	durable := act.durableRun(run.Call.ID)
	c.send(actor.EffectID{}, 0, act.id, caller, durable, durable,
		actor.Open{Call: call.ID, N: run.Holds, Until: run.Clock.HeldUntil, For: run.HeldFor(c.now)})
}

func (a admission) tooManyDuplicates(n int) *actor.Refusal {
	return actor.RefuseBusy(actor.ScopeCallee, a.act.mailbox.RetryAfter(a.cell.now), "%d duplicates already wait for open runs", n)
}

// joinRun attaches a client's duplicate to the open run that the duplicate repeats.
// The duplicate gets the reply of the run. Exception: if the run is held and the
// client waits at this cell, the client is notified of the hold at once instead.
func (a admission) joinRun(run actor.CallID, call *actor.Call) {
	c, act := a.cell, a.act
	if r := act.journal.Run(run); r != nil && r.Clock.Held(c.now) && c.waiters.find(call.ID) != nil {
		c.respond(call.ID, actor.Reply{Call: call.ID, Run: run}, r.Clock.HeldUntil, act.durable)
		return
	}
	if slices.ContainsFunc(act.joined, func(j joinedCall) bool { return j.call == call.ID && j.via == call.Via }) {
		return
	}
	if len(act.joined) >= c.limits.MaxPendingPerActor {
		c.refuse(call, a.tooManyDuplicates(len(act.joined)))
		return
	}
	act.joined = append(act.joined, joinedCall{run: run, call: call.ID, via: call.Via})
	if c.waiters.find(call.ID) != nil && call.ID != run {
		c.addEffect(Effect{ID: actor.EffectID{Run: call.ID}, Gated: act.durableRun(run), Op: Joined{Call: call.ID, Run: run}})
	}
}

// accept accepts a call. If its turn begins in the same step, its first decisions
// are appended to the log together with the acceptance.
func (a admission) accept(call *actor.Call, def *actor.Definition, durable bool) {
	c, act := a.cell, a.act
	if cl := c.waiters.current; cl != nil && cl.subscribed && cl.call.ID == call.ID && c.publishOnDemand && !act.durable {
		act.subscribed = append(act.subscribed, call.ID)
	}
	r := act.openRun(c, call, def)
	if call.IsRoot() { // the first event of its stream is the client's message
		r.Seq = 1
	}
	message := queued(r, c.now)
	idle := act.canBeginTurn(c) && act.mailbox.Count() == 0
	if idle && !act.durable && !durable && !c.failpoints.On(failpoint.QueueNow) {
		act.mailbox.Bypass(c.now)
		a.emitAdmit(call, 1, message.Bytes)
		a.runAtOnce(r)
		return
	}
	act.mailbox.Push(message)
	if durable && !act.durable {
		act.tainted = append(act.tainted, call.ID)
	}
	a.emitAdmit(call, act.mailbox.Count(), act.mailbox.Bytes())
	if turns := holders(act); len(turns) > 0 {
		c.emit(history.Event{Kind: history.Queue, Actor: act.id, Epoch: act.epoch, Call: call.ID, Parent: turns[0].run.Call.ID})
		waitCycle{c, act}.startProbe(r)
	}
}

// runAtOnce runs the turn of a call that found a volatile actor idle: the call waits in no mailbox, and
// leaves nothing behind if its turn ends at once.
func (a admission) runAtOnce(run *store.Run) {
	for t := a.cell.startTurn(a.act, run); t.ready(); {
		t.advance(a.cell)
	}
}

// emitAdmit emits that a call was accepted, with the messages of the mailbox, this one included.
func (a admission) emitAdmit(call *actor.Call, count, bytes int) {
	if c, act := a.cell, a.act; c.emits(history.Admit) {
		c.emit(history.Event{Kind: history.Admit, Actor: act.id, Epoch: act.epoch, Call: call.ID, Parent: call.Parent, Root: call.Root,
			Chain: call.Chain, Left: call.Left, Attempt: call.Attempt, Count: count, Bytes: bytes, Durable: act.durable,
			Lane: call.Lane, Context: history.ContextDigest(call)})
	}
}

// openRun opens the run of an accepted call, in the journal if the actor has one.
func (act *activation) openRun(c *Cell, call *actor.Call, def *actor.Definition) *store.Run {
	c.definitions.retain(def.Hash)
	if act.durable {
		act.record(c, store.Accepted{Call: *call, At: c.now, Definition: def.Hash}, store.Shown{})
		return act.journal.Run(call.ID)
	}
	var run *store.Run
	if n := len(c.freeRuns); n > 0 {
		run, c.freeRuns = c.freeRuns[n-1], c.freeRuns[:n-1]
	} else {
		run = &store.Run{}
	}
	if call.IsRoot() && act.observed(c, call.ID) {
		act.publishRecord(c, store.Accepted{Call: *call, At: c.now}, store.Shown{})
	}
	act.journal.Open(run, call, c.now, def.Hash)
	act.journalChanged(c)
	return run
}

// refusePoisoned refuses a call permanently, because handling the call has made
// this cell panic too often.
func (a admission) refusePoisoned(call *actor.Call) {
	c, act := a.cell, a.act
	reply := actor.Fail(call.ID, poisonRefusal(c.strikes[call.ID]))
	act.recordOutcome(c, call, &reply, true)
}

func poisonRefusal(panics int) *actor.Refusal {
	return actor.Refuse(actor.Unavailable, "the call crashed its cell %d times and is poisoned", panics)
}

// refuse refuses a call without writing an entry. A retry of the call therefore
// passes through all checks again.
func (c *Cell) refuse(call *actor.Call, r *actor.Refusal) {
	c.addJitter(r)
	c.emit(history.Event{Kind: history.Refuse, Actor: call.To, Call: call.ID, Parent: call.Parent, Reason: r.Reason, Scope: r.Scope, Detail: r.Detail, Why: "callee", Chain: call.Chain, Attempt: call.Attempt})
	reply := actor.Fail(call.ID, r)
	reply.Budget, reply.Purse = call.Budget, call.Purse
	c.replyTo(call, &reply, false)
}

// addJitter varies the retry delay of a refusal, if it has one.
func (v *env) addJitter(r *actor.Refusal) {
	if r.RetryAfter > 0 {
		r.RetryAfter = actor.Jitter(r.RetryAfter, v.random())
	}
}
