// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/internal/failpoint"
	"github.com/troupe-run/troupe/store"
)

// request checks a call at its callee. The order of the checks is part of the
// protocol: cancelled, duplicate, poisoned, agent, time left, capacity. The first
// attempt that passes is accepted. Later attempts of the same call are duplicates.
func (c *Cell) request(act *activation, call *actor.Call, durable bool) {
	if act.journal.IsBuried(call.ID) {
		c.refuse(act, call, actor.Refuse(actor.Stopped, "the call was cancelled before it arrived"))
		return
	}
	if c.answerDuplicate(act, call) {
		return
	}
	if c.strikes[call.ID] >= c.limits.StrikesMax {
		c.refusePoisoned(act, call)
		return
	}
	if call.Kind == actor.Signal {
		c.signal(act, call, durable)
		return
	}
	def := c.definitions.current(call.To.Agent)
	if def == nil {
		c.refuse(act, call, actor.AgentNotFound(call.To.Agent))
		return
	}
	if act.durable && !journaled(def) {
		c.becomeVolatile(act)
	}
	if call.Left <= 0 {
		c.refuse(act, call, actor.RefuseDeadline(call.To, call.Operation, call.Left))
		return
	}
	if c.failpoints.On(failpoint.MailboxFull) {
		c.refuse(act, call, actor.RefuseBusy(actor.ScopeCallee, act.mailbox.RetryAfter(c.now), "the mailbox of %s has no room", act.id))
		return
	}
	if act.durable {
		if r := c.residents.admit(act, call, c.limits.ActorBytesMax, c.limits.ResendAfter); r != nil {
			c.refuse(act, call, r)
			return
		}
	}
	interrupted, r := rootAdmission{c}.applyBusyPolicy(act, call)
	if r != nil {
		c.refuse(act, call, r)
		return
	}
	if !act.serial && !call.IsRoot() && !c.canBeginTurn(act) { // the call would wait for the first of several turns to end; probes cannot follow such a wait, so the call is refused
		c.refuse(act, call, actor.RefuseBusy(actor.ScopeCallee, act.mailbox.RetryAfter(c.now), "%s already runs %d turns at once", act.id, len(act.turns)))
		return
	}
	if !c.canBeginTurn(act) || act.mailbox.Count() > 0 {
		if r := act.mailbox.Admit(c.limits, c.now, act.id, actor.SizeOf(call.Parts)); r != nil {
			c.refuse(act, call, r)
			return
		}
	} else if r := (rootAdmission{c}).checkActive(act, call, def, interrupted); r != nil {
		c.refuse(act, call, r)
		return
	}
	for _, run := range interrupted { // the message is accepted in any case
		c.stopRun(act, run, actor.Refuse(actor.Stopped, "interrupted by the message %s", call.ID))
	}
	c.accept(act, call, def, durable)
}

// answerDuplicate answers an attempt of a call that was accepted before, or a
// client's duplicate under the same idempotency key. It reports whether the call
// was such a duplicate.
func (c *Cell) answerDuplicate(act *activation, call *actor.Call) bool {
	reply, n := act.journal.Outcome(call.ID)
	if reply != nil || n > 0 {
		c.replyOutcome(act, call, reply, n)
		return true
	}
	if !act.durable && (call.Attempt > 1 || c.remote) { // within a node a first attempt is delivered once, so the cache need not be searched
		if reply := c.replyCache.find(call.ID, act.epoch); reply != nil {
			c.replyTo(act, call, reply, true)
			return true
		}
	}
	if run := act.journal.Run(call.ID); run != nil {
		c.replyOpen(act, call, run)
		return true
	}
	id, body, ok := act.journal.FindByKey(call.Idempotency)
	if !ok {
		return false
	}
	if body != call.Idempotency.Body {
		c.refuse(act, call, &actor.Refusal{Reason: actor.Invalid, Field: "Idempotency-Key",
			Detail: "the key was used with a different body; use a new key for a new request"})
		return true
	}
	act.matchKey(c, id)
	if act.journal.HasEnded(id) {
		reply, n := act.journal.Outcome(id)
		c.replyOutcome(act, call, reply, n)
		return true
	}
	if t, i := act.findAdded(id); t != nil {
		if !t.addCallbackWaiter(i, call, c.limits.MaxPendingPerActor) {
			c.refuse(act, call, c.tooManyDuplicates(act, c.limits.MaxPendingPerActor))
		}
		return true
	}
	c.joinRun(act, id, call)
	return true
}

// replyOpen reports to a retrying caller that its call is still open. The call of a
// client gets no such report. If the client retries through another cell, that cell
// gets the reply of the run as well.
func (c *Cell) replyOpen(act *activation, call *actor.Call, run *store.Run) {
	if call.IsRoot() {
		if call.Via != run.Call.Via {
			c.joinRun(act, run.Call.ID, call)
		}
		return
	}
	caller, _ := call.Caller()
	durable := act.durableRun(run.Call.ID)
	c.send(actor.EffectID{}, 0, act.id, caller, durable, durable,
		actor.Open{Call: call.ID, N: run.Holds, Until: run.Clock.HeldUntil, For: run.HeldFor(c.now)})
}

func (c *Cell) tooManyDuplicates(act *activation, n int) *actor.Refusal {
	return actor.RefuseBusy(actor.ScopeCallee, act.mailbox.RetryAfter(c.now), "%d duplicates already wait for open runs", n)
}

// joinRun attaches a client's duplicate to the open run that the duplicate repeats.
// The duplicate gets the reply of the run. Exception: if the run is held and the
// client waits at this cell, the client is notified of the hold at once instead.
func (c *Cell) joinRun(act *activation, run actor.CallID, call *actor.Call) {
	if r := act.journal.Run(run); r != nil && r.Clock.Held(c.now) && c.findWaiter(call.ID) != nil {
		c.respond(call.ID, actor.Reply{Call: call.ID, Run: run}, r.Clock.HeldUntil, act.durable)
		return
	}
	if slices.ContainsFunc(act.joined, func(a joinedCall) bool { return a.call == call.ID && a.via == call.Via }) {
		return
	}
	if len(act.joined) >= c.limits.MaxPendingPerActor {
		c.refuse(act, call, c.tooManyDuplicates(act, len(act.joined)))
		return
	}
	act.joined = append(act.joined, joinedCall{run: run, call: call.ID, via: call.Via})
	if c.findWaiter(call.ID) != nil && call.ID != run {
		c.addEffect(Effect{ID: actor.EffectID{Run: call.ID}, Gated: act.durableRun(run), Op: Joined{Call: call.ID, Run: run}})
	}
}

// accept accepts a call. If its turn begins in the same step, its first decisions
// are appended to the log together with the acceptance.
func (c *Cell) accept(act *activation, call *actor.Call, def *actor.Definition, durable bool) {
	if cl := c.currentWaiter; cl != nil && cl.subscribed && cl.call.ID == call.ID && c.publishOnDemand && !act.durable {
		act.subscribed = append(act.subscribed, call.ID)
	}
	r := c.openRun(act, call, def)
	if call.IsRoot() { // the first event of its stream is the client's message
		r.Seq = 1
	}
	act.mailbox.Push(queued(r, c.now))
	if durable && !act.durable {
		act.tainted = append(act.tainted, call.ID)
	}
	if c.emits(history.Admit) {
		c.emit(history.Event{Kind: history.Admit, Actor: act.id, Epoch: act.epoch, Call: call.ID, Parent: call.Parent, Root: call.Root,
			Chain: call.Chain, Left: call.Left, Attempt: call.Attempt, Count: act.mailbox.Count(), Bytes: act.mailbox.Bytes(), Durable: act.durable,
			Lane: call.Lane, Context: history.ContextDigest(call)})
	}
	if turns := holders(act); len(turns) > 0 {
		c.emit(history.Event{Kind: history.Queue, Actor: act.id, Epoch: act.epoch, Call: call.ID, Parent: turns[0].run.Call.ID})
		c.startProbe(act, r)
	}
}

// openRun opens the run of an accepted call, in the journal if the actor has one.
func (c *Cell) openRun(act *activation, call *actor.Call, def *actor.Definition) *store.Run {
	c.definitions.retain(def.Hash)
	if act.durable {
		c.record(act, store.Accepted{Call: *call, At: c.now, Definition: def.Hash}, store.Shown{})
		return act.journal.Run(call.ID)
	}
	var run *store.Run
	if n := len(c.freeRuns); n > 0 {
		run, c.freeRuns = c.freeRuns[n-1], c.freeRuns[:n-1]
	} else {
		run = &store.Run{}
	}
	if call.IsRoot() && c.observed(act, call.ID) {
		c.publishRecord(act, store.Accepted{Call: *call, At: c.now}, store.Shown{})
	}
	act.journal.Open(run, call, c.now, def.Hash)
	c.journalChanged(act)
	return run
}

// refusePoisoned refuses a call permanently, because handling the call has made
// this cell panic too often.
func (c *Cell) refusePoisoned(act *activation, call *actor.Call) {
	reply := actor.Fail(call.ID, poisonRefusal(c.strikes[call.ID]))
	c.recordOutcome(act, call, &reply, true)
}

func poisonRefusal(panics int) *actor.Refusal {
	return actor.Refuse(actor.Unavailable, "the call crashed its cell %d times and is poisoned", panics)
}

// refuse refuses a call without writing an entry. A retry of the call therefore
// passes through all checks again.
func (c *Cell) refuse(act *activation, call *actor.Call, r *actor.Refusal) {
	c.addJitter(r)
	c.emit(history.Event{Kind: history.Refuse, Actor: call.To, Call: call.ID, Parent: call.Parent, Reason: r.Reason, Scope: r.Scope, Detail: r.Detail, Why: "callee", Chain: call.Chain, Attempt: call.Attempt})
	reply := actor.Fail(call.ID, r)
	reply.Budget = call.Budget
	c.replyTo(act, call, &reply, false)
}

// addJitter varies the retry delay of a refusal, if it has one.
func (c *Cell) addJitter(r *actor.Refusal) {
	if r.RetryAfter > 0 {
		r.RetryAfter = actor.Jitter(r.RetryAfter, c.random())
	}
}
