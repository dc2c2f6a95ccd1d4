// SPDX-License-Identifier: Apache-2.0

package troupetest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/troupe-run/troupe"
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/emitter"
	"github.com/troupe-run/troupe/internal/program"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// Ask is an ask of the turn. The test MUST answer it exactly once.
type Ask struct {
	turn     *Turn
	ask      actor.Ask
	expected bool
	answer   *actor.Answer
}

// Answer answers with a text. For a model it is the final answer.
func (a *Ask) Answer(text string) {
	a.turn.tb.Helper()
	if a.ask.Streams() {
		a.completion(upstream.Completion{Text: text, Finish: upstream.FinishStop})
		return
	}
	a.answerWith(actor.Answer{Parts: actor.Text(text)})
}

// AnswerJSON answers with a value as JSON, as tools do.
func (a *Ask) AnswerJSON(value any) {
	a.turn.tb.Helper()
	b, err := json.Marshal(value)
	if err != nil {
		a.turn.tb.Fatalf("troupetest: answer: %v", err)
		return
	}
	a.answerWith(actor.Answer{Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: b}}})
}

// AnswerEmpty answers without content: it ends a sleep, or is a signal without a payload.
func (a *Ask) AnswerEmpty() {
	a.turn.tb.Helper()
	a.answerWith(actor.Answer{})
}

// Refuse answers with a refusal.
func (a *Ask) Refuse(code troupe.Code, format string, args ...any) {
	a.turn.tb.Helper()
	a.answerWith(actor.Answer{Refusal: actor.Refuse(reasonOf(code), format, args...)})
}

// Perform answers by the real function: that of a tool of WithTools, or of the work.
func (a *Ask) Perform() {
	a.turn.tb.Helper()
	ask := a.ask
	switch ask.Kind {
	case actor.AskWork:
		b, err := ask.Work(emitter.With(context.Background(), func(string) {}))
		answer := actor.Answer{Parts: []actor.Part{{Media: actor.MediaText, Bytes: b}}}
		if err != nil {
			if answer = (actor.Answer{Refusal: program.Troupe.Refusal(err)}); answer.Refusal == nil {
				answer.Refusal = actor.Refuse(actor.Unavailable, "%s: %v", ask.Name, err)
			}
		}
		a.answerWith(answer)
	case actor.AskTool:
		planned, result := a.turn.tools.Plan(a.turn.context(), ask)
		if result == nil {
			executed := a.turn.tools.Execute(context.Background(), planned.Name, planned.Parts[0].Bytes, a.turn.context())
			result = &executed
		}
		a.answerWith(*result)
	default:
		a.turn.tb.Fatalf("troupetest: Perform: only a tool and work have a function; use Answer")
	}
}

// Use is a call of a tool that a model makes, with its arguments as JSON.
type Use struct{ Tool, Args string }

// UseCall returns the tool call with which a model calls another agent.
func UseCall(agent, message string) Use {
	args, _ := json.Marshal(struct { // texts have a JSON form
		Agent   string `json:"agent_id"`
		Message string `json:"message"`
	}{agent, message})
	return Use{tools.CallAgent, string(args)}
}

// Uses answers as a model that makes these tool calls at once.
func (a *Ask) Uses(uses ...Use) {
	a.turn.tb.Helper()
	c := upstream.Completion{Finish: upstream.FinishCalls}
	for i, u := range uses {
		c.Calls = append(c.Calls, upstream.ToolCall{ID: fmt.Sprintf("use-%d-%d", len(a.turn.answers)+1, i+1), Name: u.Tool, Arguments: u.Args})
	}
	a.completion(c)
}

// Scripted answers as the built-in model does, which follows the instructions in its prompt.
func (a *Ask) Scripted() {
	a.turn.tb.Helper()
	a.completion(upstream.Script(a.prompt()))
}

// Prompt returns the messages of a prompt to a model, and the names of the tools that it offers.
func (a *Ask) Prompt() (messages []troupe.Message, offered []string) {
	a.turn.tb.Helper()
	p := a.prompt()
	for _, m := range p.Messages {
		messages = append(messages, troupe.Message{Role: m.Role.String(), Text: m.Text})
	}
	for _, s := range p.Tools {
		offered = append(offered, s.Name)
	}
	return messages, slices.Clip(offered)
}

func (a *Ask) prompt() upstream.Prompt {
	a.turn.tb.Helper()
	p, err := upstream.DecodePrompt(a.ask.Body)
	if a.ask.Kind != actor.AskModel || err != nil {
		a.turn.tb.Fatalf("%s has no prompt: %v", describeAsk(&a.ask), err)
	}
	return p
}

func (a *Ask) completion(c upstream.Completion) {
	a.turn.tb.Helper()
	if !a.ask.Streams() {
		a.turn.tb.Fatalf("%s: only a model answers with a completion", describeAsk(&a.ask))
	}
	a.answerWith(actor.Answer{Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: c.Encode()}}})
}

func (a *Ask) answerWith(answer actor.Answer) {
	a.turn.tb.Helper()
	if a.answer != nil {
		a.turn.tb.Fatalf("%s: answered twice", describeAsk(&a.ask))
	}
	a.answer = &answer
}
