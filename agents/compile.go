// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/mutant"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// Compile makes an agent of a spec. A tool that the registry does not have, the
// agent does without; MissingTools names it.
func Compile(spec Spec, registry *tools.Registry) (actor.Definition, error) {
	encoded := spec.Encode()
	spec, err := ReadJSON(encoded)
	if err != nil {
		return actor.Definition{}, fmt.Errorf("agent %s: %w", spec.ID, err)
	}
	if !bytes.Equal(spec.Encode(), encoded) {
		return actor.Definition{}, fmt.Errorf("agent %s: its spec leaves things open; read it with ReadTOML or ReadJSON", spec.ID)
	}
	def := actor.Definition{Name: spec.ID, Hash: spec.Hash(), Doc: spec.Description, Spec: encoded}
	if spec.Durability == "none" {
		def.Durability = actor.Volatile
	}
	if spec.Turns == "interleaved" {
		def.Turns = actor.Interleaved
	}
	if spec.Recursion == "by_actor" {
		def.Recursion = actor.ByActor
	}
	config := Config{Name: spec.ID, Version: def.Hash.String(), Options: encoded}
	switch spec.Kind {
	case KindExternal:
		def.Kind = actor.External
		target := upstream.Target{URL: spec.Endpoint, AuthEnv: spec.Auth.Env, Concurrency: spec.Concurrency}
		if err := target.Check(); err != nil {
			return actor.Definition{}, fmt.Errorf("agent %s: %w", spec.ID, err)
		}
		def.Behavior = Pure(config, externalAgent{spec, target.Encode()}.next)
	default:
		def.Kind = actor.Declared
		// Each answer of the model may be followed by a step in which its tools are used.
		def.Behavior = pure{config, modelLoop{spec, toolSpecsOf(&spec, registry)}.next, 2 * spec.Limits.Steps}
	}
	return def, nil
}

// toolSpecsOf is the tools as a model is told of them.
func toolSpecsOf(spec *Spec, registry *tools.Registry) []upstream.ToolSpec {
	var offered []upstream.ToolSpec
	for _, name := range spec.Tools {
		t, ok := registry.Tool(name)
		if !ok {
			continue
		}
		description := t.Description
		if name == tools.CallAgent && spec.Agents != nil {
			description += " You may call: " + strings.Join(spec.Agents, ", ") + "."
			if len(spec.Agents) == 0 {
				continue
			}
		}
		offered = append(offered, upstream.ToolSpec{Name: t.Name, Description: description, Schema: t.Schema})
	}
	return slices.Clip(offered)
}

// millis is a time of a spec; 0 leaves it to the runtime.
func millis(ms int64) actor.Duration { return actor.Duration(ms) * time.Millisecond }

// externalAgent is an external agent: another process deals with the message.
type externalAgent struct {
	spec   Spec
	target []byte
}

func (o externalAgent) next(_ Config, state State) (Action, error) {
	if len(state.Answers) == 0 {
		return Continue("invoking", nil, actor.Ask{
			Kind: actor.AskInvoke, Name: o.spec.ID, Timeout: millis(o.spec.Limits.InvokeTimeoutMS), Idempotent: o.spec.Retry == RetrySafe,
			Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: o.target}},
		}), nil
	}
	who := "agent " + o.spec.ID
	answer := state.Answers[0][0]
	said, refusal := completionOf(who, answer)
	if refusal != nil {
		return EndRefused(refusal), nil
	}
	return endTurn(who, said, answer.Warnings), nil
}

// completionOf takes the completion out of an answer.
func completionOf(who string, answer actor.Answer) (upstream.Completion, *actor.Refusal) {
	if answer.Refusal != nil {
		return upstream.Completion{}, answer.Refusal
	}
	if len(answer.Parts) != 1 {
		return upstream.Completion{}, actor.Refuse(actor.Unavailable, "%s answers with %d parts, want one", who, len(answer.Parts))
	}
	said, err := upstream.DecodeCompletion(answer.Parts[0].Bytes)
	if err != nil {
		return upstream.Completion{}, actor.Refuse(actor.Unavailable, "%s: %v", who, err)
	}
	return said, nil
}

// endTurn is how a turn ends with an answer: whole, or for a part, which is then
// said. A filter that left nothing, and an answer cut off before its first word,
// are no answers.
func endTurn(who string, said upstream.Completion, warnings []string) Action {
	why := ""
	switch said.Finish {
	case upstream.FinishLength:
		why = "the answer is cut off: " + who + " was allowed no more tokens"
	case upstream.FinishFilter:
		why = "the upstream of " + who + " held a part of the answer back"
	case upstream.NoFinish:
		why = "the answer of " + who + " stopped before its end"
	}
	switch {
	case why == "" && len(warnings) == 0 || mutant.On("part-for-whole"):
		return Complete(said.Text)
	case said.Text == "" && said.Finish == upstream.FinishFilter:
		return EndRefused(actor.Refuse(actor.Rejected, "the upstream of %s held the whole answer back (content_filter)", who))
	case said.Text == "" && why != "":
		return EndRefused(actor.Refuse(actor.Unavailable, "%s, before its first word", why))
	case why != "":
		warnings = append(slices.Clone(warnings), why)
	}
	return Action{Action: actor.Action{Done: &actor.Outcome{Status: actor.Partial, Parts: actor.Text(said.Text), Warnings: warnings}}}
}
