// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/contract"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/internal/failpoint"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

// Calls in flight. Three entries record a call: the ask, the end at the callee, and
// the answer at the caller. The call is resent until the answer is recorded. It
// therefore has exactly one outcome, regardless of retries and crashes.

// resendBackoffMax is the maximum delay between two attempts. The delay doubles
// with each attempt.
const resendBackoffMax = time.Minute

// resendCall sends another attempt of an unanswered call, under its id.
func (t *turn) resendCall(c *Cell, i int) {
	s := &t.sends[i]
	s.attempt++
	t.sendRequest(c, i, s.attempt)
	s.backoff = min(2*s.backoff, resendBackoffMax)
}

// sendRequest sends a call and schedules its next attempt. The next attempt is
// needed because the message may be lost between nodes. Within a node it is dropped
// if the callee is being moved.
func (t *turn) sendRequest(c *Cell, i int, attempt uint32) {
	a := &t.run.Last()[i]
	if attempt > 1 || !t.callLocally(c, a) {
		var m actor.Request
		t.run.Child(&m.Call, a, a.Clock.Remaining(c.now), attempt)
		c.send(t.effectID(i), attempt, t.act.id, a.To, t.durable(), t.durable(), m)
	}
	t.sends[i].retryAt = c.now.Add(t.sends[i].backoff)
	if c.failpoints.On(failpoint.AskAgainNow) {
		t.sends[i].retryAt = c.now.Add(time.Millisecond)
	}
}

// resendCalls resends the unanswered calls to the callees that the callback to
// selects.
func (c *Cell) resendCalls(to func(actor.ID) bool) {
	for _, act := range c.actors.ordered() {
		for _, t := range act.turns {
			for i := range t.run.Last() {
				if a := &t.run.Last()[i]; a.Open() && a.IsCall() && to(a.To) {
					t.resendCall(c, i)
					c.markDirty(act)
				}
			}
		}
		mail{c, act}.resend(to)
		accounts{c, act}.resend(to)
	}
	c.waiters.resend(c, to)
}

// resendToCell resends the calls that a restarted cell may have lost.
func (c *Cell) resendToCell(node actor.NodeID, cell uint16) {
	c.resendCalls(func(id actor.ID) bool {
		o, ok := c.ownerOf(id)
		return ok && o.Node == node && o.Cell == cell
	})
}

// answered handles the reply to a call made by this actor. A reply to a call that
// is not open is dropped as late.
func (act *activation) answered(c *Cell, reply *actor.Reply, durable bool) {
	t, i := act.findAsk(reply.Call)
	if t == nil {
		if !(mail{c, act}).answered(reply) && !(accounts{c, act}).granted(reply, durable) {
			act.dropLateAnswer(c, reply)
		}
		return
	}
	if !t.run.Last()[i].Open() {
		act.dropLateAnswer(c, reply)
		return
	}
	t.taint = t.taint || durable
	if reply.Refusal != nil && t.sends[i].attempt > 1 {
		// Another attempt may be in flight and could still be accepted. A
		// refused call MUST NOT run, so it is cancelled.
		t.sendCancel(c, i, actor.Stopped)
	}
	budget, purse := reply.Budget, reply.Purse
	if reply.Refusal != nil && c.mayRunAfter(reply.Refusal, t.sends[i].attempt) {
		budget, purse = 0, nil // the run of the other request could spend them
	}
	if broken := checkCapability(c.callable, t.run.Call.ID, &t.run.Last()[i], reply); broken != nil {
		failed := *reply
		failed.Parts, failed.Warnings, failed.Refusal, failed.Status = nil, nil, broken, actor.Failed
		reply = &failed
	} else if reply.Refusal != nil && reply.Refusal.Reason == actor.Unavailable {
		named := *reply
		named.Refusal = withOtherOwners(c.callable, t, &t.run.Last()[i], reply.Refusal)
		reply = &named
	}
	t.answerAs(c, i, reply.Status, actor.Answer{Parts: reply.Parts, Warnings: reply.Warnings, Refusal: reply.Refusal, Usage: reply.Tree}, budget, purse)
}

// withOtherOwners returns the refusal of an owner of a capability that is not available, with the agents that own it
// too, so that the turn can ask one of them.
func withOtherOwners(agents *tools.Agents, t *turn, a *store.Asked, refusal *actor.Refusal) *actor.Refusal {
	capability := agents.Requested(&a.Ask, a.To.Agent)
	if capability == nil {
		return refusal
	}
	named := *refusal
	if others := agents.OtherOwners(capability.Code, t.act.id.Agent, a.To.Agent, t.requests()); len(others) > 0 {
		named.Detail += "; " + strings.Join(others, ", ") + " own " + capability.Code + " too: name one as target_agent"
	} else {
		named.Detail += "; no other agent owns " + capability.Code
	}
	return named.Fit()
}

// checkCapability refuses the answer of an owner of a capability that breaks the contract, or the schema of the
// result. The refusal is recorded in its place, so a replay does not need the schema; the run of the owner keeps the
// answer.
func checkCapability(agents *tools.Agents, run actor.CallID, a *store.Asked, reply *actor.Reply) *actor.Refusal {
	if reply.Refusal != nil {
		return nil
	}
	capability := agents.Requested(&a.Ask, a.To.Agent)
	if capability == nil {
		return nil
	}
	if _, broken := contract.ReadResponse(reply.Parts, tools.CapabilityRequestID(run, a.Ask.Parts[0].Bytes), capability, agents); broken != nil {
		return broken.Refusal()
	}
	return nil
}

// mayRunAfter reports whether another request of a call may be accepted after one was refused: the
// call was sent twice, or the network between nodes duplicated it.
func (c *Cell) mayRunAfter(r *actor.Refusal, attempt uint32) bool {
	return (r.RetryAfter > 0 || r.Reason == actor.NotFound) && (attempt > 1 || c.remote)
}

func (act *activation) dropLateAnswer(c *Cell, reply *actor.Reply) {
	c.emit(history.Event{Kind: history.Drop, Actor: act.id, Call: reply.Call, What: "answered", Why: "late"})
}

// cancelled ends a call that was cancelled by its caller or by a client. If the call has not
// arrived yet, a tombstone is recorded and a later arrival is refused.
func (act *activation) cancelled(c *Cell, m actor.Cancel) {
	refusal := actor.Refuse(actor.Stopped, "the caller cancelled the call (%s)", m.Reason)
	if m.By != "" {
		refusal = actor.Refuse(actor.Stopped, "%s cancelled the run", m.By)
	}
	switch run := act.journal.Run(m.Call); {
	case run != nil:
		act.stopRun(c, run, refusal)
	case !act.journal.HasEnded(m.Call) && !act.journal.IsBuried(m.Call):
		act.record(c, store.Buried{Call: m.Call, At: c.now, Until: c.now.Add(c.limits.AgentCallTimeoutMax + c.limits.RememberDone)}, store.Shown{})
	}
}

func (t *turn) sendCancel(c *Cell, i int, reason actor.Reason) {
	a := &t.run.Last()[i]
	c.send(t.effectID(i), t.sends[i].attempt, t.act.id, a.To, t.durable(), t.durable(), actor.Cancel{Call: a.Call, Reason: reason})
}

// updateHold pauses or resumes the clock of a call made by this actor, because its
// callee or a run further down is held or resumed. If the argument until is zero,
// the clock is resumed.
func (act *activation) updateHold(c *Cell, env *actor.Envelope, call actor.CallID, n uint64, until actor.Time, hold actor.Hold) {
	t, i := act.findAsk(call)
	if t == nil && (mail{c, act}).held(call, n, until, hold) {
		return
	}
	if t == nil || !t.run.Last()[i].Open() {
		c.drop(env, "late")
		return
	}
	a := &t.run.Last()[i]
	if n <= a.Holds {
		return
	}
	until = min(until, c.now.Add(c.limits.WaitTimeoutMax))
	holdsBefore, wasHeld := t.run.Holds, a.Clock.HeldUntil != 0
	e := history.Event{Kind: history.Resume, Actor: act.id, Epoch: act.epoch, Call: call, Parent: t.run.Call.ID, N: n, What: "ask"}
	var shown store.Shown
	if wasHeld != (until > c.now) { // the clock of this call starts or stops; other calls may already hold the run
		shown.Ask = &store.ShownAsk{Kind: actor.AskCall, Child: call, To: a.To}
	}
	if hold.Reason.AwaitsDecision() && t.run.Call.IsRoot() && hold.Subject != a.HeldFor.Subject && until > c.now { // the person is asked at the root
		shown.Call = &t.run.Call
		if shown.Ask == nil {
			shown.Ask = &store.ShownAsk{Kind: actor.AskCall, Child: call, To: a.To, Held: true}
		}
	}
	if until > c.now {
		act.record(c, store.Held{Run: t.run.Call.ID, Step: t.step(), Index: uint16(i), At: c.now, N: n, Until: until, For: hold}, shown)
		e.Kind, e.Until = history.Hold, until
	} else {
		act.record(c, store.Resumed{Run: t.run.Call.ID, Step: t.step(), Index: uint16(i), At: c.now, N: n}, shown)
	}
	c.emit(e)
	t.propagateHold(c, holdsBefore)
}

// propagateHold reports that the run's own clock was paused or resumed. The
// deadlines of its external agents and the caller's clock follow. A waiting client is notified of a pause, so that its
// request can return early.
func (t *turn) propagateHold(c *Cell, holdsBefore uint64) {
	run, act := t.run, t.act
	t.adjustInvocations(c)
	if run.Holds == holdsBefore {
		return
	}
	until := run.Clock.HeldUntil
	e := history.Event{Kind: history.Resume, Actor: act.id, Epoch: act.epoch, Call: run.Call.ID, N: run.Holds, What: "run"}
	var m actor.Message = actor.Resumed{Call: run.Call.ID, N: run.Holds}
	if until > c.now {
		e.Kind, e.Until = history.Hold, until
		m = actor.Held{Call: run.Call.ID, N: run.Holds, Until: until, For: run.HeldFor(c.now)}
	}
	c.emit(e)
	act.mailbox.SuspendAging(max(until, c.now))
	if caller, ok := run.Call.Caller(); ok {
		c.send(actor.EffectID{}, 0, act.id, caller, t.durable(), t.durable(), m)
		return
	}
	if until > c.now && !isDelivered(&run.Call) {
		t.notifyHeld(c, until)
	}
}
