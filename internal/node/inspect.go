// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

// replayer replays turns of agents whose definitions it has: nothing is called.
type replayer struct {
	View
	definitions func() ([]actor.Definition, error)
}

// replayer returns one with the definitions in the store.
func (v View) replayer() replayer {
	return replayer{v, sync.OnceValues(func() ([]actor.Definition, error) {
		catalog, err := loadCatalog(v.Log, new(Config), slog.New(slog.DiscardHandler))
		if err != nil {
			return nil, err
		}
		current, former := catalog.definitions()
		return slices.Concat(current, former), nil
	})}
}

// Steps returns steps of a run by the records of its actor since the actor's last snapshot. Prompts are those
// that the definition of the run makes again of the recorded answers.
func (v View) Steps(q command.StepsQuery) (command.Steps, error) { return v.replayer().steps(q) }

// steps returns steps of a run for a client of the node.
func (c *Commands) steps(ctx context.Context, by *actor.Principal, q command.StepsQuery) (command.Result, error) {
	if !ingress.Allows(*by, ingress.ScopeOperator) {
		return nil, actor.Refuse(actor.Rejected, "the steps of a run need the scope %s", ingress.ScopeOperator)
	}
	if err := checkLimit(q.Limit, command.StepsMax); err != nil {
		return nil, err
	}
	return read(ctx, c, by, func(v View) (command.Steps, error) { return replayer{v, c.definitions}.steps(q) })
}

func (v replayer) steps(q command.StepsQuery) (out command.Steps, err error) {
	run, owner, err := v.recorded(q.Run)
	if err != nil {
		return out, err
	}
	out.Run, out.Agent = q.Run.String(), owner.Actor.String()
	at := command.StepState{Bytes: actor.SizeOf(run.Call.Parts)}
	for i := range run.Steps {
		step := command.Step{N: i + 1, Before: at}
		for j := range run.Steps[i].Asks {
			step.Actions = append(step.Actions, actionOf(&run.Steps[i].Asks[j]))
		}
		for _, a := range answersOf(run.Steps[i]) {
			at.Answers, at.Bytes = at.Answers+1, at.Bytes+actor.SizeOf(a.Parts)
		}
		step.After = at
		out.All = append(out.All, step)
	}
	if run.ended != nil {
		last := endOf(actor.TextOf(run.ended.Reply.Parts), run.ended.Reply.Refusal)
		out.All = append(out.All, command.Step{N: len(out.All) + 1, Before: at, Actions: []command.StepAction{last}, After: at})
	}
	if q.Prompts {
		out.Note = v.addPrompts(&out, &run)
	}
	out.Cut(q.After, q.Limit)
	return out, nil
}

// recordedRun is a run with all its steps.
type recordedRun struct {
	*store.Run
	state      []actor.StateItem // of its actor before its turn
	transcript *store.Transcript // of its actor, with later messages
	ended      *store.Ended      // nil: the run is open
}

// recorded returns a run by the records of its actor, and its owner.
func (v View) recorded(id actor.CallID) (r recordedRun, owner command.Owner, err error) {
	if owner, err = v.Owner(id); err != nil {
		return r, owner, err
	}
	saved, err := v.Log.Load(owner.Actor)
	if err != nil {
		return r, owner, err
	}
	j, err := store.Fold(store.Saved{Snapshot: saved.Snapshot})
	if err != nil {
		return r, owner, err
	}
	r.transcript = &j.Transcript
	for _, e := range saved.Entries {
		if end, ok := e.Record.(store.Ended); ok && end.Call == id {
			r.ended = &end
			break
		}
		if err := j.ApplyEntry(e); err != nil {
			return r, owner, fmt.Errorf("%s: %w", e.Actor, err)
		}
		if run := j.Run(id); run != nil && len(run.Steps) == 0 {
			r.state = slices.Clone(j.EffectiveState())
		}
	}
	if r.Run = j.Run(id); r.Run == nil {
		return r, owner, noRecords(id, owner.Actor)
	}
	return r, owner, nil
}

// answersOf returns the answers to a step that its agent was given.
func answersOf(step store.Step) []actor.Answer {
	if slices.ContainsFunc(step.Asks, func(a store.Asked) bool { return a.Answer == nil }) {
		return nil
	}
	return runtime.TurnAnswers(step.Asks)
}

func actionOf(a *store.Asked) (out command.StepAction) {
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
		parameters["parameters"] = map[string]string{"agent_id": ask.Name, "message": strings.ToValidUTF8(actor.TextOf(ask.Parts), "\uFFFD")}
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
		out.Error = strings.ToValidUTF8(a.Answer.Refusal.Error(), "\uFFFD")
	default:
		out.Answer = strings.ToValidUTF8(string(bytesOf(a.Answer.Parts)), "\uFFFD")
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

// turnOf returns a new turn of the definition of a run. Agents that are programs have none: their
// code runs only as a part of a run.
func (v replayer) turnOf(run *recordedRun) (actor.Turn, error) {
	all, err := v.definitions()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(d actor.Definition) bool {
		return d.Name == run.Call.To.Agent && d.Hash == run.Definition && d.Spec != nil
	})
	if i < 0 {
		return nil, errors.New("the store does not have the definition of the run, as of an agent that is a program")
	}
	var earlier []actor.ChatMessage
	if run.Heard > 0 && all[i].Transcript != actor.TranscriptNone && run.Call.IsRoot() {
		earlier, err = store.ReadTranscript(v.Log, run.Call.To, run.transcript, all[i].Transcript.Window(run.Heard), run.Heard)
		if err != nil {
			return nil, fmt.Errorf("the earlier messages of its session: %w", err)
		}
		earlier = slices.DeleteFunc(earlier, func(m actor.ChatMessage) bool { return m.Extensions.LeftOut() })
	}
	return all[i].Behavior.Begin(actor.Begin{Call: run.Call, At: run.At, Left: run.Call.Left, ActorState: run.state, Transcript: earlier}), nil
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
func (v replayer) addPrompts(out *command.Steps, run *recordedRun) string {
	turn, err := v.turnOf(run)
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
			out.All[i].Actions[j].Prompt = promptOf(&action.Asks[n])
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
