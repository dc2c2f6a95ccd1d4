// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/signals"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

// Repeated asks. An external agent that is invoked again for the same run repeats its asks. An
// ask that its former invocation had made gets the recorded answer. It is matched by its key if
// it has one, else by kind, name and arguments: the k-th among equals, in any order.
//
// A tool call or a call of an agent may have an effect. Until the agent repeats such an ask, a
// different one is not performed, because it may be the same intention in other words. It waits
// for repeatWait, because parallel asks arrive in any order. Then the run is parked and shows
// both to a person.

// repeatWait is the time for which an ask waits for those of the former invocation.
const repeatWait = 2 * time.Second

// repetition is the progress of an external agent that was invoked again. The zero value is
// that of an agent in its first invocation.
type repetition struct {
	recorded int                  // number of asks of the step when the agent was invoked last
	made     map[int]actor.CallID // of those, the ones that the agent has made again, with the signal that did it
	late     map[actor.CallID]int // signals that made asks again in former invocations, with the ask: a copy may still come
	waiting  []waitingSignal
	accepted bool // a person has seen what was performed, so the agent may end without asking for it again
}

// waitingSignal is a signal with an ask that waits for those of the former invocation.
type waitingSignal struct {
	call    actor.Call
	durable bool
	until   actor.Time
}

// isMissing reports whether an ask was recorded, and not made again yet.
func (r *repetition) isMissing(asks []store.Asked, i int) bool {
	_, made := r.made[i]
	return i < r.recorded && !made && asks[i].Added && asks[i].Ask.Kind != actor.AskModel
}

// find returns the first missing ask that is equal to an ask without a key, or -1. A request
// that names no invocation may be a late one of the former invocation, so it also matches an
// equal ask that was repeated since.
func (r *repetition) find(asks []store.Asked, kind actor.AskKind, out *actor.Ask, known bool) int {
	for i := range asks {
		a := &asks[i]
		_, made := r.made[i]
		since := !known && i >= r.recorded && !made && a.Added && a.Ask.Kind != actor.AskModel
		if (since || r.isMissing(asks, i)) && a.CallbackKey.IsZero() && a.Ask.Kind == kind && sameRequest(a.Out(), out) {
			return i
		}
	}
	return -1
}

// findSignal returns the ask that a signal has made again, if this is a retry of the signal. In a former
// invocation it made one too: the retry must not stand for an equal ask of this one.
func (r *repetition) findSignal(asks int, id actor.CallID) (ask int, found bool) {
	for i := range asks {
		if by, ok := r.made[i]; ok && by == id {
			return i, true
		}
	}
	ask, found = r.late[id]
	return ask, found
}

// missingEffect returns the first missing ask that may have had an effect, or may still have
// one, or -1.
func (r *repetition) missingEffect(asks []store.Asked) int {
	for i := range min(r.recorded, len(asks)) {
		if r.isMissing(asks, i) && hasEffect(&asks[i].Ask, asks[i].Out()) && mayHaveActed(&asks[i]) {
			return i
		}
	}
	return -1
}

// due returns the time at which the first waiting signal has waited long enough.
func (r *repetition) due() actor.Time {
	if len(r.waiting) == 0 {
		return actor.Forever
	}
	return r.waiting[0].until
}

// sameRequest reports whether two asks request the same. The timeout of a call does not count,
// because an agent may pass on the time that it has left.
func sameRequest(a, b *actor.Ask) bool {
	return a.Kind == b.Kind && a.Name == b.Name && a.Operation == b.Operation &&
		slices.EqualFunc(a.Parts, b.Parts, func(x, y actor.Part) bool { return x.Media == y.Media && string(x.Bytes) == string(y.Bytes) })
}

// hasEffect reports whether an ask, planned as out, must not be performed twice.
func hasEffect(ask, out *actor.Ask) bool {
	return ask.Name == tools.CallAgent || !out.Idempotent && ask.Name != tools.AgentPoll
}

// mayHaveActed reports whether an ask has had an effect, or may have one.
func mayHaveActed(a *store.Asked) bool {
	switch {
	case a.Open():
		return true
	case a.Await != nil && a.Await.Status != runs.ApprovalStatusApproved:
		return false
	case a.Answer.Refusal == nil:
		return true
	}
	switch reason := a.Answer.Refusal.Reason; reason {
	case actor.Busy, actor.NotFound, actor.Cycle, actor.WaitCycle, actor.Depth, actor.Invalid: // not accepted
		return false
	case actor.Unknown, actor.Deadline, actor.Stopped:
		return true
	}
	return a.IsCall() // the callee may have acted before it failed
}

// repeats matches the asks of an external agent that was invoked again.
type repeats struct {
	cell *Cell
	turn *turn
}

// begin begins another invocation of the turn's agent.
func (r repeats) begin() {
	r.drop(agentEnded)
	before := &r.turn.repetition
	next := repetition{recorded: len(r.turn.run.Last()), late: before.late, accepted: before.accepted}
	for i := range r.turn.run.Last() {
		if by, ok := before.made[i]; ok {
			if next.late == nil {
				next.late = map[actor.CallID]int{}
			}
			next.late[by] = i
		}
	}
	r.turn.repetition = next
}

// interrupt decides about an invocation that outlived its cell. A first invocation continues,
// because all recorded asks are its own. A later one is aborted, and interrupt returns true: the
// cell has lost which recorded asks that invocation had repeated.
func (r repeats) interrupt(i int) bool {
	c, t := r.cell, r.turn
	a := &t.run.Last()[i]
	if !a.Invoking() {
		return false
	}
	if a.Attempt == 1 && a.Retries == 0 || !a.Out().Idempotent {
		t.repetition = repetition{}
		return false
	}
	delete(c.inherited, t.effectID(i))
	c.addEffect(Effect{ID: t.effectID(i), Attempt: a.Attempt, Op: Abort{}})
	return true
}

// isFormer reports whether a request comes from a former invocation, whose process has not noticed
// the restart of the server.
func (r repeats) isFormer(call *actor.Call) bool {
	n := call.Extensions.Invocation()
	for i := range r.turn.run.Last() {
		if r.turn.run.Last()[i].Invoking() {
			return n > 0 && n < r.turn.sends[i].attempt
		}
	}
	return false
}

// take handles a signal with an ask without a key that repeats an ask of the former invocation,
// or has to wait for one. It reports whether it has handled the signal.
func (r repeats) take(call *actor.Call, ask *actor.Ask, durable bool) bool {
	t := r.turn
	asks, again := t.run.Last(), &t.repetition
	if again.recorded == 0 || t.run.Parked != "" {
		return false
	}
	if i, ok := again.findSignal(len(asks), call.ID); ok {
		r.answer(i, call)
		return true
	}
	out := r.plan(ask)
	if call.Idempotency.IsZero() {
		if i := again.find(asks, ask.Kind, out, call.Extensions.Invocation() > 0); i >= 0 {
			r.match(i, call.ID)
			r.answer(i, call)
			r.release()
			return true
		}
	}
	if !hasEffect(ask, out) || again.missingEffect(asks) < 0 {
		return false
	}
	r.wait(call, durable)
	return true
}

// plan returns an ask as the tools plan it, to be compared.
func (r repeats) plan(ask *actor.Ask) *actor.Ask {
	c, t := r.cell, r.turn
	ec := tools.NewContext(t.run.Call, t.run.Clock.Remaining(c.now), dispatcher.Asks{})
	ec.Agents, ec.Callees, ec.Requests = c.callable, t.callees(), t.requests()
	if out, refused := c.tools.Plan(ec, *ask); refused == nil && out.Kind != actor.AskDetach { // answered at once, it was recorded as it came
		return &out
	}
	return ask
}

func (r repeats) match(i int, by actor.CallID) {
	again := &r.turn.repetition
	if again.made == nil {
		again.made = map[int]actor.CallID{}
	}
	again.made[i] = by
}

// matchKey marks the ask that a signal with the given ID added: the agent has repeated it under
// its key.
func (act *activation) matchKey(c *Cell, signal actor.CallID) {
	for _, t := range act.turns {
		for i := range t.run.Last() {
			if t.repetition.isMissing(t.run.Last(), i) && t.run.Last()[i].Callback == signal {
				repeats{c, t}.match(i, signal)
				repeats{c, t}.release()
				return
			}
		}
	}
}

// answer answers a signal with the recorded ask, as the signal that added the ask was
// answered.
func (r repeats) answer(i int, call *actor.Call) {
	c, t := r.cell, r.turn
	switch a := &t.run.Last()[i]; {
	case !isCallback(a):
		reply := succeeded(call, signals.AddedTool{ID: t.toolCallID(i).String()}.Parts())
		t.act.recordOutcome(c, call, &reply, true)
	case !a.Open():
		reply := t.callbackReply(i, a.Answer)
		reply.Call = call.ID
		c.replyTo(call, &reply, t.act.durable)
	case !t.addCallbackWaiter(i, call, c.limits.MaxPendingPerActor):
		c.emit(history.Event{Kind: history.Drop, Actor: t.act.id, Call: call.ID, What: "request", Why: "full"})
		c.waiters.retryLater(c, call.ID)
	}
}

// wait keeps a signal until the agent has made the missing asks, at most for repeatWait.
func (r repeats) wait(call *actor.Call, durable bool) {
	c, again := r.cell, &r.turn.repetition
	if i := slices.IndexFunc(again.waiting, func(w waitingSignal) bool { return w.call.ID == call.ID }); i >= 0 {
		again.waiting[i].call = *call // a retry, perhaps through another cell
		return
	}
	if len(again.waiting) >= c.limits.AsksPerActionMax {
		c.refuse(call, actor.RefuseBusy(actor.ScopeCaller, c.limits.ResendAfter, "%d calls of run %s wait for those of its former invocation",
			len(again.waiting), r.turn.run.Call.ID))
		return
	}
	again.waiting = append(again.waiting, waitingSignal{*call, durable, c.now.Add(repeatWait)})
	c.markDirty(r.turn.act)
}

// release handles the waiting signals once no ask is missing that they wait for.
func (r repeats) release() {
	again := &r.turn.repetition
	if len(again.waiting) == 0 || again.missingEffect(r.turn.run.Last()) >= 0 {
		return
	}
	waiting := again.waiting
	again.waiting = nil
	for i := range waiting {
		r.turn.act.signal(r.cell, &waiting[i].call, waiting[i].durable)
	}
}

// expire parks the run if a signal has waited long enough. The agent's connection is closed:
// its answer would rest on a call that was not made.
func (r repeats) expire() {
	c, t := r.cell, r.turn
	if c.now < t.repetition.due() {
		return
	}
	r.release() // the missing ask may have ended without an effect
	if c.now < t.repetition.due() {
		return
	}
	call := &t.repetition.waiting[0].call
	missing := &t.run.Last()[t.repetition.missingEffect(t.run.Last())]
	before, now := requestTexts(shownRequestOf(missing), shownRequestIn(call))
	detail := startedText(t.act.id.Agent) + " was invoked again and makes another request than before, so neither is performed until a person decides" +
		"\nbefore: " + before + "\nnow: " + now
	t.park(c, detail)
	for i := range t.run.Last() {
		if t.run.Last()[i].Invoking() {
			t.abort(c, i)
		}
	}
	r.drop(func() *actor.Refusal {
		return actor.Refuse(actor.Unknown, "run %s is parked: %s", t.run.Call.ID, detail)
	})
}

// drop refuses the waiting signals.
func (r repeats) drop(refusal func() *actor.Refusal) {
	waiting := r.turn.repetition.waiting
	r.turn.repetition.waiting = nil
	for i := range waiting {
		r.cell.refuse(&waiting[i].call, refusal())
	}
}
