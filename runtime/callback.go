// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

// Callbacks. An external agent that works on a run may call other agents on behalf
// of the run. To do so it sends the signal CallAgent. The
// resulting call inherits the run's chain, depth, time and budget. The answer to
// the call is the answer to the signal.

// callback adds a call to the step in which the run's external agent was invoked. A
// duplicate of the signal gets the answer to the call that the first one made.
func (t *turn) callback(c *Cell, call *actor.Call, durable bool) {
	run := t.run
	for i := range run.Last() {
		a := &run.Last()[i]
		switch {
		case !isCallback(a) || a.Callback != call.ID:
			continue
		case !a.Open():
			reply := t.callbackReply(i, a.Answer)
			c.replyTo(call, &reply, t.act.durable)
		case !t.addCallbackWaiter(i, call, c.limits.MaxPendingPerActor): // dropped, not refused: the call runs, and the client retries
			c.emit(history.Event{Kind: history.Drop, Actor: t.act.id, Call: call.ID, What: "request", Why: "full"})
			c.waiters.retryLater(c, call.ID)
		}
		return
	}
	ask := callbackAsk(call)
	if (repeats{c, t}).take(call, &ask, durable) {
		return
	}
	if refusal := c.checkEvents(run, eventsPerAsk); refusal != nil {
		c.refuse(call, refusal)
		t.finishTurn(c, failedOutcome(refusal))
		return
	}
	if refusal := t.checkCallback(c); refusal != nil {
		c.refuse(call, refusal)
		return
	}
	if call.Lane > run.Call.Lane {
		ask.Lane = call.Lane
	}
	var a store.Asked
	t.purse = run.Purse
	t.planAsk(c, &a, &ask, false)
	a.Added, a.Callback, a.CallbackKey = true, call.ID, call.Idempotency
	if a.Open() && a.Out().Kind == actor.AskCall {
		t.routeCall(c, &a, t.act.pending(), run.Budget, dispatcher.Share(run.Budget, 1), purses{c, t}.share(2))
	}
	t.taint = t.taint || durable
	i, holds := len(run.Last()), run.Holds
	shown := store.Shown{Call: &run.Call, Step: t.step(), Index: uint16(i)}
	if c.isClamped(&a) {
		shown.Clamped = []uint16{shown.Index}
	}
	t.act.record(c, store.Added{Run: run.Call.ID, At: c.now, Ask: a}, shown)
	t.rawAsks = append(t.rawAsks, ask)
	t.sends = append(t.sends, sendState{attempt: 1, retryAt: actor.Forever, backoff: c.limits.ResendAfter})
	t.addCallbackWaiter(i, call, 1)
	t.emitAsk(c, i, t.act.pending())
	switch added := &run.Last()[i]; {
	case !added.Open():
		t.answerCallbacks(c, i, *added.Answer)
	case added.IsCall():
		t.sendRequest(c, i, 1)
	}
	t.propagateHold(c, holds)
}

// callbackAsk returns the ask that a CallAgent signal requests.
func callbackAsk(call *actor.Call) actor.Ask {
	return actor.Ask{Kind: actor.AskTool, Name: tools.CallAgent, Parts: call.Parts}
}

// callbackBytesMax is the maximum total size in bytes of all callback requests of a
// step. Refused requests count too.
const callbackBytesMax = 16 << 20

// checkCallback returns the reason why no call can be added to the turn, or nil.
func (t *turn) checkCallback(c *Cell) *actor.Refusal {
	invoked, open, bytes := false, 0, 0
	for i := range t.run.Last() {
		a := &t.run.Last()[i]
		if a.Added {
			bytes += actor.SizeOf(a.Ask.Parts)
		}
		invoked = invoked || a.Invoking()
		if a.Added && a.Open() {
			open++
		}
	}
	switch {
	case t.run.Parked != "":
		return actor.Refuse(actor.Unknown, "run %s is parked: %s", t.run.Call.ID, t.run.Parked)
	case !invoked:
		return actor.RefuseNotFound(actor.WhatOpenRun, "run %s has no active external agent: its token is no longer valid", t.run.Call.ID)
	case bytes > callbackBytesMax:
		return actor.Refuse(actor.Budget, "the callbacks of run %s have %d bytes, at most %d allowed", t.run.Call.ID, bytes, callbackBytesMax)
	case len(t.run.Last()) >= store.AsksMax-1 || open >= c.limits.AsksPerActionMax:
		return actor.RefuseBusy(actor.ScopeCaller, c.limits.ResendAfter, "run %s has %d open calls added by its agent, at most %d allowed", t.run.Call.ID, open, c.limits.AsksPerActionMax)
	}
	return nil
}

// addCallbackWaiter registers a signal for the answer of an added call. It returns
// false if the number of other signals that wait for that answer has reached the
// argument limit.
func (t *turn) addCallbackWaiter(i int, call *actor.Call, limit int) bool {
	if t.callbackWaiters == nil {
		t.callbackWaiters = map[int][]actor.Call{}
	}
	for j, o := range t.callbackWaiters[i] {
		if o.ID == call.ID && o.Via == call.Via { // a retry; a copy through another cell waits as well
			t.callbackWaiters[i][j] = *call
			return true
		}
	}
	if len(t.callbackWaiters[i]) >= limit {
		return false
	}
	t.callbackWaiters[i] = append(t.callbackWaiters[i], *call)
	return true
}

// findAdded returns the turn and index of the open call that the signal added. The
// turn is nil if there is no such call.
func (act *activation) findAdded(id actor.CallID) (*turn, int) {
	for _, t := range act.turns {
		for i := range t.run.Last() {
			if ask := &t.run.Last()[i]; isCallback(ask) && ask.Open() && ask.Callback == id {
				return t, i
			}
		}
	}
	return nil, 0
}

// answerCallbacks answers the signal that added a call, and its duplicates, with
// the outcome of that call. The outcome is recorded even if no client waits for it.
func (t *turn) answerCallbacks(c *Cell, i int, answer actor.Answer) {
	a, reply := &t.run.Last()[i], t.callbackReply(i, &answer)
	calls := t.callbackWaiters[i]
	delete(t.callbackWaiters, i)
	first := actor.Call{ID: a.Callback, Kind: actor.OneWay, Idempotency: a.CallbackKey}
	at := slices.IndexFunc(calls, func(call actor.Call) bool { return call.ID == a.Callback })
	if at >= 0 {
		first = calls[at]
	}
	if answer.Refusal != nil && answer.Refusal.Reason == actor.Busy { // the callee did not accept the call: a retry of the signal under the same key MUST make a new call
		first.Idempotency = actor.Idempotency{}
	}
	t.act.recordOutcome(c, &first, &reply, true)
	for j := range calls {
		if j != at {
			duplicate, call := reply, &calls[j]
			duplicate.Call = call.ID
			c.replyTo(call, &duplicate, t.act.durable)
		}
	}
}

// callbackReply returns the reply to the signal that added a call.
func (t *turn) callbackReply(i int, answer *actor.Answer) actor.Reply {
	a := &t.run.Last()[i]
	reply := actor.Reply{Call: a.Callback, Run: a.Call, Status: actor.Succeeded, Parts: answer.Parts, Warnings: answer.Warnings, Refusal: answer.Refusal, Tree: answer.Usage}
	if answer.Refusal != nil {
		reply.Status = actor.Failed
	}
	if a.Call.IsZero() {
		reply.Run = t.run.Call.ID
	}
	return reply
}

// cancelAdded cancels the calls added by external agents once no external agent
// still works on the step.
func (t *turn) cancelAdded(c *Cell) {
	asks := t.run.Last()
	for i := range asks {
		if asks[i].Invoking() {
			return
		}
	}
	for i := range asks {
		if a := &t.run.Last()[i]; a.Added && a.Open() {
			switch {
			case !isCallback(a):
				refusal := agentEnded()
				if !a.Waits() {
					refusal.Detail += ", and the call may have been performed"
				}
				t.cancelAsk(c, i)
				t.answerResult(c, i, actor.Answer{Refusal: refusal})
				continue
			case a.IsCall():
				t.sendCancel(c, i, actor.Stopped)
			default:
				t.abort(c, i)
			}
			t.answer(c, i, actor.Answer{Refusal: agentEnded()}, 0)
		}
	}
}

// adjustInvocations passes the deadlines of external agents to the host after they
// have moved: an agent's clock stops while a call that it added is held.
func (t *turn) adjustInvocations(c *Cell) {
	asks := t.run.Last()
	if n := len(asks); n == 0 || !asks[n-1].Added {
		return
	}
	for i := range asks {
		if due := asks[i].Clock.Due(); asks[i].Invoking() && t.sends[i].due != due {
			t.sends[i].due = due
			c.addEffect(Effect{ID: t.effectID(i), Attempt: t.sends[i].attempt, Op: Adjust{Left: due.Sub(c.now)}})
		}
	}
}

func agentEnded() *actor.Refusal {
	return actor.Refuse(actor.Stopped, "the external agent that made the call has ended")
}

// checkStateItems returns the reason why the actor cannot store the items, or nil.
func (t *turn) checkStateItems(c *Cell, items []actor.StateItem) *actor.Refusal {
	if len(items) == 0 {
		return nil
	}
	if !t.act.durable || !t.act.serial {
		return actor.Refuse(actor.Invalid, "agent %s stores state: that requires a journaled agent with serial turns", t.act.id.Agent)
	}
	if len(items) > actor.StateUpdatesMax {
		return actor.Refuse(actor.Budget, "the action stores %d state items, at most %d allowed", len(items), actor.StateUpdatesMax)
	}
	for i := range items {
		if err := items[i].Check(); err != nil {
			return actor.Refuse(actor.Invalid, "the action stores an invalid state item: %v", err)
		}
	}
	itemsMax, bytesMax := c.limits.StateItemsMax, c.limits.StateBytesMax
	if t.def != nil && t.def.System { // the limits are those of users' agents
		itemsMax, bytesMax = actor.ActorStateItemsMax, actor.ActorStateBytesMax
		if strings.HasPrefix(t.def.Name, actor.MemoryAgent) {
			itemsMax = actor.MemoryItemsMax
		}
	}
	before, after := t.act.journal.StateSizes(items)
	grows := after.Items > before.Items || after.Bytes > before.Bytes // an actor above a lowered limit may still shrink
	if grows && (after.Items > itemsMax || after.Bytes > bytesMax) {
		return actor.Refuse(actor.Budget, "%s would store %d state items of %d bytes, at most %d items of %d bytes allowed", t.act.id, after.Items, after.Bytes, itemsMax, bytesMax)
	}
	return nil
}
