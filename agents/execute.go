// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"context"
	"fmt"
	"reflect"

	"github.com/troupe-run/troupe/actor"
)

// ExecuteAgentStep makes one step. A refusal that the transition returns as its
// error gives the turn up with it, as in the other style; a panic is an error,
// and a state over its bound a refusal.
func ExecuteAgentStep(next Next, config Config, state State) (action Action, err error) {
	defer func() {
		if p := recover(); p != nil {
			action, err = Action{}, panicError(state.Request.Call.To, p)
		}
	}()
	if action, err = next(config, state); err != nil {
		out, err := outcomeOf("", nil, err)
		if err != nil {
			return Action{}, err
		}
		return Action{Action: actor.Action{Done: &out}}, nil
	}
	if n := state.size() + len(action.Phase) + len(action.Continuation); n > StateBytesMax {
		return EndRefused(actor.Refuse(actor.Budget, "the state of %s is %d bytes, at most %d allowed", state.Request.Call.To, n, StateBytesMax)), nil
	}
	return action, nil
}

// Answerer stands for the world: it answers one ask.
type Answerer func(ctx context.Context, ask actor.Ask) actor.Answer

// ExecuteAgentRequest makes a whole turn: it asks the answerer for whatever the
// agent asks, one after the other, until the turn has ended. The cell does the
// same with the real world, and writes everything down; this is for trying an
// agent out.
func ExecuteAgentRequest(ctx context.Context, behavior actor.Behavior, request actor.Begin, answer Answerer) (actor.Outcome, error) {
	turn := behavior.Begin(request)
	defer turn.Stop()
	var answers []actor.Answer
	for {
		if err := ctx.Err(); err != nil {
			return actor.Outcome{}, err
		}
		action, err := turn.Next(answers)
		if err != nil {
			return actor.Outcome{}, err
		}
		if action.Done != nil {
			return *action.Done, nil
		}
		answers = make([]actor.Answer, len(action.Asks))
		for i, ask := range action.Asks {
			answers[i] = answer(ctx, ask)
		}
	}
}

// Replay makes a turn go through answers given beforehand, one list for each
// action that asks, and returns its actions; an error comes after the last of them.
func Replay(behavior actor.Behavior, request actor.Begin, answers [][]actor.Answer) ([]actor.Action, error) {
	turn := behavior.Begin(request)
	defer turn.Stop()
	var actions []actor.Action
	for _, a := range append([][]actor.Answer{nil}, answers...) {
		action, err := turn.Next(a)
		if err != nil {
			return actions, err
		}
		actions = append(actions, action)
		if action.Done != nil {
			break
		}
	}
	return actions, nil
}

// SameTurn replays two behaviors side by side and says where they part. Given
// the same one twice, it finds what is not a pure function of message and answers.
func SameTurn(one, other actor.Behavior, request actor.Begin, answers [][]actor.Answer) error {
	a, errA := Replay(one, request, answers)
	b, errB := Replay(other, request, answers)
	for i := range min(len(a), len(b)) {
		if err := actor.SameAsks(a[i].Asks, b[i].Asks); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
		if !reflect.DeepEqual(a[i].Done, b[i].Done) {
			return fmt.Errorf("step %d: one ends with %+v, the other with %+v", i+1, a[i].Done, b[i].Done)
		}
	}
	switch {
	case (errA == nil) != (errB == nil):
		return fmt.Errorf("step %d: one fails with %v, the other with %v", min(len(a), len(b))+1, errA, errB)
	case len(a) != len(b):
		return fmt.Errorf("one makes %d steps, the other %d", len(a), len(b))
	}
	return nil
}
