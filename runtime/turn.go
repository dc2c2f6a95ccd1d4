// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/contract"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/store"
)

// turn is a run that was started. Turns of an interleaved actor wait side by side.
type turn struct {
	act             *activation
	run             *store.Run
	def             *actor.Definition
	agentTurn       actor.Turn     // nil until the turn continues; after a restart it is created by replay
	rawAsks         []actor.Ask    // last asks including fields that are not persisted; nil if agentTurn is nil
	sends           []sendState    // send state of each of the last asks
	askBuf          []store.Asked  // volatile turns: buffer for the first asks
	answers         []actor.Answer // volatile turns: answers to the last asks
	repetition      repetition
	callbackWaiters map[int][]actor.Call // by index of the ask: signals that wait for the answer of the call that they added
	restored        bool                 // its run was accepted before the actor was loaded
	taint           bool                 // depends on log entries of another actor
	stateItems      []actor.StateItem    // written with the outcome
	purse           *actor.Purse         // of the run, less what the asks that are being planned take
	detached        []store.Pending      // detached calls that the next record of the run is followed by
	shown           store.Shown          // start and refused asks that the next record of the run shows
	unrecorded      int                  // number of their events
	bytes           int                  // bytes of the answers that the agent was given
	earlier         earlier
	draw            *draw       // its purse, for which it waits; nil: it does not
	active          *agentTurns // nil once it is no longer among them
	activeAt        int         // index in active
	ended           bool
}

// sendState is the part of an ask's state that the journal does not hold.
type sendState struct {
	attempt uint32
	retryAt actor.Time     // time of the next attempt of the call; Forever means none is scheduled
	backoff actor.Duration // delay between the next attempt and the attempt after it; doubles with each resend
	due     actor.Time     // deadline of an external agent as the host knows it; 0 if unknown
	replays bool           // the effect is repeated once its turn can be replayed
	target  []byte         // address at which an external agent was invoked last

	pieces, pieceBytes int                  // pieces of a streamed answer, and their bytes
	codes              *contract.CodeFilter // of its text, if users read it without codes
}

func (t *turn) step() uint32 { return uint32(len(t.run.Steps)) }

func (t *turn) effectID(i int) actor.EffectID {
	return actor.EffectID{Run: t.run.Call.ID, Step: t.step(), Index: uint16(i)}
}

// durable reports whether output of the turn must wait for the log: the actor is
// journaled, or the turn depends on log entries.
func (t *turn) durable() bool {
	return t.act.durable || t.taint
}

func (t *turn) stop() {
	if t.agentTurn != nil {
		t.agentTurn.Stop()
		t.agentTurn = nil
	}
}

// takeShown returns the part of the run's events that the next record lacks.
func (t *turn) takeShown() store.Shown {
	s := t.shown
	s.Call = &t.run.Call
	t.shown, t.unrecorded = store.Shown{}, 0
	return s
}

// newTurn returns a turn to be filled in, from the free list if possible.
func (c *Cell) newTurn() *turn {
	if n := len(c.freeTurns); n > 0 {
		t := c.freeTurns[n-1]
		c.freeTurns = c.freeTurns[:n-1]
		return t
	}
	return &turn{}
}

// isSerial reports whether the agent handles one message at a time.
func (v *env) isSerial(id actor.ID) bool {
	def := v.definitions.current(id.Agent)
	return def == nil || def.Turns == actor.Serial
}

// canBeginTurn reports whether the next message may start its turn.
func (act *activation) canBeginTurn(c *Cell) bool {
	if act.serial {
		return len(act.turns) == 0
	}
	return len(act.turns) < c.limits.MaxPendingPerActor
}

// runReady advances the turns whose asks are all answered and starts turns for
// queued messages, until no turn can advance or start.
func (act *activation) runReady(c *Cell) {
	for {
		if t := act.readyTurn(); t != nil {
			t.advance(c)
		} else if t, refusal := act.failedTurn(); t != nil {
			t.finishTurn(c, failedOutcome(refusal))
		} else if !act.canBeginTurn(c) || !(transcripts{c, act}).hasPages() || !(accounts{c, act}).drawn() || !act.beginTurn(c) {
			return
		}
	}
}

// readyTurn returns a turn that can continue, or nil.
func (act *activation) readyTurn() *turn {
	for _, t := range act.turns {
		if t.ready() {
			return t
		}
	}
	return nil
}

// ready reports whether the turn can continue.
func (t *turn) ready() bool {
	asks := t.run.Last()
	for i := range asks {
		if asks[i].Open() {
			return false
		}
	}
	return !t.ended && t.run.FailedBy() == nil && t.run.Parked == "" && !t.earlier.waits && !t.draws()
}

// failedTurn returns a turn that a failed tool call ends, and the failure; or nil.
func (act *activation) failedTurn() (*turn, *actor.Refusal) {
	for _, t := range act.turns {
		if refusal := t.run.FailedBy(); refusal != nil {
			return t, refusal
		}
	}
	return nil, nil
}

// beginTurn starts the turn of the next message in the mailbox.
func (act *activation) beginTurn(c *Cell) bool {
	id, ok := mail{c, act}.next()
	if !ok {
		return false
	}
	c.startTurn(act, act.journal.Run(id))
	return true
}

// startTurn starts the turn of a run.
func (c *Cell) startTurn(act *activation, run *store.Run) *turn {
	id := run.Call.ID
	if len(act.turns) == 0 { // the agent may have changed since the activation
		act.serial = c.isSerial(act.id)
	}
	t := c.newTurn()
	*t = turn{act: act, run: run, def: c.definitions.of(run), restored: slices.Contains(act.former, id), taint: act.untaint(id), sends: t.sends, askBuf: t.askBuf}
	act.turns = append(act.turns, t)
	c.active.add(t)
	call := &run.Call
	if act.observed(c, call.ID) {
		t.shown, t.unrecorded = store.Shown{Began: true, Left: run.Clock.Remaining(c.now)}, 1
	}
	if c.emits(history.Start) {
		c.emit(history.Event{Kind: history.Start, Actor: act.id, Epoch: act.epoch, Call: call.ID, Parent: call.Parent, Root: call.Root, Left: run.Clock.Remaining(c.now),
			Count: act.mailbox.Count(), Bytes: act.mailbox.Bytes(), Durable: act.durable || t.taint})
	}
	if refusal := (accounts{c, act}).refusal(id); refusal != nil {
		t.finishTurn(c, failedOutcome(refusal))
	} else if t.def == nil {
		parking{c}.absent(t)
	}
	return t
}

// draws reports whether the turn waits for its purse.
func (t *turn) draws() bool { return t.draw != nil && t.draw.waits() && t.run.Purse.Day == 0 }

// advance asks the agent for its next action, first without answers, then with the
// answers to its last asks. After a restart, advance first replays the turn up to
// its last asks.
func (t *turn) advance(c *Cell) {
	if t.def == nil {
		t.def = c.definitions.of(t.run)
	}
	if t.def == nil { // the turn was restored before the cell knew the agent
		parking{c}.absent(t)
		return
	}
	if d := t.draw; d != nil {
		if t.draw = nil; d.refused != nil {
			t.finishTurn(c, failedOutcome(d.refused))
		} else {
			t.take(c, d.held)
		}
		return
	}
	if t.agentTurn == nil && !t.readTranscript(c) {
		return
	}
	if t.run.Started() && t.agentTurn == nil && !t.replay(c) {
		return
	}
	if t.agentTurn == nil {
		t.beginAgent(c)
	}
	input := t.answers
	if input == nil {
		input = collectAnswers(t.run.Last())
	}
	action, err := t.nextAction(c, input)
	switch {
	case err != nil:
		t.finishTurn(c, failedOutcome(refusalOf(err)))
	case action.Done != nil:
		if r := t.checkStateItems(c, action.StateUpdates); r != nil {
			t.finishTurn(c, failedOutcome(r))
			return
		}
		t.publishRefused(c, action)
		t.stateItems = action.StateUpdates
		t.finishTurn(c, *action.Done)
	case len(action.Asks) == 0:
		t.finishTurn(c, failedOutcome(actor.Refuse(actor.Unavailable, "agent %s returned neither asks nor an outcome", t.act.id.Agent)))
	default:
		if r := t.checkAction(c, action); r != nil {
			t.finishTurn(c, failedOutcome(r))
			return
		}
		if !(accounts{c, t.act}).hold(t, &action) {
			t.take(c, action)
		}
	}
}

// take makes the asks of an action.
func (t *turn) take(c *Cell, action actor.Action) {
	t.publishRefused(c, action)
	t.ask(c, action.Asks, action.StateUpdates)
}

// Agent code runs only in beginAgent, nextAction and stopAgent. A panic there is
// attributed to the run.

func (t *turn) beginAgent(c *Cell) {
	c.faultingCall = t.run.Call.ID
	t.bytes = 0
	call := t.run.Call
	call.Chain = slices.Clone(call.Chain) // writes by the agent MUST NOT change the real chain
	t.agentTurn = t.def.Behavior.Begin(actor.Begin{Call: call, At: t.run.At, Left: call.Left, ActorState: t.act.journal.ActorState, Transcript: t.earlier.messages})
	c.faultingCall = actor.CallID{}
}

func (t *turn) stopAgent(c *Cell) {
	c.faultingCall = t.run.Call.ID
	t.stop()
	c.faultingCall = actor.CallID{}
}

func (t *turn) nextAction(c *Cell, answers []actor.Answer) (actor.Action, error) {
	for i := range answers {
		t.bytes += actor.SizeOf(answers[i].Parts)
	}
	c.faultingCall = t.run.Call.ID
	action, err := t.agentTurn.Next(answers)
	c.faultingCall = actor.CallID{}
	return action, err
}

// TurnAnswers returns the answers to the asks of a step that an agent is given.
func TurnAnswers(asks []store.Asked) []actor.Answer { return collectAnswers(asks) }

func collectAnswers(asks []store.Asked) []actor.Answer {
	if len(asks) == 0 {
		return nil
	}
	answers := make([]actor.Answer, 0, len(asks))
	for i := range asks {
		if !asks[i].Added {
			answers = append(answers, shortened(&asks[i], *asks[i].Answer))
		}
	}
	return answers
}

// replay replays a restored turn through its recorded answers, up to its last asks.
// If the turn diverges from the recorded asks, the run is parked until an operator
// intervenes.
func (t *turn) replay(c *Cell) bool {
	if detail := (parking{c}).divergence(t); detail != "" {
		t.park(c, detail)
		return false
	}
	return true
}

func (t *turn) park(c *Cell, detail string) {
	t.stopAgent(c)
	parking{c}.recordParked(t.act, t.run, detail)
}

// finishTurn ends a turn: it cancels the open asks, records the outcome, and
// replies to the caller.
func (t *turn) finishTurn(c *Cell, out actor.Outcome) {
	act, run := t.act, t.run
	t.ended = true
	t.stopAgent(c)
	repeats{c, t}.drop(agentEnded)
	for i := range run.Last() {
		if a := &run.Last()[i]; a.Open() {
			t.cancelAsk(c, i)
			if isCallback(a) {
				t.answerCallbacks(c, i, actor.Answer{Refusal: agentEnded()})
			}
		}
	}
	act.endRun(c, run, out, t.durable())
	if i := slices.Index(act.turns, t); i >= 0 {
		act.turns = slices.Delete(act.turns, i, i+1)
		c.active.remove(t)
		if len(act.journal.Runs) == 0 {
			act.pageCache = pageCache{}
		}
		c.endedTurns = append(c.endedTurns, t)
	}
}

// endRun records the outcome of an accepted call and sends it to the caller and to
// joined duplicates.
func (act *activation) endRun(c *Cell, run *store.Run, out actor.Outcome, durable bool) {
	call := &run.Call
	accounts{c, act}.giveBack(run, durable)
	out = userTexts{c}.answer(run, out).Fit(c.limits.MessageBytesMax)
	reply := actor.Reply{Call: call.ID, Run: call.ID, Status: out.Status, Parts: out.Parts, Warnings: out.Warnings, Refusal: out.Refusal, Budget: run.Budget, Purse: run.Purse, Usage: run.Usage, Tree: run.Tree}
	if act.durable && act.journal.HasHeirs(run) {
		reply.Budget, reply.Purse = 0, nil
	}
	c.measureRun(act.id.Agent, run, &reply)
	if c.emits(history.Reply) {
		replied := history.Event{Kind: history.Reply, Actor: act.id, Epoch: act.epoch, Call: call.ID, Parent: call.Parent, Root: call.Root,
			Status: reply.Status, Step: uint32(len(run.Steps)), Pending: act.pending(), Durable: durable, Left: run.Clock.Remaining(c.now), Digest: history.OutcomeDigest(reply.Parts, reply.Warnings)}
		if reply.Refusal != nil {
			replied.Reason, replied.Scope, replied.Detail = reply.Refusal.Reason, reply.Refusal.Scope, reply.Refusal.Detail
		}
		c.emit(replied)
	}
	to := c.localCaller(call, durable)
	act.recordOutcome(c, call, &reply, to == nil)
	if to != nil {
		c.replyLocally(act.id, to, &reply, durable)
		return
	}
	if call.IsRoot() && len(act.joined) > 0 {
		joined := act.joined
		act.joined = slices.DeleteFunc(slices.Clone(joined), func(a joinedCall) bool { return a.run == call.ID })
		for _, a := range joined {
			if a.run == call.ID {
				duplicate, to := reply, *call
				duplicate.Call, to.ID, to.Root, to.Via = a.call, a.call, a.call, a.via
				c.replyTo(&to, &duplicate, durable)
			}
		}
	}
	c.replyTo(call, &reply, durable)
}

// keyedOutcomeBytesMax is the maximum size in bytes of the outcomes that a volatile
// actor keeps for calls with an idempotency key.
const keyedOutcomeBytesMax = 4 << 20

// recordOutcome records the only outcome of a call, for its duplicates. A volatile
// actor keeps the outcome only if a duplicate is possible.
func (act *activation) recordOutcome(c *Cell, call *actor.Call, reply *actor.Reply, cache bool) {
	until := c.now.Add(call.Left + c.limits.RememberDone)
	run := act.journal.Run(call.ID)
	isSignal := run == nil
	if !isSignal {
		c.definitions.release(run.Definition)
	}
	if !isSignal && run.HeldTo > 0 { // the caller's clock may be stopped until then
		until = max(until, run.HeldTo.Add(call.Left+c.limits.RememberDone))
	}
	key := call.Idempotency
	if !isSignal && refusedForDay(run, reply.Refusal) {
		key = actor.Idempotency{}
	}
	if !key.IsZero() {
		until = max(until, c.now.Add(c.limits.RememberKey))
	}
	var shown store.Shown
	switch t := act.turn(call.ID); {
	case isSignal:
	case t != nil:
		shown = t.takeShown()
	default:
		shown.Call = &run.Call
	}
	if !act.durable && key.IsZero() {
		if !isSignal && act.observed(c, call.ID) {
			act.publishRecord(c, store.Ended{Call: call.ID, At: c.now, Reply: *reply}, shown)
		}
		act.closeRun(c, call, reply, until, cache)
		if isSignal {
			c.replyTo(call, reply, false)
		}
		return
	}
	ended := store.Ended{Call: call.ID, At: c.now, Reply: *reply, Until: until, Idempotency: key}
	if !isSignal && act.durable && run.LeavesOut(reply.Refusal) { // a volatile actor has no conversation
		ended.Reply.Extensions = ended.Reply.Extensions.WithLeftOut()
	}
	if t := act.turn(call.ID); t != nil && reply.Refusal == nil {
		ended.StateUpdates = t.stateItems
	}
	act.record(c, ended, shown)
	if !act.durable {
		act.journal.TrimOutcomes(keyedOutcomeBytesMax)
	}
	if isSignal {
		c.replyTo(call, reply, act.durable)
	}
}

// closeRun closes the run of a call to a volatile actor. It caches the outcome if a
// duplicate may arrive. No duplicate arrives if the caller gets the reply in this
// step, or is a client that waits at this cell and retries nowhere else.
func (act *activation) closeRun(c *Cell, call *actor.Call, reply *actor.Reply, until actor.Time, cache bool) {
	if run := act.journal.Close(call.ID); run != nil {
		c.endedRuns = append(c.endedRuns, run)
	}
	if i := slices.Index(act.subscribed, call.ID); i >= 0 {
		act.subscribed = slices.Delete(act.subscribed, i, i+1)
	}
	if cache && (!call.IsRoot() || call.Kind == actor.OneWay || call.Via != c.self) {
		c.replyCache.add(c.now, reply, act.epoch, until)
	}
	act.journalChanged(c)
}

// replyTo sends an outcome to the calling actor, or to the cell at which the client
// waits.
func (c *Cell) replyTo(call *actor.Call, reply *actor.Reply, durable bool) {
	if call.Kind == actor.OneWay {
		return
	}
	if !call.IsRoot() {
		caller, _ := call.Caller()
		if to := c.localCaller(call, durable); to != nil {
			c.replyLocally(call.To, to, reply, durable)
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

// expireRun ends a run whose deadline has passed, whether it is queued or its turn
// has started.
func (act *activation) expireRun(c *Cell, run *store.Run) {
	c.emit(history.Event{Kind: history.Expire, Actor: act.id, Epoch: act.epoch, Call: run.Call.ID, What: "run", Given: run.Call.Left})
	act.stopRun(c, run, actor.RefuseDeadline(run.Call.To, run.Call.Operation, run.Call.Left))
}

// stopRun ends an open run with a refusal, whether it is queued or its turn has
// started.
func (act *activation) stopRun(c *Cell, run *store.Run, r *actor.Refusal) {
	if t := act.turn(run.Call.ID); t != nil {
		t.finishTurn(c, failedOutcome(r))
		return
	}
	act.mailbox.Remove(run.Call.ID)
	act.endRun(c, run, failedOutcome(r), act.durableRun(run.Call.ID))
	act.untaint(run.Call.ID)
}

func failedOutcome(r *actor.Refusal) actor.Outcome {
	return actor.Outcome{Status: actor.Failed, Refusal: r}
}

// refusalOf converts an agent's error to a refusal for its caller.
func refusalOf(err error) *actor.Refusal {
	if r, ok := err.(*actor.Refusal); ok {
		return r
	}
	return actor.Refuse(actor.Unavailable, "%v", err)
}

// restoreTurn returns a turn as recorded in the journal. Its agent is started when
// the turn advances.
func (act *activation) restoreTurn(c *Cell, run *store.Run) *turn {
	t := &turn{act: act, run: run, def: c.definitions.of(run), sends: make([]sendState, len(run.Last())), restored: true, repetition: repetition{recorded: len(run.Last())}}
	for i := range run.Last() {
		t.sends[i] = sendState{attempt: run.Last()[i].Attempt, retryAt: actor.Forever, backoff: c.limits.ResendAfter}
	}
	return t
}

// resume resumes the open asks of a restored turn. Calls are resent. An effect is
// repeated if repeating it is safe. Otherwise its outcome is Unknown.
func (t *turn) resume(c *Cell) {
	for i := range t.run.Last() {
		switch phaseOf(&t.run.Last()[i]) {
		case phaseCall:
			t.resendCall(c, i)
		case phaseReport:
			interruptModel(c, t, i)
		case phaseEffect:
			t.resumeEffect(c, i)
		}
	}
}

func (t *turn) resumeEffect(c *Cell, i int) {
	a := &t.run.Last()[i]
	var changed *actor.Refusal // reason why the decision about a tool call does not cover a repeat
	if a.Verdict.Decision != 0 {
		changed = toolCalls{c, t}.recheck(i)
	}
	switch {
	case c.inherited[t.effectID(i)] && !(repeats{c, t}).interrupt(i): // the driver still performs it, or holds its outcome
		delete(c.inherited, t.effectID(i))
		c.inFlight[t.effectID(i)] = t.act.id
		c.addEffect(Effect{ID: t.effectID(i), Attempt: a.Attempt, Op: Await{}})
	case !a.Out().Idempotent && a.Out().Kind != actor.AskModel: // repeating a model request costs money but is safe
		unknown := actor.Answer{Refusal: actor.Refuse(actor.Unknown,
			"%s %s was running when its node stopped: its outcome is unknown", a.Out().Kind, a.Out().Name)}
		t.answerResult(c, i, unknown)
		t.cancelAdded(c)
	case t.run.Parked != "": // parked runs do not change
	case changed != nil:
		t.answerResult(c, i, actor.Answer{Refusal: actor.Refuse(actor.Unknown, "%s %s was running when its node stopped: its outcome is unknown. It is not repeated: %s",
			a.Out().Kind, a.Out().Name, changed.Detail)})
		t.cancelAdded(c)
	case t.agentTurn == nil && a.Ask.NeedsReplay() && !t.readTranscript(c):
		t.sends[i].replays = true
	case t.agentTurn == nil && a.Ask.NeedsReplay() && (t.def == nil || !t.replay(c)):
	default:
		t.cancelAdded(c)
		attempt := a.Attempt + 1
		shown := store.Shown{Ask: &store.ShownAsk{Kind: a.Out().Kind, Attempt: 2 + a.Retries, Discards: a.StreamedAfter}}
		t.act.record(c, store.Retried{Run: t.run.Call.ID, Step: t.step(), Index: uint16(i), At: c.now, Attempt: attempt}, shown)
		t.sends[i].attempt = attempt
		if a.Invoking() {
			repeats{c, t}.begin()
		}
		t.perform(c, i)
	}
}

// clampWait returns the time that a turn may wait for a signal: ApprovalTimeout if it
// asks for none, and at most WaitTimeoutMax.
func (v *env) clampWait(timeout time.Duration) time.Duration {
	return min(orDefault(timeout, v.limits.ApprovalTimeout), v.limits.WaitTimeoutMax)
}
