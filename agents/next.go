// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"fmt"
	"slices"

	"github.com/troupe-run/troupe/actor"
)

// Config holds the constants of an agent (AgentConfig in records). They do not
// change during a run.
type Config struct {
	Name    string
	Version string
	Options []byte // defined by the author, in any format
}

// State is the state of a turn between two steps (AgentState in records). At the
// start of a run it holds only the request. A transition has no other input than
// Config and State, so another process can continue from the same State.
type State struct {
	Request      actor.Begin
	Phase        string           // phase of the turn, named by the author; empty at first
	Answers      [][]actor.Answer // answers of each step so far, in the order of its asks
	Continuation []byte           // data that the last step left for this one
}

// Last returns the answers to the asks of the last step.
func (s *State) Last() []Answer {
	if len(s.Answers) == 0 {
		return nil
	}
	var all []Answer
	for _, a := range s.Answers[len(s.Answers)-1] {
		all = append(all, Answer{a})
	}
	return all
}

// Message returns the text of the request.
func (s *State) Message() string { return actor.TextOf(s.Request.Call.Parts) }

// Action is the next action of a turn, and the data for the step that follows.
type Action struct {
	actor.Action
	Phase        string
	Continuation []byte
}

// Complete returns the action that ends the turn with an answer.
func Complete(text string) Action { return Action{Action: actor.Complete(actor.Text(text))} }

// EndRefused returns the action that ends the turn with a refusal.
func EndRefused(r *actor.Refusal) Action { return Action{Action: actor.EndRefused(r)} }

// Continue returns an action that issues all asks at once. The next step runs in
// the given phase with their answers.
func Continue(phase string, continuation []byte, asks ...actor.Ask) Action {
	return Action{actor.Action{Asks: asks}, phase, continuation}
}

// Next is the transition of an agent, a pure function of its arguments. It MUST
// NOT read a clock or use randomness. It makes asks instead.
type Next func(config Config, state State) (Action, error)

// Pure returns the behavior of a transition.
func Pure(config Config, next Next) actor.Behavior { return pure{config, next, StepsMax} }

type pure struct {
	config   Config
	next     Next
	maxSteps int // maximum number of actions with asks
}

func (p pure) Begin(begin actor.Begin) actor.Turn {
	return bound(begin, p.maxSteps, &pureTurn{pure: p, state: State{Request: begin}})
}

type pureTurn struct {
	pure
	state State
	begun bool
}

func (s *pureTurn) Next(answers []actor.Answer) (actor.Action, error) {
	if s.begun {
		s.state.Answers = append(s.state.Answers, answers)
	}
	s.begun = true
	action, err := ExecuteAgentStep(s.next, s.config, s.state)
	if err != nil {
		return actor.Action{}, err
	}
	s.state.Phase, s.state.Continuation = action.Phase, action.Continuation
	return action.Action, nil
}

func (s *pureTurn) Stop() {}

// size returns the approximate length of the encoded state in bytes, without the
// continuation.
func (s *State) size() int {
	n := actor.SizeOf(s.Request.Call.Parts)
	for _, answers := range s.Answers {
		for _, a := range answers {
			n += actor.SizeOf(a.Parts)
		}
	}
	return n
}

// stateVersion is the first byte of an encoded state.
const stateVersion = 1

// Encode returns the encoding that DecodeState reads. It omits the actor's state,
// Request.ActorState.
func (s *State) Encode() []byte {
	e := &actor.Encoder{}
	e.Uint(stateVersion)
	e.Call(s.Request.Call)
	e.Int(int64(s.Request.At))
	e.Int(int64(s.Request.Left))
	e.String(s.Phase)
	e.Bytes(s.Continuation)
	e.Uint(uint64(len(s.Answers)))
	for _, answers := range s.Answers {
		e.Uint(uint64(len(answers)))
		for _, a := range answers {
			e.Parts(a.Parts)
			e.Strings(a.Warnings)
			e.Refusal(a.Refusal)
		}
	}
	return e.Buf
}

// DecodeState parses a state. It never panics. A state that it accepts encodes to
// the same bytes.
func DecodeState(b []byte) (State, error) {
	d := actor.NewDecoder(b)
	if v := d.Uint(); d.Err() == nil && v != stateVersion {
		return State{}, fmt.Errorf("state: written in version %d, this program reads version %d", v, stateVersion)
	}
	var s State
	s.Request = actor.Begin{Call: d.Call(), At: actor.Time(d.Int()), Left: actor.Duration(d.Int())}
	s.Phase = d.String(actor.TextBytesMax)
	s.Continuation = d.Bytes(StateBytesMax)
	for range d.Count(stepsPerPrompt*StepsMax, "steps") {
		var answers []actor.Answer
		for range d.Count(1<<16, "answers") {
			answers = append(answers, actor.Answer{Parts: d.Parts(), Warnings: d.Strings(), Refusal: d.Refusal()})
			if d.Err() != nil {
				break
			}
		}
		s.Answers = append(s.Answers, slices.Clip(answers))
	}
	if err := d.End(); err != nil {
		return State{}, fmt.Errorf("state: %w", err)
	}
	return s, nil
}
