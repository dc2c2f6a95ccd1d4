// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
)

// Agent is a blocking agent. Turn processes one message and returns the answer. One
// value serves all actors of the agent, so it MUST NOT keep state between turns.
type Agent interface {
	Turn(t *Turn) (string, error)
}

// Func is an Agent that consists of one function.
type Func func(t *Turn) (string, error)

// Turn calls f.
func (f Func) Turn(t *Turn) (string, error) { return f(t) }

// Turn is the processing of one message by a blocking agent. Its asking methods
// block until the answer arrives, without blocking the actor's thread. Only the
// function that receives the Turn may use it. That function MUST NOT use the Turn in
// another goroutine or inside Do.
type Turn struct {
	begin    actor.Begin
	yield    func(actor.Action) bool
	answers  []actor.Answer
	warnings []string
	updates  []actor.StateItem  // by name, at most one each
	refused  []actor.RefusedAsk // of models, since the last action
	state    turnState
}

// turnState is the execution state of a turn.
type turnState uint8

const (
	running   turnState = iota // the agent's function runs
	awaiting                   // an ask has been issued and not answered
	cancelled                  // the turn was stopped, and its function unwinds
	finished                   // the function has returned
)

// unwind is the panic value that unwinds the function of a stopped turn.
type unwind struct{}

// IsUnwind reports whether a panic value unwinds the function of a stopped turn. A function that recovers
// it MUST panic with it again.
func IsUnwind(p any) bool { return p == any(unwind{}) }

// Message returns the text of the message.
func (t *Turn) Message() string { return actor.TextOf(t.begin.Call.Parts) }

// Request returns the whole call, with the fields that the agent cannot forge.
func (t *Turn) Request() actor.Call { return t.begin.Call }

// Self returns the ID of the actor.
func (t *Turn) Self() actor.ID { return t.begin.Call.To }

// Caller returns the calling actor, or false if a client made the call.
func (t *Turn) Caller() (actor.ID, bool) { return t.begin.Call.Caller() }

// Transcript returns the earlier messages of the conversation, oldest first, as the
// definition of the agent selects them.
func (t *Turn) Transcript() []actor.ChatMessage { return t.begin.Transcript }

// State returns the value of an item of the actor's state, with the changes of this
// turn, or nil if there is no such item. The caller MUST NOT change it.
func (t *Turn) State(name string) []byte {
	if i := slices.IndexFunc(t.updates, func(item actor.StateItem) bool { return item.Name == name }); i >= 0 {
		return t.updates[i].Value
	}
	i, found := slices.BinarySearchFunc(t.begin.ActorState, name, func(item actor.StateItem, name string) int { return strings.Compare(item.Name, name) })
	if !found {
		return nil
	}
	return t.begin.ActorState[i].Value
}

// SetState changes an item of the actor's state. An empty value deletes the item. The
// changes of a turn, at most actor.StateUpdatesMax, are persisted together with its
// outcome. A turn that fails, or that ends with a refusal, changes nothing.
func (t *Turn) SetState(name string, value []byte) {
	item := actor.StateItem{Name: name, Value: value}
	if i := slices.IndexFunc(t.updates, func(item actor.StateItem) bool { return item.Name == name }); i >= 0 {
		t.updates[i] = item
		return
	}
	t.updates = append(t.updates, item)
}

// Call calls another agent and waits for its answer.
func (t *Turn) Call(target, message string, opts ...Option) (string, error) {
	return t.askOne(Call(target, message, opts...)).Text()
}

// Tool calls a tool and waits for its result.
func (t *Turn) Tool(name string, input any, opts ...Option) ([]byte, error) {
	return t.askOne(Tool(name, input, opts...)).Bytes()
}

// Do runs slow or impure code outside the actor and waits for its result. The
// result is persisted. If a crash interrupts the code, the code is repeated only if
// the ask is Idempotent.
func (t *Turn) Do(name string, work actor.Work, opts ...Option) ([]byte, error) {
	return t.askOne(Do(name, work, opts...)).Bytes()
}

// Sleep waits for the given time.
func (t *Turn) Sleep(d actor.Duration) error { return t.askOne(Sleep(d)).Err() }

// Wait waits for a signal by name until the wait expires. It returns the content of
// the signal.
func (t *Turn) Wait(name string, expires actor.Duration) ([]byte, error) {
	return t.askOne(Wait(name, expires)).Bytes()
}

// All issues several asks at once and returns their answers in the same order.
func (t *Turn) All(asks ...actor.Ask) []Answer {
	if len(asks) == 0 {
		return nil
	}
	answers := t.ask(asks)
	all := make([]Answer, len(answers))
	for i, a := range answers {
		all[i] = Answer{a}
	}
	return all
}

// Warn adds a warning about missing parts of the answer. The outcome is then
// partial.
func (t *Turn) Warn(format string, args ...any) {
	t.warnings = append(t.warnings, fmt.Sprintf(format, args...))
}

func (t *Turn) askOne(ask actor.Ask) Answer { return Answer{t.ask([]actor.Ask{ask})[0]} }

// ask is askOnce, and makes the further calls that these need.
func (t *Turn) ask(asks []actor.Ask) []actor.Answer {
	further := newToolRuns(asks, t.askOnce(asks))
	for again := further.asks(); len(again) > 0; again = further.asks() {
		further.take(t.askOnce(again))
	}
	return further.answers
}

// askOnce suspends the function until the asks are answered. If the turn is stopped
// before that, ask panics with unwind: deferred functions run, and their asks
// panic too.
func (t *Turn) askOnce(asks []actor.Ask) []actor.Answer {
	if t.state == cancelled {
		panic(unwind{})
	}
	invariant.Check(t.state == running, "a turn was used outside its function: in a goroutine, inside Do, or after its end")
	t.state = awaiting
	action := actor.Action{Asks: asks, Refused: t.refused}
	t.refused = nil
	if !t.yield(action) {
		t.state = cancelled
		panic(unwind{})
	}
	t.state = running
	return t.answers
}

// Blocking returns the behavior of a blocking agent.
func Blocking(agent Agent) actor.Behavior { return blocking{agent} }

type blocking struct{ agent Agent }

func (b blocking) Begin(begin actor.Begin) actor.Turn {
	return bound(begin, StepsMax, &coroutine{agent: b.agent, turn: Turn{begin: begin}})
}

// coroutine runs the function from one ask to the next. The list of answers is its
// only persistent state.
type coroutine struct {
	agent   Agent
	turn    Turn
	next    func() (actor.Action, bool)
	stop    func()
	outcome actor.Outcome
	err     error
}

func (c *coroutine) Next(answers []actor.Answer) (actor.Action, error) {
	invariant.Check(c.turn.state == running || c.turn.state == awaiting, "agents: Next called after the end of a turn")
	if c.next == nil {
		c.next, c.stop = iter.Pull(c.run)
	}
	c.turn.answers = answers
	action, asks := c.next()
	if asks {
		return action, nil
	}
	if c.err != nil {
		return actor.Action{}, c.err
	}
	action = actor.Action{Done: &c.outcome, Refused: c.turn.refused}
	if c.outcome.Refusal == nil {
		action.StateUpdates = c.turn.updates
	}
	return action, nil
}

// Stop abandons the turn. The function unwinds from its current ask.
func (c *coroutine) Stop() {
	if c.stop != nil {
		c.stop()
	}
	c.turn.state = finished
}

// run is the body of the coroutine. It recovers every panic of the agent, because
// a panic would end the thread that this actor shares with many others.
func (c *coroutine) run(yield func(actor.Action) bool) {
	c.turn.yield = yield
	c.err = fmt.Errorf("agent %s: function did not return", c.turn.Self().Agent)
	defer func() {
		// a panic during the unwinding is ignored
		if p := recover(); p != nil && c.turn.state != cancelled {
			c.err = panicError(c.turn.Self(), p)
		}
		c.turn.state = finished
	}()
	text, err := c.agent.Turn(&c.turn)
	c.outcome, c.err = outcomeOf(text, c.turn.warnings, err)
}

func panicError(self actor.ID, p any) error { return fmt.Errorf("agent %s: panic: %v", self.Agent, p) }

// outcomeOf returns the outcome of a function that has returned. A refusal is an
// outcome too; its detail includes the text that the agent wrapped around it.
func outcomeOf(text string, warnings []string, err error) (actor.Outcome, error) {
	var refusal *actor.Refusal
	switch {
	case errors.As(err, &refusal):
		r := *refusal
		if prefix, ok := strings.CutSuffix(err.Error(), refusal.Error()); ok {
			r.Detail = actor.Refuse(r.Reason, "%s%s", prefix, r.Detail).Detail
		}
		return actor.Outcome{Status: actor.Failed, Refusal: &r}, nil
	case err != nil:
		return actor.Outcome{}, err
	case len(warnings) > 0:
		return actor.Outcome{Status: actor.Partial, Parts: actor.Text(text), Warnings: warnings}, nil
	default:
		return actor.Outcome{Status: actor.Succeeded, Parts: actor.Text(text)}, nil
	}
}
