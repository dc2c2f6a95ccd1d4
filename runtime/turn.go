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
	act   *activation
	run   *store.Run
	def   *actor.Definition
	body  actor.Turn           // nil until it has to go on: after a restart it is made again then
	work  []actor.Ask          // the last asks with what is not written down, as long as body is there
	sent  []sent               // beside the last asks: how they were sent
	first []store.Asked        // of a turn that writes nothing down: room for its first asks
	given []actor.Answer       // of such a turn: what the asks it made last are answered with
	added map[int][]actor.Call // by ask: the messages that want the answers of calls that external agents added
	taint bool                 // took in something that stands in a log
	keep  []actor.StateItem    // with its outcome
	over  bool
}

// sent is what an activation knows of an ask besides its journal.
type sent struct {
	attempt uint32
	again   actor.Time     // when to send the call again; Forever: not by itself
	wait    actor.Duration // twice as long next time
}

func (t *turn) step() uint32 { return uint32(len(t.run.Steps)) }

func (t *turn) effect(i int) actor.EffectID {
	return actor.EffectID{Run: t.run.Call.ID, Step: t.step(), Index: uint16(i)}
}

// durable tells whether what the turn does must wait for the log: it is in it
// itself, or has taken in what is.
func (t *turn) durable() bool {
	return t.act.durable || t.taint && !mutant.On("gate-skipped-for-taint")
}

func (t *turn) stop() {
	if t.body != nil {
		t.body.Stop()
		t.body = nil
	}
}

// newTurn is a turn to be filled in: one that is over, or a new one.
func (c *Cell) newTurn() *turn {
	if n := len(c.turns); n > 0 {
		t := c.turns[n-1]
		c.turns = c.turns[:n-1]
		return t
	}
	return &turn{}
}

// serial tells whether the agent takes one message at a time.
func (c *Cell) serial(id actor.ID) bool {
	def := c.agents[id.Agent]
	return def == nil || def.Turns == actor.Serial
}

// free tells whether the next message may begin its turn.
func (c *Cell) free(act *activation) bool {
	if act.serial {
		return len(act.turns) == 0
	}
	return len(act.turns) < c.limits.MaxPendingPerActor
}

// pump lets turns go on whose asks are all answered, then begins the next
// message's, until there is nothing to do.
func (c *Cell) pump(act *activation) {
	for {
		if t := act.answeredTurn(); t != nil {
			c.goForward(t)
		} else if !c.free(act) || !c.begin(act) {
			return
		}
	}
}

// answeredTurn is a turn that can go on.
func (a *activation) answeredTurn() *turn {
	for _, t := range a.turns {
		open := slices.ContainsFunc(t.run.Last(), func(a store.Asked) bool { return a.Open() })
		if !open && t.run.Parked == "" {
			return t
		}
	}
	return nil
}

// begin gives the turn to the message that is next.
func (c *Cell) begin(act *activation) bool {
	q, ok := act.mailbox.Pop()
	if !ok {
		return false
	}
	if len(act.turns) == 0 { // the agent may have changed since the actor came
		act.serial = c.serial(act.id)
	}
	run := act.journal.Run(q.Call)
	t := c.newTurn()
	*t = turn{act: act, run: run, def: c.definition(run), taint: act.untaint(q.Call), sent: t.sent, first: t.first}
	act.turns = append(act.turns, t)
	call := &run.Call
	if c.tells(act, call.ID) {
		e := runs.Event{Type: runs.RunStarted, Actor: act.id, Kind: call.Kind.String(), Operation: call.Operation, Origin: call.Origin.String(),
			Root: call.Root, Depth: call.Depth(), Chain: call.Chain, Left: run.Clock.Remaining(c.now), Principal: call.Principal, Project: call.Project, Attempt: call.Attempt}
		if !call.IsRoot() {
			e.Parent = call.Parent
		}
		c.tell(act, run, e)
	}
	if c.hears(history.Start) {
		c.event(history.Event{Kind: history.Start, Actor: act.id, Epoch: act.epoch, Call: call.ID, Parent: call.Parent, Root: call.Root, Left: run.Clock.Remaining(c.now),
			Count: act.mailbox.Count(), Bytes: act.mailbox.Bytes(), Durable: act.durable || t.taint})
	}
	if t.def == nil {
		c.finish(t, failed(actor.Refuse(actor.NotFound, "agent %s is gone", act.id.Agent)))
	}
	return true
}

// definition is the one that the run began with; if this program does not have
// it any more, the agent's present one, which has to come the same way.
func (c *Cell) definition(run *store.Run) *actor.Definition {
	if def := c.known[run.Definition]; def != nil {
		return def
	}
	return c.agents[run.Call.To.Agent]
}

// goForward asks the agent what is next: at the beginning, or with the answers
// to its last asks. After a restart the turn first runs again up to here.
func (c *Cell) goForward(t *turn) {
	if t.def == nil {
		t.def = c.definition(t.run)
	}
	if t.def == nil { // restored by a cell to which nobody has told the agent
		c.finish(t, failed(actor.Refuse(actor.NotFound, "agent %s is gone", t.act.id.Agent)))
		return
	}
	if t.run.Started() && t.body == nil && !c.again(t) {
		return
	}
	if t.body == nil {
		c.open(t)
	}
	given := t.given
	if given == nil {
		given = answers(t.run.Last())
	}
	action, err := c.next(t, given)
	switch {
	case err != nil:
		c.finish(t, failed(refusalOf(err)))
	case action.Done != nil:
		if r := c.keepsTooMuch(t, action.StateUpdates); r != nil {
			c.finish(t, failed(r))
			return
		}
		t.keep = action.StateUpdates
		c.finish(t, *action.Done)
	case len(action.Asks) == 0:
		c.finish(t, failed(actor.Refuse(actor.Unavailable, "agent %s neither asks nor ends", t.act.id.Agent)))
	default:
		if r := c.tooMuch(t, action); r != nil {
			c.finish(t, failed(r))
			return
		}
		c.ask(t, action.Asks, action.StateUpdates)
	}
}

// An agent's code runs in open, next and stop, and nowhere else: what panics
// there is blamed on the run.

func (c *Cell) open(t *turn) {
	c.blame = t.run.Call.ID
	call := t.run.Call
	call.Chain = slices.Clone(call.Chain) // what an agent writes there is no forgery
	t.body = t.def.Behavior.Begin(actor.Begin{Call: call, At: t.run.At, Left: call.Left, ActorState: t.act.journal.Kept})
	c.blame = actor.CallID{}
}

func (c *Cell) stop(t *turn) {
	c.blame = t.run.Call.ID
	t.stop()
	c.blame = actor.CallID{}
}

func (c *Cell) next(t *turn, answers []actor.Answer) (actor.Action, error) {
	c.blame = t.run.Call.ID
	action, err := t.body.Next(answers)
	c.blame = actor.CallID{}
	return action, err
}

func answers(asks []store.Asked) []actor.Answer {
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

// again runs a restored turn through its answers, up to its last asks. If it
// asks something else on the way the run is parked: a person has to look.
func (c *Cell) again(t *turn) bool {
	c.open(t)
	var before []actor.Answer
	for i, step := range t.run.Steps {
		asks := make([]actor.Ask, 0, len(step.Asks))
		for j := range step.Asks {
			if !step.Asks[j].Added {
				asks = append(asks, step.Asks[j].Ask)
			}
		}
		action, err := c.next(t, before)
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
		t.work = action.Asks
		if i < len(t.run.Steps)-1 {
			before = answers(step.Asks)
		}
	}
	return true
}

func (c *Cell) park(t *turn, detail string) {
	c.stop(t)
	why := actor.Refuse(actor.Unavailable, "%s", detail)
	c.tell(t.act, t.run, runs.Event{Type: runs.RunPaused, Name: "parked", Refusal: why})
	c.record(t.act, store.Parked{Run: t.run.Call.ID, At: c.now, Detail: why.Detail})
}

// finish ends a turn: every call it still waits for is given up, the outcome is
// written, and the caller gets it.
func (c *Cell) finish(t *turn, out actor.Outcome) {
	act, run := t.act, t.run
	t.over = true
	c.stop(t)
	for i := range run.Last() {
		if a := &run.Last()[i]; a.Open() {
			c.giveUp(t, i)
			if a.Added {
				c.answerAdded(t, i, actor.Answer{Refusal: agentEnded()})
			}
		}
	}
	c.endRun(act, run, out, t.durable())
	if i := slices.Index(act.turns, t); i >= 0 {
		act.turns = slices.Delete(act.turns, i, i+1)
		c.ended = append(c.ended, t)
	}
}

// endRun writes the outcome of an accepted call and sends it to whoever asked.
func (c *Cell) endRun(act *activation, run *store.Run, out actor.Outcome, durable bool) {
	call := &run.Call
	out = out.Fit(c.limits.MessageBytesMax)
	reply := actor.Reply{Call: call.ID, Run: call.ID, Status: out.Status, Parts: out.Parts, Warnings: out.Warnings, Refusal: out.Refusal, Budget: run.Budget}
	if c.tells(act, call.ID) {
		c.toldEnd(act, run, &reply)
	}
	c.tally.ended(&reply)
	if c.hears(history.Reply) {
		he := history.Event{Kind: history.Reply, Actor: act.id, Epoch: act.epoch, Call: call.ID, Parent: call.Parent, Root: call.Root,
			Status: reply.Status, Pending: act.pending(), Durable: durable, Left: run.Clock.Remaining(c.now), Said: history.SaidIn(reply.Parts, reply.Warnings)}
		if reply.Refusal != nil {
			he.Reason, he.Scope = reply.Refusal.Reason, reply.Refusal.Scope
		}
		c.event(he)
	}
	to := c.waits(call, durable)
	c.end(act, call, &reply, to == nil)
	if to != nil {
		c.answerInside(act.id, to, &reply)
		return
	}
	if call.IsRoot() && len(act.aliases) > 0 {
		followers := act.aliases
		act.aliases = slices.DeleteFunc(slices.Clone(followers), func(a alias) bool { return a.run == call.ID })
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

func (c *Cell) toldEnd(act *activation, run *store.Run, reply *actor.Reply) {
	e := runs.Event{Type: runs.RunDone, Status: reply.Status, Warnings: reply.Warnings, Usage: usage(run)}
	switch {
	case reply.Refusal == nil:
		e.Say(reply.Parts)
	case reply.Refusal.Reason == actor.Stopped:
		e = runs.Event{Type: runs.RunCancelled, Refusal: reply.Refusal}
	default:
		e = runs.Event{Type: runs.RunFailed, Refusal: reply.Refusal}
	}
	c.tell(act, run, e)
}

// promisedBytesMax is how much an actor that writes nothing down remembers of what
// came under keys.
const promisedBytesMax = 4 << 20

// end remembers the one outcome of a call, for its repeats: of an actor that writes
// nothing down only if one can come.
func (c *Cell) end(act *activation, call *actor.Call, reply *actor.Reply, repeats bool) {
	until := c.now.Add(call.Left + c.limits.RememberDone)
	if run := act.journal.Run(call.ID); run != nil && run.Holds > 0 { // whose caller's clock may stand still for so long yet
		until = until.Add(c.limits.WaitTimeoutMax)
	}
	if !call.Idempotency.IsZero() {
		until = max(until, c.now.Add(c.limits.RememberKey))
	}
	signalled := act.journal.Run(call.ID) == nil
	if !act.durable && call.Idempotency.IsZero() {
		c.closes(act, call, reply, until, repeats)
		if signalled {
			c.replyTo(act, call, reply, false)
		}
		return
	}
	ended := store.Ended{Call: call.ID, At: c.now, Reply: *reply, Until: until, Idempotency: call.Idempotency}
	if t := act.turn(call.ID); t != nil && reply.Refusal == nil {
		ended.Keep = t.keep
	}
	c.record(act, ended)
	if !act.durable {
		act.journal.Shorten(promisedBytesMax)
	}
	if signalled {
		c.replyTo(act, call, reply, act.durable)
	}
}

// closes ends the run of a call that no journal tells of. Its outcome is
// remembered for a repeat, unless there cannot be one: who asked has the answer
// from this step, or is a client who waits at this cell, and asks nobody else.
func (c *Cell) closes(act *activation, call *actor.Call, reply *actor.Reply, until actor.Time, repeats bool) {
	if run := act.journal.Close(call.ID); run != nil {
		c.closed = append(c.closed, run)
	}
	if i := slices.Index(act.heard, call.ID); i >= 0 {
		c.changed(act) // its last words
		act.heard = slices.Delete(act.heard, i, i+1)
	}
	if repeats && (!call.IsRoot() || call.Kind == actor.OneWay || call.Via != c.self) {
		c.recall.add(c.now, reply, act.epoch, until)
	}
	c.changed(act)
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
		if to := c.waits(call, durable); to != nil {
			c.answerInside(call.To, to, reply)
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
	c.event(history.Event{Kind: history.Send, Actor: call.To, Call: call.ID, What: "answered", Durable: durable})
	c.effect(Effect{Gated: durable && call.Via.Node != c.self.Node, Op: Send{Node: call.Via.Node, Cell: call.Via.Cell, Envelope: env}})
}

// runExpired ends a run whose own time has run out, in the mailbox or in its turn.
func (c *Cell) runExpired(act *activation, run *store.Run) {
	c.event(history.Event{Kind: history.Expire, Actor: act.id, Epoch: act.epoch, Call: run.Call.ID, What: "run", Given: run.Call.Left})
	c.stopRun(act, run, actor.RefuseDeadline(run.Call.To, run.Call.Operation, run.Call.Left))
}

// stopRun ends an open run with a refusal, wherever it stands.
func (c *Cell) stopRun(act *activation, run *store.Run, r *actor.Refusal) {
	if t := act.turn(run.Call.ID); t != nil {
		c.finish(t, failed(r))
		return
	}
	act.mailbox.Remove(run.Call.ID)
	c.endRun(act, run, failed(r), act.durableRun(run.Call.ID))
	act.untaint(run.Call.ID)
}

func failed(r *actor.Refusal) actor.Outcome { return actor.Outcome{Status: actor.Failed, Refusal: r} }

// refusalOf is what an agent's error means to its caller.
func refusalOf(err error) *actor.Refusal {
	if r, ok := err.(*actor.Refusal); ok {
		return r
	}
	return actor.Refuse(actor.Unavailable, "%v", err)
}

// restored is a turn as the journal has it; its agent runs again when it has to go on.
func (c *Cell) restored(act *activation, run *store.Run) *turn {
	t := &turn{act: act, run: run, def: c.definition(run), sent: make([]sent, len(run.Last()))}
	for i := range run.Last() {
		t.sent[i] = sent{attempt: run.Last()[i].Attempt, again: actor.Forever, wait: c.limits.ResendAfter}
	}
	return t
}

// goOn takes up what a restored turn waits for: calls are sent again; tools and
// work are done again if that is safe, and of the rest the outcome is unknown.
func (c *Cell) goOn(t *turn) {
	for i := range t.run.Last() {
		a := &t.run.Last()[i]
		if !a.Open() {
			continue
		}
		switch {
		case a.IsCall():
			if !mutant.On("unanswered-call-not-sent-again") {
				c.sendCall(t, i)
			}
		case a.Out().RunsOutsideCell():
			c.goOnWith(t, i)
		}
		if t.over {
			return
		}
	}
}

func (c *Cell) goOnWith(t *turn, i int) {
	a := &t.run.Last()[i]
	switch {
	case c.running[t.effect(i)]: // the world is still at it, or was just now
		delete(c.running, t.effect(i))
		c.performing[t.effect(i)] = t.act.id
		c.effect(Effect{ID: t.effect(i), Attempt: a.Attempt, Op: Await{}})
	case !a.Out().Idempotent && a.Out().Kind != actor.AskModel && !mutant.On("unsafe-effect-done-again"): // asking a model twice costs, and does no other harm
		unknown := actor.Answer{Refusal: actor.Refuse(actor.Unknown,
			"%s %s was under way when its node stopped: it may or may not have happened", a.Out().Kind, a.Out().Name)}
		c.toldResult(t, i, unknown)
		c.answer(t, i, unknown, 0)
		c.dropAdded(t)
	case t.run.Parked != "": // stays as it is
	case t.body == nil && a.Ask.NeedsReplay() && (t.def == nil || !c.again(t)):
	default:
		c.dropAdded(t)
		attempt := a.Attempt + 1
		if !mutant.On("attempt-not-announced") {
			c.tell(t.act, t.run, runs.Event{Type: runs.Attempt, Attempt: 2 + a.Again, Step: t.step(), Index: uint16(i), Discards: a.Shown})
		}
		c.record(t.act, store.Retried{Run: t.run.Call.ID, Step: t.step(), Index: uint16(i), At: c.now, Attempt: attempt})
		t.sent[i].attempt = attempt
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
