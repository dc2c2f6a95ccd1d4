// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"cmp"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/tools"
)

// ModelStepsDefault is the default of ModelRequest.Limits.Steps. Each prompt may be followed by a step
// with tool calls, and a blocking agent has StepsMax of both.
const ModelStepsDefault = StepsMax / 2

// ModelRequest is a prompt of a blocking agent to a model.
type ModelRequest struct {
	Model      string
	Prompt     string              // instructions; "" means those of a declared agent without any
	Transcript []actor.ChatMessage // earlier messages
	Message    string
	Tools      []string // names; those that Registry does not have are not offered
	Registry   *tools.Registry
	OnFailure  string // see Spec.OnFailure
	Parameters Parameters
	Limits     SpecLimits
}

// Model prompts a model and runs the tools that it calls, as a declared agent does, until the model
// answers. An incomplete answer adds warnings to the turn. The tools that are offered are part of prompts
// alone, so a replay does not depend on them.
func (t *Turn) Model(m ModelRequest) (string, error) {
	id := t.Self().Agent
	spec := Spec{ID: id, Kind: KindDeclared, Model: m.Model, Prompt: cmp.Or(m.Prompt, defaultPrompt(id)), Tools: m.Tools, OnFailure: cmp.Or(m.OnFailure, ReturnError),
		Parameters: m.Parameters, Limits: m.Limits}
	if spec.Limits.Steps == 0 {
		spec.Limits.Steps = ModelStepsDefault
	}
	loop := modelLoop{spec: spec}
	if m.Registry != nil {
		loop.toolSpecs = toolSpecsOf(&spec, m.Registry)
	}
	state := State{Request: t.begin}
	state.Request.Call.Parts, state.Request.Transcript = actor.Text(m.Message), m.Transcript
	for {
		action, err := loop.next(Config{}, state)
		if err != nil {
			return "", err
		}
		t.refused = append(t.refused, action.Refused...)
		if done := action.Done; done != nil {
			t.warnings = append(t.warnings, done.Warnings...)
			if done.Refusal != nil {
				return "", done.Refusal
			}
			return actor.TextOf(done.Parts), nil
		}
		state.Answers = append(state.Answers, slices.Clone(t.askOnce(action.Asks)))
	}
}
