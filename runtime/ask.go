// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

// ask performs the asks of one action: it checks each ask, writes all asks in one
// entry and then sends them. A call within the cell may be answered before the next ask is sent. A refused ask is answered at once, so that the agent
// can react.
func (t *turn) ask(c *Cell, asks []actor.Ask, stateItems []actor.StateItem) {
	act, run := t.act, t.run
	step := t.step() + 1
	planned := t.newAsks(len(asks))
	calls := 0
	t.purse = run.Purse
	for i := range asks {
		a := &planned[i]
		t.planAsk(c, a, &asks[i], !act.durable)
		if a.Open() && a.Out().Kind == actor.AskCall {
			calls++
		}
	}
	budget, pending := t.budget(), act.pending()
	share, purse := dispatcher.Share(budget, calls), purses{c, t}.share(calls)
	for i := range planned {
		a := &planned[i]
		toolCalls{c, t}.seal(a, step, i)
		if a.Open() && a.Out().Kind == actor.AskCall && t.routeCall(c, a, pending, budget, share, purse) {
			pending++
			budget -= min(budget, 1+a.Budget)
		}
		if c.isClamped(a) {
			t.shown.Clamped = append(t.shown.Clamped, uint16(i))
		}
	}
	holds := run.Holds
	t.shown.Step = step
	t.repetition = repetition{}
	shown := t.takeShown()
	if act.durable {
		act.record(c, store.Asking{Run: run.Call.ID, At: c.now, Asks: planned, StateUpdates: stateItems}, shown)
	} else {
		if act.observed(c, run.Call.ID) {
			act.publishRecord(c, store.Asking{Run: run.Call.ID, At: c.now, Asks: planned}, shown)
		}
		for i := range planned {
			if a := &planned[i]; !a.Open() { // refused by a check above
				t.answers[i] = *a.Answer
				a.Answer = &t.answers[i]
			}
		}
		run.AddStep(c.now, planned)
		act.journalChanged(c)
	}
	mail{c, act}.send(t)
	t.rawAsks = asks
	t.sends = t.sends[:0]
	for range asks {
		t.sends = append(t.sends, sendState{attempt: 1, retryAt: actor.Forever, backoff: c.limits.ResendAfter})
	}
	t.emitAsks(c)
	t.propagateHold(c, holds)
	for i := range asks {
		switch a := &run.Last()[i]; {
		case !a.Open():
		case a.IsCall():
			t.sendRequest(c, i, 1)
		default:
			toolCalls{c, t}.begin(i)
		}
	}
}

// isClamped reports whether a call or a wait asked for more time than is allowed.
func (v *env) isClamped(a *store.Asked) bool {
	if a.Out().Kind == actor.AskWait {
		return a.Open() && a.Out().Timeout > v.limits.WaitTimeoutMax
	}
	return a.IsCall() && a.Out().Timeout > v.limits.AgentCallTimeoutMax
}

// newAsks returns space for the asks of the next step. A volatile turn reuses its own
// buffer for the asks of its first step. The answers to its asks are stored in t.answers.
func (t *turn) newAsks(asks int) []store.Asked {
	if t.act.durable {
		return make([]store.Asked, asks)
	}
	t.answers = make([]actor.Answer, asks)
	if len(t.run.Steps) > 0 || asks > inlineAsksMax {
		return make([]store.Asked, asks)
	}
	t.askBuf = slices.Grow(t.askBuf[:0], asks)[:asks]
	return t.askBuf[:asks:asks]
}

// planAsk fills in an ask as the tools plan it: with its deadline or, if the ask is
// refused, with the refusal as its answer. A volatile run is never replayed, so it
// does not keep the agent's original ask.
func (t *turn) planAsk(c *Cell, a *store.Asked, ask *actor.Ask, volatile bool) {
	run := t.run
	*a = store.Asked{Ask: *ask, Attempt: 1, Stamp: c.nextStamp(&run.Call), Added: a.Added}
	left := run.Clock.Remaining(c.now)
	var out actor.Ask
	var answer *tools.Result
	if ask.Kind == actor.AskCall {
		out, answer = t.planCall(c, *ask)
	} else {
		ec := tools.NewContext(run.Call, left, dispatcher.Asks{})
		ec.Agents, ec.Callees, ec.Requests = c.callable, t.callees(), t.requests()
		ec.Result = t.resultOf
		out, answer = c.tools.Plan(ec, *ask)
	}
	if (answer == nil || answer.Refusal == nil) && ask.Kind == actor.AskTool {
		if r := blocked(c, t, ask); r != nil {
			answer = &actor.Answer{Refusal: r}
		}
	}
	if answer == nil && out.Kind == actor.AskDetach {
		answer = mail{c, t.act}.plan(t, &out)
	}
	if answer != nil || ask.Kind == actor.AskCall { // PlanCall has checked the call
	} else if err := out.Check(c.limits.MessageBytesMax); err != nil {
		answer = &actor.Answer{Refusal: actor.Refuse(actor.Invalid, "tool %s planned an invalid ask: %v", ask.Name, err)}
	} else if r := (toolCalls{c, t}).plan(a, &out); r != nil {
		answer = &actor.Answer{Refusal: r}
	} else if out.Kind == actor.AskModel {
		if r := (purses{c, t}).plan(a, &out); r != nil {
			answer = &actor.Answer{Refusal: r}
		}
	}
	if answer != nil {
		limited := answer.Fit(c.limits.MessageBytesMax)
		a.Answer = &limited
		c.measurePlanned(t.act.id.Agent, ask, answer)
		return
	}
	switch {
	case volatile && ask.Kind == actor.AskCall:
		a.Ask = out
	case !ask.Same(&out):
		sent := out
		a.Sent = &sent
	}
	if a.Waits() { // its clock runs to the end of the approval
		return
	}
	switch out.Kind {
	case actor.AskTool, actor.AskWork:
		a.Clock = actor.NewClock(c.now, min(left, orDefault(out.Timeout, c.limits.ToolTimeoutDefault)))
	case actor.AskModel:
		a.Clock = actor.NewClock(c.now, min(left, orDefault(out.Timeout, c.limits.ModelTimeoutDefault)))
	case actor.AskInvoke:
		a.Clock = actor.NewClock(c.now, min(left, orDefault(out.Timeout, c.limits.InvokeTimeoutDefault)))
	case actor.AskSleep:
		a.Clock = actor.NewClock(c.now, out.Timeout)
	case actor.AskWait:
		a.Clock = actor.NewClock(c.now, c.clampWait(out.Timeout))
	}
}

// eventsPerAsk is the number of events of an ask, apart from the pieces of its answer,
// retries and pauses.
const eventsPerAsk = 9

// eventsPerRefused is the number of events of an ask that was refused before it was
// issued.
const eventsPerRefused = 2

// refusedPerActionMax is the maximum number of such asks that are published for one
// action.
const refusedPerActionMax = 64

// checkAction returns a refusal if the action exceeds a limit of its turn, or nil.
func (t *turn) checkAction(c *Cell, action actor.Action) *actor.Refusal {
	if r := t.checkStateItems(c, action.StateUpdates); r != nil {
		return r
	}
	asks := action.Asks
	switch {
	case len(t.run.Steps) >= c.limits.StepsPerTurnMax:
		return actor.Refuse(actor.Budget, "the turn has made %d steps, at most %d allowed", len(t.run.Steps), c.limits.StepsPerTurnMax)
	case t.bytes > c.limits.TurnBytesMax: // answers fit into memory and prompts together, not only one by one
		return actor.Refuse(actor.Budget, "the answers to the asks of the turn have %d bytes, at most %d allowed (state_bytes_max)", t.bytes, c.limits.TurnBytesMax)
	case len(asks) > c.limits.AsksPerActionMax:
		return actor.Refuse(actor.Budget, "the action has %d asks, at most %d allowed", len(asks), c.limits.AsksPerActionMax)
	}
	if r := c.checkEvents(t.run, t.unrecorded+eventsPerAsk*len(asks)+eventsPerRefused*min(len(action.Refused), refusedPerActionMax)); r != nil {
		return r
	}
	for i, a := range asks {
		if err := a.Check(c.limits.MessageBytesMax); err != nil {
			return actor.Refuse(actor.Invalid, "ask %d of the action is invalid: %v", i, err)
		}
	}
	return nil
}

// routeCall checks a call and fills in its callee, id, budget, purse and deadline. It
// returns false if the call was refused.
func (t *turn) routeCall(c *Cell, a *store.Asked, pending int, budget, share uint32, purse *actor.Purse) bool {
	to, err := tools.Target(a.Out().Name, t.act.id)
	invariant.Check(err == nil, "invalid target of a planned call: %v", err)
	def := c.definitions.current(to.Agent)
	left, refusal := dispatcher.Route(c.limits, dispatcher.Caller{
		Self: t.act.id, Chain: t.run.Call.Chain, Left: t.run.Clock.Remaining(c.now), Outstanding: pending, Budget: budget,
	}, to, def, a.Out().Timeout)
	a.To = to
	if refusal != nil {
		c.addJitter(refusal)
		a.Answer = &actor.Answer{Refusal: refusal}
		c.measurePlanned(t.act.id.Agent, &a.Ask, a.Answer)
		return false
	}
	a.Call, a.Budget, a.Purse = c.newCallID(), min(share, budget-1), purses{c, t}.give(purse, def)
	a.Clock = actor.NewClock(c.now, left)
	return true
}

// publishRefused publishes the tools and calls that the agent's own rules did not
// permit, as part of the next step. Their indexes follow those of the issued asks.
// Events that exceed the limit of the run are dropped.
func (t *turn) publishRefused(c *Cell, action actor.Action) {
	for i := range min(len(action.Refused), refusedPerActionMax) {
		r := &action.Refused[i]
		if c.checkEvents(t.run, t.unrecorded+eventsPerRefused) != nil {
			return
		}
		c.measurePlanned(t.act.id.Agent, &r.Ask, &actor.Answer{Refusal: r.Refusal})
		if t.act.observed(c, t.run.Call.ID) {
			a := store.RefusedAsk(&r.Ask, r.Refusal, c.now)
			t.shown.Step, t.shown.Refused = t.step()+1, append(t.shown.Refused, a)
			t.unrecorded += store.RefusedEvents(&a)
		}
	}
}

// emitAsks emits a history event for each ask of the last step, including refused
// asks.
func (t *turn) emitAsks(c *Cell) {
	if !c.emits(history.Ask) && !c.emits(history.Refuse) {
		return
	}
	pending := t.act.pending()
	for i := range t.run.Last() {
		t.emitAsk(c, i, pending)
	}
}

func (t *turn) emitAsk(c *Cell, i, pending int) {
	run := t.run
	a := &run.Last()[i]
	refused := !a.Open() && a.Answer.Refusal != nil
	if refused && !c.emits(history.Refuse) || !refused && !c.emits(history.Ask) {
		return
	}
	e := history.Event{Kind: history.Ask, Actor: t.act.id, Epoch: t.act.epoch, Call: a.Call, Parent: run.Call.ID, Root: run.Call.Root, Peer: a.To,
		What: a.Out().Kind.String(), Step: t.step(), Index: uint16(i), Count: len(run.Last()), Pending: pending, ParentLeft: run.Clock.Remaining(c.now)}
	if a.IsCall() {
		e.Chain, e.Left = run.Call.Path(), a.Clock.Left
		e.Lane, e.Given = a.Ask.Lane, a.Out().Timeout
	} else if a.Open() {
		switch e.Left = a.Clock.Left; {
		case a.Waits():
			e.Why = "approval"
		case a.Out().Kind == actor.AskWait:
			e.Given = a.Out().Timeout
		}
	}
	if refused {
		e.Kind, e.Reason, e.Scope, e.Detail, e.Why = history.Refuse, a.Answer.Refusal.Reason, a.Answer.Refusal.Scope, a.Answer.Refusal.Detail, "caller"
	}
	c.emit(e)
}

// perform starts an effect: a tool, the agent's own work, a model request or an
// external agent.
func (t *turn) perform(c *Cell, i int) {
	a := &t.run.Last()[i]
	e := Effect{ID: t.effectID(i), Attempt: t.sends[i].attempt, Gated: t.durable()}
	left := a.Clock.Remaining(c.now)
	switch out := a.Out(); out.Kind {
	case actor.AskWork:
		e.Op = Work{Name: out.Name, Func: t.rawAsks[i].Work, Left: left}
	case actor.AskModel:
		e.Op = Model{Name: out.Name, AnswerTokens: answerBound(a), Body: t.rawAsks[i].Body, Tools: c.callTools(t.def), Call: t.run.Call, Volatile: !t.act.durable, Left: left}
	case actor.AskInvoke:
		t.sends[i].due = a.Clock.Due()
		t.sends[i].target = targets{c, t}.of(out)
		e.Op = Invoke{Name: out.Name, Target: t.sends[i].target, Idempotent: out.Idempotent, Attempt: e.Attempt, Call: t.run.Call, Messages: t.rawAsks[i].Body, Left: t.sends[i].due.Sub(c.now)}
	default:
		op := Tool{Name: out.Name, Input: out.Parts[0].Bytes, Left: left,
			Context: tools.NewContext(t.run.Call, t.run.Clock.Remaining(c.now), dispatcher.Asks{})}
		if tool, ok := c.tools.Tool(out.Name); ok {
			op.Declared, op.Together = tool.Declared, toolCalls{c, t}.together(tool.Declared, i)
		}
		e.Op = op
	}
	c.inFlight[e.ID] = t.act.id
	c.addEffect(e)
}

// outcome handles the result of an effect.
func (c *Cell) outcome(in Outcome) {
	act := c.actors.find(c.inFlight[in.ID])
	if act != nil {
		t, i := act.turn(in.ID.Run), int(in.ID.Index)
		if t != nil && t.step() == in.ID.Step && t.run.Last()[i].Open() && t.sends[i].attempt == in.Attempt {
			delete(c.inFlight, in.ID)
			if (parking{c}).missesModel(t, &in.Answer) || (targets{c, t}).moves(i, &in.Answer) || (repeats{c, t}).parksEnd(i, &in.Answer) {
				return
			}
			answer := in.Answer.Fit(c.limits.MessageBytesMax)
			if r := answer.Refusal; r != nil && strings.HasPrefix(r.Field, actor.FallbackField) && t.run.Last()[i].Attempt > 1 { // an earlier attempt may have been performed
				alone := *r
				alone.Field, answer.Refusal = "", &alone
			}
			if t.run.Last()[i].Out().Kind == actor.AskModel {
				answer = t.resolveTargets(c, answer)
			}
			answer.Usage = actor.Usage{}
			if t.run.Last()[i].Out().Streams() && !slices.ContainsFunc(t.run.Last(), func(a store.Asked) bool { return isAddedModel(&a) }) {
				answer.Usage = usageOf(completionOf(answer)) // an agent whose model requests are counted may claim the same tokens
			}
			if t.run.Last()[i].Invoking() && answer.Usage != (actor.Usage{}) {
				c.measure(Measure{Kind: MeasureClaim, Name: act.id.Agent, Usage: answer.Usage})
			}
			t.answerResult(c, i, answer)
			t.cancelAdded(c)
			return
		}
	}
	c.emit(history.Event{Kind: history.Drop, Call: in.ID.Run, What: "outcome", Why: "late", Step: in.ID.Step, Index: in.ID.Index, Attempt: in.Attempt})
}

// answerResult gives a tool, work, a model or an external agent its only answer.
func (t *turn) answerResult(c *Cell, i int, answer actor.Answer) {
	userTexts{c}.end(t, i, &answer)
	a := &t.run.Last()[i]
	t.answerShown(c, i, answer, 0, unspent(a, &answer), store.ShownAsk{Kind: a.Out().Kind, Name: a.AnsweredBy(&answer), Took: store.Elapsed(a, c.now)})
}

// answer gives an ask its only answer. The turn continues once all asks of its step
// are answered.
func (t *turn) answer(c *Cell, i int, answer actor.Answer, budget uint32) {
	status := actor.Succeeded
	if answer.Refusal != nil {
		status = actor.Failed
	}
	t.answerAs(c, i, status, answer, budget, nil)
}

// answerAs is answer with the status of a reply. Only events have it: an agent sees the
// warnings of an incomplete answer.
func (t *turn) answerAs(c *Cell, i int, status actor.Status, answer actor.Answer, budget uint32, purse *actor.Purse) {
	a := &t.run.Last()[i]
	var shown store.ShownAsk
	switch {
	case a.IsCall():
		shown = store.ShownAsk{Kind: actor.AskCall, Child: a.Call, To: a.To, Status: status, Took: store.Elapsed(a, c.now), Held: a.Clock.HeldUntil != 0}
	case a.Ask.Kind == actor.AskWait && answer.Refusal != nil:
		shown = store.ShownAsk{Kind: actor.AskWait, Name: a.Ask.Name}
	}
	t.answerShown(c, i, answer, budget, purse, shown)
}

// answerShown is answer with the part of the answer's events that its record lacks. There
// are none if it has no kind.
func (t *turn) answerShown(c *Cell, i int, answer actor.Answer, budget uint32, purse *actor.Purse, ask store.ShownAsk) {
	a := &t.run.Last()[i]
	holds := t.run.Holds
	c.measureAnswer(a, answer.Refusal)
	var shown store.Shown
	if ask.Kind != 0 && t.act.observed(c, t.run.Call.ID) {
		shown.Ask = new(store.ShownAsk)
		*shown.Ask = ask
	}
	if t.act.durable {
		t.act.record(c, store.Answered{Run: t.run.Call.ID, Step: t.step(), Index: uint16(i), At: c.now, Answer: answer, Budget: budget, Purse: purse}, shown)
	} else {
		if shown.Ask != nil {
			t.act.publishRecord(c, store.Answered{Run: t.run.Call.ID, Step: t.step(), Index: uint16(i), At: c.now, Answer: answer}, shown)
		}
		t.answerInPlace(c, i, answer, budget, purse)
	}
	if c.emits(history.Answer) {
		status := ask.Status
		switch {
		case status != 0:
		case answer.Refusal != nil:
			status = actor.Failed
		default:
			status = actor.Succeeded
		}
		e := history.Event{Kind: history.Answer, Actor: t.act.id, Epoch: t.act.epoch, Call: a.Call, Parent: t.run.Call.ID, Root: t.run.Call.Root, Peer: a.To,
			What: a.Out().Kind.String(), Step: t.step(), Index: uint16(i), Status: status, Pending: t.act.pending()}
		if answer.Refusal != nil {
			e.Reason, e.Scope = answer.Refusal.Reason, answer.Refusal.Scope
		}
		if a.IsCall() {
			e.Digest = history.OutcomeDigest(answer.Parts, answer.Warnings)
		}
		c.emit(e)
	}
	t.propagateHold(c, holds)
	if isCallback(a) {
		t.answerCallbacks(c, i, answer)
	}
}

// answerInPlace answers an ask of a volatile turn in the slice that its agent
// reads.
func (t *turn) answerInPlace(c *Cell, i int, answer actor.Answer, budget uint32, purse *actor.Purse) {
	var slot *actor.Answer
	if i < len(t.answers) {
		slot = &t.answers[i]
	} else {
		slot = &actor.Answer{}
	}
	*slot = shortened(&t.run.Last()[i], answer)
	t.run.SetAnswer(c.now, &t.run.Last()[i], slot, budget, purse)
	t.act.journalChanged(c)
}

// expireAsk answers an ask whose deadline has passed.
func (t *turn) expireAsk(c *Cell, i int) {
	a := &t.run.Last()[i]
	if a.Waits() {
		toolCalls{c, t}.expired(i)
		return
	}
	c.emit(history.Event{Kind: history.Expire, Actor: t.act.id, Epoch: t.act.epoch, Call: a.Call, Parent: t.run.Call.ID, What: a.Out().Kind.String(),
		Step: t.step(), Index: uint16(i)})
	switch a.Out().Kind {
	case actor.AskSleep:
		t.answer(c, i, actor.Answer{}, 0)
	case actor.AskWait:
		t.answer(c, i, actor.Answer{Refusal: actor.RefuseDeadline(t.act.id, "wait "+a.Ask.Name, c.clampWait(a.Ask.Timeout))}, 0)
	default:
		refusal := actor.RefuseDeadline(t.act.id, a.Out().Name, a.Out().Timeout)
		if a.IsCall() {
			refusal = actor.RefuseDeadline(a.To, a.Out().Operation, a.Clock.Left)
			t.sendCancel(c, i, actor.Deadline)
		} else {
			t.abort(c, i)
			if a.Verdict.Decision != 0 && !a.Out().Idempotent {
				refusal.Detail += "; it may have been performed"
			}
			t.answerResult(c, i, actor.Answer{Refusal: refusal})
			t.cancelAdded(c)
			return
		}
		t.answer(c, i, actor.Answer{Refusal: refusal}, 0)
		t.cancelAdded(c)
	}
}

// cancelAsk cancels an open ask of an ended turn. A call is cancelled with all
// calls below it. An effect is aborted.
func (t *turn) cancelAsk(c *Cell, i int) {
	switch a := &t.run.Last()[i]; phaseOf(a) {
	case phaseCall:
		t.sendCancel(c, i, actor.Stopped)
		c.measureCall(a)
		c.emit(history.Event{Kind: history.Cancel, Actor: t.act.id, Epoch: t.act.epoch, Call: a.Call, Parent: t.run.Call.ID, Peer: a.To})
	case phaseDecision:
		toolCalls{c, t}.expire(i, "the run has ended")
	default:
		t.abort(c, i)
	}
}

func (t *turn) abort(c *Cell, i int) {
	if phaseOf(&t.run.Last()[i]) == phaseEffect {
		delete(c.inFlight, t.effectID(i))
		c.addEffect(Effect{ID: t.effectID(i), Attempt: t.sends[i].attempt, Op: Abort{}})
	}
}

// nextStamp returns a stamp later than the run's stamp and all stamps that this
// cell gave before. Calls of one tree are ordered by stamp even if the clocks of
// their nodes differ.
func (v *env) nextStamp(run *actor.Call) actor.Time {
	v.lastStamp = max(v.now, v.lastStamp+1, run.Stamp+1)
	return v.lastStamp
}

func orDefault(d, fallback actor.Duration) actor.Duration {
	if d > 0 {
		return d
	}
	return fallback
}
