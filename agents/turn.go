// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
)

// Agent is an agent written top to bottom. Turn deals with one message and
// returns the answer. One value serves all actors of the agent, so it keeps
// nothing between turns.
type Agent interface {
	Turn(t *Turn) (string, error)
}

// Func is an Agent that is one function.
type Func func(t *Turn) (string, error)

// Turn calls the function.
func (f Func) Turn(t *Turn) (string, error) { return f(t) }

// Turn is one message being dealt with. Its asking methods wait for their
// answer; the actor's thread does not. It belongs to the function it was given
// to, and is of no use in a goroutine or inside Do.
type Turn struct {
	begin    actor.Begin
	yield    func(actor.Action) bool
	answers  []actor.Answer
	warnings []string
	state    turnState
}

// turnState says who has the floor.
type turnState uint8

const (
	running   turnState = iota // the agent's function
	awaiting                   // the world: an answer is waited for
	cancelled                  // nobody: the turn was given up, and its function is unwinding
	finished                   // nobody: the function has returned
)

// unwind unwinds the function of a turn that was given up.
type unwind struct{}

// Message is the text of the message.
func (t *Turn) Message() string { return actor.TextOf(t.begin.Call.Parts) }

// Request is the whole of it, with all that the agent cannot forge.
func (t *Turn) Request() actor.Call { return t.begin.Call }

// Self is the actor whose turn it is.
func (t *Turn) Self() actor.ID { return t.begin.Call.To }

// Caller is the actor that called; false if a client did.
func (t *Turn) Caller() (actor.ID, bool) { return t.begin.Call.Caller() }

// Call asks another agent and waits for its answer.
func (t *Turn) Call(target, message string, opts ...Option) (string, error) {
	return t.askOne(Call(target, message, opts...)).Text()
}

// Tool asks for a tool and waits for what it says.
func (t *Turn) Tool(name string, input any, opts ...Option) ([]byte, error) {
	return t.askOne(Tool(name, input, opts...)).Bytes()
}

// Do has slow or impure code run outside the actor, and waits for its result,
// which is written down: after a crash it is not done again unless it is Idempotent.
func (t *Turn) Do(name string, work actor.Work, opts ...Option) ([]byte, error) {
	return t.askOne(Do(name, work, opts...)).Bytes()
}

// Sleep waits.
func (t *Turn) Sleep(d actor.Duration) error { return t.askOne(Sleep(d)).Err() }

// Wait waits for a signal by name, for so long at most, and returns what came with it.
func (t *Turn) Wait(name string, expires actor.Duration) ([]byte, error) {
	return t.askOne(Wait(name, expires)).Bytes()
}

// All asks for several things at once and returns their answers in the same order.
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

// Warn says what the answer lacks; it is then a partial one.
func (t *Turn) Warn(format string, args ...any) {
	t.warnings = append(t.warnings, fmt.Sprintf(format, args...))
}

func (t *Turn) askOne(ask actor.Ask) Answer { return Answer{t.ask([]actor.Ask{ask})[0]} }

// ask is where the function stands still. If the turn is given up meanwhile, it
// does not come back here: deferred functions run, and asks they make fail likewise.
func (t *Turn) ask(asks []actor.Ask) []actor.Answer {
	if t.state == cancelled {
		panic(unwind{})
	}
	invariant.Check(t.state == running, "a turn was used outside its function: in a goroutine, inside Do, or after its end")
	t.state = awaiting
	if !t.yield(actor.Action{Asks: asks}) {
		t.state = cancelled
		panic(unwind{})
	}
	t.state = running
	return t.answers
}

// Blocking makes a behavior of an agent that is written top to bottom.
func Blocking(agent Agent) actor.Behavior { return blocking{agent} }

type blocking struct{ agent Agent }

func (b blocking) Begin(begin actor.Begin) actor.Turn {
	return bound(begin, StepsMax, &coroutine{agent: b.agent, turn: Turn{begin: begin}})
}

// coroutine runs the function up to each ask, and from its answers on. Its whole
// state is the list of those answers.
type coroutine struct {
	agent   Agent
	turn    Turn
	next    func() (actor.Action, bool)
	stop    func()
	outcome actor.Outcome
	err     error
}

func (c *coroutine) Next(answers []actor.Answer) (actor.Action, error) {
	invariant.Check(c.turn.state == running || c.turn.state == awaiting, "agents: Next after the end of a turn")
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
	return actor.Action{Done: &c.outcome}, nil
}

// Stop gives the turn up: the function unwinds from where it stands.
func (c *coroutine) Stop() {
	if c.stop != nil {
		c.stop()
	}
	c.turn.state = finished
}

// run is the body of the coroutine. No panic of the agent leaves it: the thread
// it would end is the actor's, and that of many others.
func (c *coroutine) run(yield func(actor.Action) bool) {
	c.turn.yield = yield
	c.err = fmt.Errorf("agent %s: its function never returned", c.turn.Self().Agent)
	defer func() {
		// What a killed function says on its way out, nobody hears.
		if p := recover(); p != nil && c.turn.state != cancelled {
			c.err = panicError(c.turn.Self(), p)
		}
		c.turn.state = finished
	}()
	text, err := c.agent.Turn(&c.turn)
	c.outcome, c.err = outcomeOf(text, c.turn.warnings, err)
}

func panicError(self actor.ID, p any) error { return fmt.Errorf("agent %s: panic: %v", self.Agent, p) }

// outcomeOf is the outcome of a function that returned. A refusal is an outcome too,
// with what was said around it.
func outcomeOf(text string, warnings []string, err error) (actor.Outcome, error) {
	var refusal *actor.Refusal
	switch {
	case errors.As(err, &refusal):
		r := *refusal
		if around, ok := strings.CutSuffix(err.Error(), refusal.Error()); ok {
			r.Detail = actor.Refuse(r.Reason, "%s%s", around, r.Detail).Detail
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
