// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

// Inspection is a run as its agent has seen it, step by step.
type Inspection struct {
	Run   string           `json:"run_id"`
	Agent string           `json:"agent"`
	Steps []InspectionStep `json:"steps"`
	// Note is the reason why the prompts of models are missing; "" if they are not.
	Note string `json:"note,omitzero"`
}

// InspectionStep is one action of an agent, between two states of its turn.
type InspectionStep struct {
	N       int                `json:"n"` // from 1
	Before  InspectionState    `json:"state_before"`
	Actions []InspectionAction `json:"actions"`
	After   InspectionState    `json:"state_after"` // once all actions are answered
}

// InspectionState is what an agent has gathered in a turn.
type InspectionState struct {
	Answers int `json:"answers"`
	Bytes   int `json:"bytes"` // of the request and the answers
}

// InspectionAction is an action by its name, with its parameters and its answer.
type InspectionAction struct {
	Action     string         `json:"action"`
	Parameters jsontext.Value `json:"parameters"`
	Prompt     jsontext.Value `json:"prompt,omitzero"` // of a model
	Answer     string         `json:"answer,omitzero"`
	Error      string         `json:"error,omitzero"`
}

// Inspect returns the steps of a run by the records of its actor since the actor's last snapshot. Prompts are those
// that the definition of the run makes again of the recorded answers: nothing is called.
func (v View) Inspect(id actor.CallID) (out Inspection, err error) {
	owner, err := v.Owner(id)
	if err != nil {
		return out, err
	}
	saved, err := v.Log.Load(owner.Actor)
	if err != nil {
		return out, err
	}
	run, state, ended, err := runOf(saved, id)
	switch {
	case err != nil:
		return out, err
	case run == nil:
		return out, noRecords(id, owner.Actor)
	}
	out.Run, out.Agent = id.String(), owner.Actor.String()
	at := InspectionState{Bytes: actor.SizeOf(run.Call.Parts)}
	for i := range run.Steps {
		step := InspectionStep{N: i + 1, Before: at}
		for j := range run.Steps[i].Asks {
			step.Actions = append(step.Actions, actionOf(&run.Steps[i].Asks[j]))
		}
		for _, a := range answersOf(run.Steps[i]) {
			at.Answers, at.Bytes = at.Answers+1, at.Bytes+actor.SizeOf(a.Parts)
		}
		step.After = at
		out.Steps = append(out.Steps, step)
	}
	if ended != nil {
		last := endOf(actor.TextOf(ended.Reply.Parts), ended.Reply.Refusal)
		out.Steps = append(out.Steps, InspectionStep{N: len(out.Steps) + 1, Before: at, Actions: []InspectionAction{last}, After: at})
	}
	out.Note = v.addPrompts(&out, run, state)
	return out, nil
}

// runOf returns a run with all its steps, the state of its actor before its turn, and its end. The run is nil if
// its records are not there any more.
func runOf(saved store.Saved, id actor.CallID) (run *store.Run, state []actor.StateItem, ended *store.Ended, err error) {
	j, err := store.Fold(store.Saved{Snapshot: saved.Snapshot})
	if err != nil {
		return nil, nil, nil, err
	}
	for _, e := range saved.Entries {
		if end, ok := e.Record.(store.Ended); ok && end.Call == id {
			return j.Run(id), state, &end, nil
		}
		if err := j.ApplyEntry(e); err != nil {
			return nil, nil, nil, fmt.Errorf("%s: %w", e.Actor, err)
		}
		if run := j.Run(id); run != nil && len(run.Steps) == 0 {
			state = slices.Clone(j.EffectiveState())
		}
	}
	return j.Run(id), state, nil, nil
}

// answersOf returns the answers to a step that its agent was given.
func answersOf(step store.Step) []actor.Answer {
	if slices.ContainsFunc(step.Asks, func(a store.Asked) bool { return a.Answer == nil }) {
		return nil
	}
	return runtime.TurnAnswers(step.Asks)
}

func actionOf(a *store.Asked) (out InspectionAction) {
	ask := &a.Ask
	parameters := map[string]any{}
	switch ask.Kind {
	case actor.AskTool:
		out.Action = tools.ActionOf(ask.Name)
		parameters["tool_name"] = ask.Name
		if input := jsontext.Value(bytesOf(ask.Parts)); input.IsValid() {
			parameters["parameters"] = input
		}
	case actor.AskCall:
		out.Action = "RequestToolCall"
		parameters["tool_name"] = tools.CallAgent
		parameters["parameters"] = map[string]string{"agent_id": ask.Name, "message": actor.TextOf(ask.Parts)}
	default:
		out.Action = "Request " + ask.Kind.String()
		parameters["name"] = ask.Name
	}
	if !a.Call.IsZero() {
		parameters["run_id"] = a.Call.String()
	}
	out.Parameters = invariant.Must(json.Marshal(parameters, json.Deterministic(true)))
	switch {
	case a.Answer == nil:
	case a.Answer.Refusal != nil:
		out.Error = a.Answer.Refusal.Error()
	default:
		out.Answer = string(bytesOf(a.Answer.Parts))
	}
	return out
}

// bytesOf returns the content of the first part.
func bytesOf(parts []actor.Part) []byte {
	if len(parts) == 0 {
		return nil
	}
	return parts[0].Bytes
}

// turnOf returns a new turn of the definition of a run. It needs nothing but the store, so agents that are
// programs have none.
func (v View) turnOf(run *store.Run, state []actor.StateItem) (actor.Turn, error) {
	if run.Heard > 0 {
		return nil, errors.New("the run has earlier messages of its session, which are not read")
	}
	catalog, err := loadCatalog(v.Log, nil, nil, nil, nil, nil, nil, false, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	current, former := catalog.definitions()
	all := slices.Concat(current, former)
	i := slices.IndexFunc(all, func(d actor.Definition) bool {
		return d.Name == run.Call.To.Agent && d.Hash == run.Definition && d.Spec != nil
	})
	if i < 0 {
		return nil, errors.New("the store does not have the definition of the run, as of an agent that is a program")
	}
	return all[i].Behavior.Begin(actor.Begin{Call: run.Call, At: run.At, Left: run.Call.Left, ActorState: state}), nil
}

// asksOf returns the asks that the agent made in a step, without those of external agents.
func asksOf(step store.Step) (asks []actor.Ask) {
	for i := range step.Asks {
		if !step.Asks[i].Added {
			asks = append(asks, step.Asks[i].Ask)
		}
	}
	return asks
}

// addPrompts replays a turn and adds the prompts of its models. It returns the reason if it cannot.
func (v View) addPrompts(out *Inspection, run *store.Run, state []actor.StateItem) string {
	turn, err := v.turnOf(run, state)
	if err != nil {
		return "prompts are not shown: " + err.Error()
	}
	defer turn.Stop()
	var answers []actor.Answer
	for i := range run.Steps {
		step := run.Steps[i]
		action, err := turn.Next(answers)
		if err == nil && action.Done != nil {
			err = errors.New("the turn now ends")
		}
		if err == nil {
			err = actor.SameAsks(asksOf(step), action.Asks)
		}
		if err != nil {
			return fmt.Sprintf("prompts from step %d on are not shown: the agent asks for something else now: %v", i+1, err)
		}
		n := 0
		for j := range step.Asks {
			if step.Asks[j].Added {
				continue
			}
			out.Steps[i].Actions[j].Prompt = promptOf(&action.Asks[n])
			n++
		}
		answers = answersOf(step)
	}
	return ""
}

// promptOf returns what a model is sent; nil for other asks.
func promptOf(ask *actor.Ask) jsontext.Value {
	if body := jsontext.Value(ask.Body); ask.Kind == actor.AskModel && body.IsValid() {
		return body
	}
	return nil
}
