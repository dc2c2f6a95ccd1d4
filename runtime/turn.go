// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/internal/mutant"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// turn is a run that has the turn, or has given it back while it waits.
type turn struct {
	act             *activation
	run             *store.Run
	def             *actor.Definition
	agentTurn       actor.Turn           // nil until it has to go on: after a restart it is made again then
	rawAsks         []actor.Ask          // the last asks with what is not written down, as long as body is there
	sends           []sendState          // beside the last asks: how they were sent
	askBuf          []store.Asked        // of a turn that writes nothing down: room for its first asks
	answers         []actor.Answer       // of such a turn: what the asks it made last are answered with
	callbackWaiters map[int][]actor.Call // by ask: the messages that want the answers of calls that external agents added
	taint           bool                 // took in something that stands in a log
	stateItems      []actor.StateItem    // with its outcome
	ended           bool
}

// sendState is what an activation knows of an ask besides its journal.
type sendState struct {
	attempt uint32
	retryAt actor.Time     // when to send the call again; Forever: not by itself
	backoff actor.Duration // twice as long next time
}

func (t *turn) step() uint32 { return uint32(len(t.run.Steps)) }

func (t *turn) effectID(i int) actor.EffectID {
	return actor.EffectID{Run: t.run.Call.ID, Step: t.step(), Index: uint16(i)}
}

// durable tells whether what the turn does must wait for the log: it is in it
// itself, or has taken in what is.
func (t *turn) durable() bool {
	return t.act.durable || t.taint && !mutant.On("gate-skipped-for-taint")
}

func (t *turn) stop() {
	if t.agentTurn != nil {
		t.agentTurn.Stop()
		t.agentTurn = nil
	}
}

// newTurn is a turn to be filled in: one that is over, or a new one.
func (c *Cell) newTurn() *turn {
	if n := len(c.freeTurns); n > 0 {
		t := c.freeTurns[n-1]
		c.freeTurns = c.freeTurns[:n-1]
		return t
	}
	return &turn{}
}

// isSerial tells whether the agent takes one message at a time.
func (c *Cell) isSerial(id actor.ID) bool {
	def := c.agents[id.Agent]
	return def == nil || def.Turns == actor.Serial
}

// canBeginTurn tells whether the next message may begin its turn.
func (c *Cell) canBeginTurn(act *activation) bool {
	if act.serial {
		return len(act.turns) == 0
	}
	return len(act.turns) < c.limits.MaxPendingPerActor
}

// runReady lets turns go on whose asks are all answered, then begins the next
// message's, until there is nothing to do.
func (c *Cell) runReady(act *activation) {
	for {
		if t := act.readyTurn(); t != nil {
			c.advance(t)
		} else if !c.canBeginTurn(act) || !c.beginTurn(act) {
			return
		}
	}
}

// readyTurn is a turn that can go on.
func (a *activation) readyTurn() *turn {
	for _, t := range a.turns {
		open := slices.ContainsFunc(t.run.Last(), func(a store.Asked) bool { return a.Open() })
		if !open && t.run.Parked == "" {
			return t
		}
	}
	return nil
}

// beginTurn gives the turn to the message that is next.
func (c *Cell) beginTurn(act *activation) bool {
	q, ok := act.mailbox.Pop()
	if !ok {
		return false
	}
	if len(act.turns) == 0 { // the agent may have changed since the actor came
		act.serial = c.isSerial(act.id)
	}
	run := act.journal.Run(q.Call)
	t := c.newTurn()
	*t = turn{act: act, run: run, def: c.definitionOf(run), taint: act.untaint(q.Call), sends: t.sends, askBuf: t.askBuf}
	act.turns = append(act.turns, t)
	call := &run.Call
	if c.observed(act, call.ID) {
		e := runs.Event{Type: runs.RunStarted, Actor: act.id, Kind: call.Kind.String(), Operation: call.Operation, Origin: call.Origin.String(),
			Root: call.Root, Depth: call.Depth(), Chain: call.Chain, Left: run.Clock.Remaining(c.now), Principal: call.Principal, Project: call.Project, Attempt: call.Attempt}
		if !call.IsRoot() {
			e.Parent = call.Parent
		}
		c.publish(act, run, e)
	}
	if c.emits(history.Start) {
		c.emit(history.Event{Kind: history.Start, Actor: act.id, Epoch: act.epoch, Call: call.ID, Parent: call.Parent, Root: call.Root, Left: run.Clock.Remaining(c.now),
			Count: act.mailbox.Count(), Bytes: act.mailbox.Bytes(), Durable: act.durable || t.taint})
	}
	if t.def == nil {
		c.finishTurn(t, failedOutcome(actor.Refuse(actor.NotFound, "agent %s is gone", act.id.Agent)))
	}
	return true
}

// definitionOf is the one that the run began with; if this program does not have
// it any more, the agent's present one, which has to come the same way.
func (c *Cell) definitionOf(run *store.Run) *actor.Definition {
	if def := c.definitions[run.Definition]; def != nil {
		return def
	}
	return c.agents[run.Call.To.Agent]
}

// advance asks the agent what is next: at the beginning, or with the answers
// to its last asks. After a restart the turn first runs again up to here.
func (c *Cell) advance(t *turn) {
	if t.def == nil {
		t.def = c.definitionOf(t.run)
	}
	if t.def == nil { // restored by a cell to which nobody has told the agent
		c.finishTurn(t, failedOutcome(actor.Refuse(actor.NotFound, "agent %s is gone", t.act.id.Agent)))
		return
	}
	if t.run.Started() && t.agentTurn == nil && !c.replay(t) {
		return
	}
	if t.agentTurn == nil {
		c.beginAgent(t)
	}
	given := t.answers
	if given == nil {
		given = collectAnswers(t.run.Last())
	}
	action, err := c.nextAction(t, given)
	switch {
	case err != nil:
		c.finishTurn(t, failedOutcome(refusalOf(err)))
	case action.Done != nil:
		if r := c.checkStateItems(t, action.StateUpdates); r != nil {
			c.finishTurn(t, failedOutcome(r))
			return
		}
		t.stateItems = action.StateUpdates
		c.finishTurn(t, *action.Done)
	case len(action.Asks) == 0:
		c.finishTurn(t, failedOutcome(actor.Refuse(actor.Unavailable, "agent %s neither asks nor ends", t.act.id.Agent)))
	default:
		if r := c.checkAction(t, action); r != nil {
			c.finishTurn(t, failedOutcome(r))
			return
		}
		c.ask(t, action.Asks, action.StateUpdates)
	}
}

// An agent's code runs in open, next and stop, and nowhere else: what panics
// there is blamed on the run.

func (c *Cell) beginAgent(t *turn) {
	c.faultingCall = t.run.Call.ID
	call := t.run.Call
	call.Chain = slices.Clone(call.Chain) // what an agent writes there is no forgery
	t.agentTurn = t.def.Behavior.Begin(actor.Begin{Call: call, At: t.run.At, Left: call.Left, ActorState: t.act.journal.Kept})
	c.faultingCall = actor.CallID{}
}

func (c *Cell) stopAgent(t *turn) {
	c.faultingCall = t.run.Call.ID
	t.stop()
	c.faultingCall = actor.CallID{}
}

func (c *Cell) nextAction(t *turn, answers []actor.Answer) (actor.Action, error) {
	c.faultingCall = t.run.Call.ID
	action, err := t.agentTurn.Next(answers)
	c.faultingCall = actor.CallID{}
	return action, err
}

func collectAnswers(asks []store.Asked) []actor.Answer {
	if len(asks) == 0 {
		return nil
	}
	all := make([]actor.Answer, 0, len(asks))
	for i := range asks {
		if !asks[i].Added {
			all = append(all, *asks[i].Answer)
		}
	}
	return all
}

// replay runs a restored turn through its answers, up to its last asks. If it
// asks something else on the way the run is parked: a person has to look.
func (c *Cell) replay(t *turn) bool {
	c.beginAgent(t)
	var before []actor.Answer
	for i, step := range t.run.Steps {
		asks := make([]actor.Ask, 0, len(step.Asks))
		for j := range step.Asks {
			if !step.Asks[j].Added {
				asks = append(asks, step.Asks[j].Ask)
			}
		}
		action, err := c.nextAction(t, before)
		if err == nil && action.Done != nil {
			err = fmt.Errorf("now ends")
		}
		if err == nil {
			err = actor.SameAsks(asks, action.Asks)
		}
		if err != nil {
			c.park(t, fmt.Sprintf("step %d: the turn %v", i+1, err))
			return false
		}
		t.rawAsks = action.Asks
		if i < len(t.run.Steps)-1 {
			before = collectAnswers(step.Asks)
		}
	}
	return true
}

func (c *Cell) park(t *turn, detail string) {
	c.stopAgent(t)
	why := actor.Refuse(actor.Unavailable, "%s", detail)
	c.publish(t.act, t.run, runs.Event{Type: runs.RunPaused, Name: "parked", Refusal: why})
	c.record(t.act, store.Parked{Run: t.run.Call.ID, At: c.now, Detail: why.Detail})
}

// finishTurn ends a turn: every call it still waits for is given up, the outcome is
// written, and the caller gets it.
func (c *Cell) finishTurn(t *turn, out actor.Outcome) {
	act, run := t.act, t.run
	t.ended = true
	c.stopAgent(t)
	for i := range run.Last() {
		if a := &run.Last()[i]; a.Open() {
			c.cancelAsk(t, i)
			if a.Added {
				c.answerCallbacks(t, i, actor.Answer{Refusal: agentEnded()})
			}
		}
	}
	c.endRun(act, run, out, t.durable())
	if i := slices.Index(act.turns, t); i >= 0 {
		act.turns = slices.Delete(act.turns, i, i+1)
		c.endedTurns = append(c.endedTurns, t)
	}
}

// endRun writes the outcome of an accepted call and sends it to whoever asked.
func (c *Cell) endRun(act *activation, run *store.Run, out actor.Outcome, durable bool) {
	call := &run.Call
	out = out.Fit(c.limits.MessageBytesMax)
	reply := actor.Reply{Call: call.ID, Run: call.ID, Status: out.Status, Parts: out.Parts, Warnings: out.Warnings, Refusal: out.Refusal, Budget: run.Budget}
	if c.observed(act, call.ID) {
		c.publishEnd(act, run, &reply)
	}
	c.tally.countRun(&reply)
	if c.emits(history.Reply) {
		he := history.Event{Kind: history.Reply, Actor: act.id, Epoch: act.epoch, Call: call.ID, Parent: call.Parent, Root: call.Root,
			Status: reply.Status, Pending: act.pending(), Durable: durable, Left: run.Clock.Remaining(c.now), Said: history.SaidIn(reply.Parts, reply.Warnings)}
		if reply.Refusal != nil {
			he.Reason, he.Scope = reply.Refusal.Reason, reply.Refusal.Scope
		}
		c.emit(he)
	}
	to := c.localCaller(call, durable)
	c.recordOutcome(act, call, &reply, to == nil)
	if to != nil {
		c.sendLocalReply(act.id, to, &reply)
		return
	}
	if call.IsRoot() && len(act.joined) > 0 {
		followers := act.joined
		act.joined = slices.DeleteFunc(slices.Clone(followers), func(a joinedCall) bool { return a.run == call.ID })
		for _, a := range followers {
			if a.run == call.ID {
				again, to := reply, *call
				again.Call, to.ID, to.Root, to.Via = a.call, a.call, a.call, a.via
				c.replyTo(act, &to, &again, durable)
			}
		}
	}
	c.replyTo(act, call, &reply, durable)
}

func (c *Cell) publishEnd(act *activation, run *store.Run, reply *actor.Reply) {
	e := runs.Event{Type: runs.RunDone, Status: reply.Status, Warnings: reply.Warnings, Usage: totalUsage(run)}
	switch {
	case reply.Refusal == nil:
		e.Say(reply.Parts)
	case reply.Refusal.Reason == actor.Stopped:
		e = runs.Event{Type: runs.RunCancelled, Refusal: reply.Refusal}
	default:
		e = runs.Event{Type: runs.RunFailed, Refusal: reply.Refusal}
	}
	c.publish(act, run, e)
}

// keyedOutcomeBytesMax is how much an actor that writes nothing down remembers of what
// came under keys.
const keyedOutcomeBytesMax = 4 << 20

// recordOutcome remembers the one outcome of a call, for its repeats: of an actor that writes
// nothing down only if one can come.
func (c *Cell) recordOutcome(act *activation, call *actor.Call, reply *actor.Reply, repeats bool) {
	until := c.now.Add(call.Left + c.limits.RememberDone)
	if run := act.journal.Run(call.ID); run != nil && run.Holds > 0 { // whose caller's clock may stand still for so long yet
		until = until.Add(c.limits.WaitTimeoutMax)
	}
	if !call.Idempotency.IsZero() {
		until = max(until, c.now.Add(c.limits.RememberKey))
	}
	signalled := act.journal.Run(call.ID) == nil
	if !act.durable && call.Idempotency.IsZero() {
		c.closeRun(act, call, reply, until, repeats)
		if signalled {
			c.replyTo(act, call, reply, false)
		}
		return
	}
	ended := store.Ended{Call: call.ID, At: c.now, Reply: *reply, Until: until, Idempotency: call.Idempotency}
	if t := act.turn(call.ID); t != nil && reply.Refusal == nil {
		ended.Keep = t.stateItems
	}
	c.record(act, ended)
	if !act.durable {
		act.journal.Shorten(keyedOutcomeBytesMax)
	}
	if signalled {
		c.replyTo(act, call, reply, act.durable)
	}
}

// closeRun ends the run of a call that no journal tells of. Its outcome is
// remembered for a repeat, unless there cannot be one: who asked has the answer
// from this step, or is a client who waits at this cell, and asks nobody else.
func (c *Cell) closeRun(act *activation, call *actor.Call, reply *actor.Reply, until actor.Time, repeats bool) {
	if run := act.journal.Close(call.ID); run != nil {
		c.endedRuns = append(c.endedRuns, run)
	}
	if i := slices.Index(act.subscribed, call.ID); i >= 0 {
		c.journalChanged(act) // its last words
		act.subscribed = slices.Delete(act.subscribed, i, i+1)
	}
	if repeats && (!call.IsRoot() || call.Kind == actor.OneWay || call.Via != c.self) {
		c.replyCache.add(c.now, reply, act.epoch, until)
	}
	c.journalChanged(act)
}

// replyTo sends an outcome to the caller's actor, or to where a client waits.
func (c *Cell) replyTo(act *activation, call *actor.Call, reply *actor.Reply, durable bool) {
	if call.Kind == actor.OneWay {
		return
	}
	if !call.IsRoot() {
		caller, _ := call.Caller()
		if mutant.On("reply-to-another") {
			caller = call.Chain[0]
		}
		if to := c.localCaller(call, durable); to != nil {
			c.sendLocalReply(call.To, to, reply)
			return
		}
		c.send(actor.EffectID{}, 0, call.To, caller, durable, durable, actor.Answered{Reply: reply.Clone()})
		return
	}
	if call.Via.Node == c.self.Node && call.Via.Cell == c.self.Cell {
		c.respond(call.ID, *reply, 0, durable)
		return
	}
	env := actor.Envelope{From: c.self, ToClient: call.Via, Durable: durable, Body: actor.Answered{Reply: reply.Clone()}}
	c.emit(history.Event{Kind: history.Send, Actor: call.To, Call: call.ID, What: "answered", Durable: durable})
	c.addEffect(Effect{Gated: durable && call.Via.Node != c.self.Node, Op: Send{Node: call.Via.Node, Cell: call.Via.Cell, Envelope: env}})
}

// expireRun ends a run whose own time has run out, in the mailbox or in its turn.
func (c *Cell) expireRun(act *activation, run *store.Run) {
	c.emit(history.Event{Kind: history.Expire, Actor: act.id, Epoch: act.epoch, Call: run.Call.ID, What: "run", Given: run.Call.Left})
	c.stopRun(act, run, actor.RefuseDeadline(run.Call.To, run.Call.Operation, run.Call.Left))
}

// stopRun ends an open run with a refusal, wherever it stands.
func (c *Cell) stopRun(act *activation, run *store.Run, r *actor.Refusal) {
	if t := act.turn(run.Call.ID); t != nil {
		c.finishTurn(t, failedOutcome(r))
		return
	}
	act.mailbox.Remove(run.Call.ID)
	c.endRun(act, run, failedOutcome(r), act.durableRun(run.Call.ID))
	act.untaint(run.Call.ID)
}

func failedOutcome(r *actor.Refusal) actor.Outcome {
	return actor.Outcome{Status: actor.Failed, Refusal: r}
}

// refusalOf is what an agent's error means to its caller.
func refusalOf(err error) *actor.Refusal {
	if r, ok := err.(*actor.Refusal); ok {
		return r
	}
	return actor.Refuse(actor.Unavailable, "%v", err)
}

// restoreTurn is a turn as the journal has it; its agent runs again when it has to go on.
func (c *Cell) restoreTurn(act *activation, run *store.Run) *turn {
	t := &turn{act: act, run: run, def: c.definitionOf(run), sends: make([]sendState, len(run.Last()))}
	for i := range run.Last() {
		t.sends[i] = sendState{attempt: run.Last()[i].Attempt, retryAt: actor.Forever, backoff: c.limits.ResendAfter}
	}
	return t
}

// resume takes up what a restored turn waits for: calls are sent again; tools and
// work are done again if that is safe, and of the rest the outcome is unknown.
func (c *Cell) resume(t *turn) {
	for i := range t.run.Last() {
		a := &t.run.Last()[i]
		if !a.Open() {
			continue
		}
		switch {
		case a.IsCall():
			if !mutant.On("unanswered-call-not-sent-again") {
				c.resendCall(t, i)
			}
		case a.Out().RunsOutsideCell():
			c.resumeEffect(t, i)
		}
		if t.ended {
			return
		}
	}
}

func (c *Cell) resumeEffect(t *turn, i int) {
	a := &t.run.Last()[i]
	switch {
	case c.inherited[t.effectID(i)]: // the world is still at it, or was just now
		delete(c.inherited, t.effectID(i))
		c.inFlight[t.effectID(i)] = t.act.id
		c.addEffect(Effect{ID: t.effectID(i), Attempt: a.Attempt, Op: Await{}})
	case !a.Out().Idempotent && a.Out().Kind != actor.AskModel && !mutant.On("unsafe-effect-done-again"): // asking a model twice costs, and does no other harm
		unknown := actor.Answer{Refusal: actor.Refuse(actor.Unknown,
			"%s %s was under way when its node stopped: it may or may not have happened", a.Out().Kind, a.Out().Name)}
		c.publishResult(t, i, unknown)
		c.answer(t, i, unknown, 0)
		c.cancelAdded(t)
	case t.run.Parked != "": // stays as it is
	case t.agentTurn == nil && a.Ask.NeedsReplay() && (t.def == nil || !c.replay(t)):
	default:
		c.cancelAdded(t)
		attempt := a.Attempt + 1
		if !mutant.On("attempt-not-announced") {
			c.publish(t.act, t.run, runs.Event{Type: runs.Attempt, Attempt: 2 + a.Again, Step: t.step(), Index: uint16(i), Discards: a.Shown})
		}
		c.record(t.act, store.Retried{Run: t.run.Call.ID, Step: t.step(), Index: uint16(i), At: c.now, Attempt: attempt})
		t.sends[i].attempt = attempt
		c.perform(t, i)
	}
}

// clampWait is how long a turn may wait for a person.
func (c *Cell) clampWait(asked time.Duration) time.Duration {
	if asked <= 0 || asked > c.limits.WaitTimeoutMax {
		return c.limits.WaitTimeoutMax
	}
	return asked
}
