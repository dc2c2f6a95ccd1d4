// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// Compile returns the definition of a spec's agent. Tools missing from the
// registry are left out; MissingTools names them.
func Compile(spec Spec, registry *tools.Registry) (actor.Definition, error) {
	encoded := spec.Encode()
	spec, err := ReadJSON(encoded)
	if err != nil {
		return actor.Definition{}, fmt.Errorf("agent %s: %w", spec.ID, err)
	}
	if !bytes.Equal(spec.Encode(), encoded) {
		return actor.Definition{}, fmt.Errorf("agent %s: incomplete spec; parse it with ReadTOML or ReadJSON", spec.ID)
	}
	def := actor.Definition{Name: spec.ID, Hash: spec.Hash(), Title: spec.Name, Doc: spec.Description, Capabilities: spec.Capabilities, Skills: spec.Skills, Routing: spec.Routing.routing(), Coalesce: spec.Coalesce, Code: spec.Code, Provides: spec.provided(), UserText: spec.UserText, Spec: spec.shown()}
	if spec.Durability == "none" {
		def.Durability = actor.Volatile
	}
	if spec.Turns == "interleaved" {
		def.Turns = actor.Interleaved
	}
	if spec.Recursion == "by_actor" {
		def.Recursion = actor.ByActor
	}
	if spec.Priority != "" {
		def.Lane, err = actor.ParseLane(spec.Priority)
		if err != nil {
			return actor.Definition{}, fmt.Errorf("agent %s: %w", spec.ID, err)
		}
	}
	if def.Transcript, err = actor.ParseTranscriptPolicy(spec.Transcript); err != nil {
		return actor.Definition{}, fmt.Errorf("agent %s: transcript %w", spec.ID, err)
	}
	def.Purse, def.Reserve = spec.Budget.purses()
	def.MaxActive, def.OneSession = spec.MaxActive, spec.DefaultSession != ""
	config := Config{Name: spec.ID, Version: def.Hash.String(), Options: encoded}
	switch spec.Kind {
	case KindExternal:
		def.Kind = actor.External
		target := upstream.Target{URL: spec.Endpoint, AuthEnv: spec.Auth.Env, Sealed: spec.Auth.Sealed, Concurrency: spec.Concurrency, Retry: spec.RetryPolicy(), Safe: spec.Retry == RetrySafe}
		if err := target.Check(); err != nil {
			return actor.Definition{}, fmt.Errorf("agent %s: %w", spec.ID, err)
		}
		def.Target = target.Encode()
		def.Behavior = Pure(config, externalAgent{spec, def.Target}.next)
	case KindOrchestrator:
		def.Kind, def.Callees, def.Sends, def.Requests, def.Inward = actor.Declared, []string{}, []string{}, spec.requests(), true
		def.Behavior = pure{config, orchestrator{modelLoop{spec: spec}}.next, orchestratorSteps}
	default:
		def.Kind = actor.Declared
		if def.Callees = spec.Agents; !spec.canCall() {
			def.Callees = []string{}
		}
		def.Sends, def.Requests = spec.sends(), spec.requests()
		// Each completion may be followed by a step that runs its tool calls, and by those that these need.
		loop := modelLoop{spec: spec, toolSpecs: toolSpecsOf(&spec, registry)}
		if spec.Output != nil {
			if loop.output, err = newOutput(&spec); err != nil {
				return actor.Definition{}, fmt.Errorf("agent %s: %s: %w", spec.ID, outputField, err)
			}
			def.Inward = true // an answer is shown once it has been checked
		}
		def.Behavior = pure{config, loop.next, stepsPerPrompt * spec.Limits.Steps}
	}
	return def, nil
}

// toolSpecsOf returns the tool specs that are sent to the model. Declared tools are offered
// under a spelling of their names without dots, unless another tool of the agent has it.
func toolSpecsOf(spec *Spec, registry *tools.Registry) []upstream.ToolSpec {
	var offered []upstream.ToolSpec
	for _, name := range spec.offered() {
		t, ok := registry.Tool(name)
		if !ok {
			continue
		}
		description := t.Description
		if (name == tools.CallAgent || name == tools.AgentCall || name == tools.DebateCall || name == tools.RequestCapability) && spec.Agents != nil {
			description += " You may call: " + strings.Join(spec.Agents, ", ") + "."
			if len(spec.Agents) == 0 {
				continue
			}
		}
		if t.Declared != nil && !slices.Contains(spec.offered(), tools.ModelName(name)) {
			name = tools.ModelName(name)
		}
		offered = append(offered, upstream.ToolSpec{Name: name, Description: description, Schema: t.Schema})
	}
	return slices.Clip(offered)
}

// millis converts a time limit of a spec; 0 means the limit of the runtime.
func millis(ms int64) actor.Duration { return actor.Duration(ms) * time.Millisecond }

// externalAgent is an agent whose messages are processed by another process.
type externalAgent struct {
	spec   Spec
	target []byte
}

func (o externalAgent) next(_ Config, state State) (Action, error) {
	if len(state.Answers) == 0 {
		return Continue("invoking", nil, actor.Ask{
			Kind: actor.AskInvoke, Name: o.spec.ID, Timeout: millis(o.spec.Limits.InvokeTimeoutMS), Idempotent: o.spec.Retry != RetryNever,
			Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: o.target}},
			Body:  upstream.EncodeTranscript(upstream.TranscriptMessages(state.Request.Transcript, contentOf)),
		}), nil
	}
	subject := "agent " + o.spec.ID
	answer := state.Answers[0][0]
	c, refusal := completionOf(subject, answer)
	if refusal != nil {
		return EndRefused(refusal), nil
	}
	return endTurn(subject, c, answer.Warnings), nil
}

// completionOf decodes the completion in an answer.
func completionOf(subject string, answer actor.Answer) (upstream.Completion, *actor.Refusal) {
	if answer.Refusal != nil {
		return upstream.Completion{}, answer.Refusal
	}
	if len(answer.Parts) != 1 {
		return upstream.Completion{}, actor.Refuse(actor.Unavailable, "%s: got %d parts in the answer, want 1", subject, len(answer.Parts))
	}
	c, err := upstream.DecodeCompletion(answer.Parts[0].Bytes)
	if err != nil {
		return upstream.Completion{}, actor.Refuse(actor.Unavailable, "%s: %v", subject, err)
	}
	return c, nil
}

// endTurn ends the turn with the text of a completion. A truncated, filtered or
// unfinished completion makes the outcome partial and adds a warning. If such a
// completion has no text, the turn ends with a refusal. Warnings of the answer make
// the outcome partial too.
func endTurn(subject string, c upstream.Completion, warnings []string) Action {
	warning := ""
	switch c.Finish {
	case upstream.FinishLength:
		warning = "answer truncated: " + subject + " reached its token limit"
	case upstream.FinishFilter:
		warning = "answer incomplete: the upstream of " + subject + " filtered a part of it"
	case upstream.NoFinish:
		warning = "answer incomplete: " + subject + " stopped early"
	}
	switch {
	case warning == "" && len(warnings) == 0:
		return Complete(c.Text)
	case c.Text == "" && c.Finish == upstream.FinishFilter:
		return EndRefused(actor.Refuse(actor.Rejected, "the upstream of %s filtered the whole answer (content_filter)", subject))
	case c.Text == "" && warning != "":
		return EndRefused(actor.Refuse(actor.Unavailable, "%s, before any text", warning))
	case warning != "":
		warnings = append(slices.Clone(warnings), warning)
	}
	return Action{Action: actor.Action{Done: &actor.Outcome{Status: actor.Partial, Parts: actor.Text(c.Text), Warnings: warnings}}}
}
