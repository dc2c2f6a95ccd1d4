// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"context"
	"fmt"
	"reflect"

	"github.com/troupe-run/troupe/actor"
)

// ExecuteAgentStep runs one step of a transition. A refusal returned as the error
// ends the turn with that refusal, as for blocking agents. A panic is returned as
// an error, and a state over its limit as a refusal.
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

// Answerer answers one ask. It replaces the environment of an agent.
type Answerer func(ctx context.Context, ask actor.Ask) actor.Answer

// ExecuteAgentRequest runs a whole turn. It answers the asks of the agent one by
// one with the answerer until the turn ends. A cell does the same with real
// effects and persists each step. This function is for experiments and tests.
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

// Replay runs a turn with the given answers, one list for each action with asks.
// If a step fails, it returns the actions of the steps before it and the error.
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

// SameTurn replays two behaviors with the same answers and returns an error that
// describes their first difference. If both are the same behavior, it detects
// turns that are not a pure function of message and answers.
func SameTurn(one, other actor.Behavior, request actor.Begin, answers [][]actor.Answer) error {
	a, errA := Replay(one, request, answers)
	b, errB := Replay(other, request, answers)
	for i := range min(len(a), len(b)) {
		if err := actor.SameAsks(a[i].Asks, b[i].Asks); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
		if !reflect.DeepEqual(a[i].Done, b[i].Done) {
			return fmt.Errorf("step %d: the first ends with %+v, the second with %+v", i+1, a[i].Done, b[i].Done)
		}
	}
	switch {
	case (errA == nil) != (errB == nil):
		return fmt.Errorf("step %d: the first fails with %v, the second with %v", min(len(a), len(b))+1, errA, errB)
	case len(a) != len(b):
		return fmt.Errorf("the first makes %d steps, the second %d", len(a), len(b))
	}
	return nil
}
