// SPDX-License-Identifier: Apache-2.0

package agentstest

import (
	"fmt"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// PendingAsk is an ask of the turn. The test MUST answer it exactly once.
type PendingAsk struct {
	turn     *Turn
	ask      actor.Ask
	expected bool
	answer   *actor.Answer
}

// Ask returns the ask, for further checks.
func (a *PendingAsk) Ask() actor.Ask { return a.ask }

// Prompt returns the complete prompt of a model.
func (a *PendingAsk) Prompt() upstream.Prompt {
	a.turn.tb.Helper()
	p, err := upstream.DecodePrompt(a.ask.Body)
	if a.ask.Kind != actor.AskModel || err != nil {
		a.turn.tb.Fatalf("%s has no prompt: %v", describeAsk(&a.ask), err)
	}
	return p
}

// Answer answers with a text. For a model or an external agent it is the final
// answer.
func (a *PendingAsk) Answer(text string) {
	a.turn.tb.Helper()
	if a.ask.Streams() {
		a.completion(upstream.Completion{Text: text, Finish: upstream.FinishStop})
		return
	}
	a.answerWith(actor.Answer{Parts: actor.Text(text)})
}

// AnswerJSON answers with JSON, as tools do.
func (a *PendingAsk) AnswerJSON(text string) {
	a.turn.tb.Helper()
	a.answerWith(actor.Answer{Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(text)}}})
}

// Refuse answers with a refusal.
func (a *PendingAsk) Refuse(reason actor.Reason, format string, args ...any) {
	a.turn.tb.Helper()
	a.answerWith(actor.Answer{Refusal: actor.Refuse(reason, format, args...)})
}

// AnswerEmpty answers without content. It ends a sleep, or a wait for a signal that
// has no content.
func (a *PendingAsk) AnswerEmpty() {
	a.turn.tb.Helper()
	a.answerWith(actor.Answer{})
}

// AnswerAs answers with content or a refusal of any form.
func (a *PendingAsk) AnswerAs(answer actor.Answer) {
	a.turn.tb.Helper()
	a.answerWith(answer)
}

// Use is a tool call of a model, with its input as JSON.
type Use struct{ Tool, Input string }

// UseCall returns the tool call with which a model calls another agent.
func UseCall(agent, message string) Use {
	input, err := json.Marshal(struct {
		Agent   string `json:"agent_id"`
		Message string `json:"message"`
	}{agent, message})
	invariant.Check(err == nil, "agentstest: %v", err)
	return Use{tools.CallAgent, string(input)}
}

// Uses answers as a model that makes these tool calls at once.
func (a *PendingAsk) Uses(uses ...Use) {
	a.turn.tb.Helper()
	c := upstream.Completion{Finish: upstream.FinishCalls}
	for i, u := range uses {
		c.Calls = append(c.Calls, upstream.ToolCall{ID: fmt.Sprintf("use-%d-%d", len(a.turn.answers)+1, i+1), Name: u.Tool, Arguments: u.Input})
	}
	a.completion(c)
}

// Scripted answers as the built-in model does, which follows the instructions in its
// prompt.
func (a *PendingAsk) Scripted() {
	a.turn.tb.Helper()
	a.completion(upstream.Script(a.Prompt()))
}

func (a *PendingAsk) completion(c upstream.Completion) {
	a.turn.tb.Helper()
	if !a.ask.Streams() {
		a.turn.tb.Fatalf("%s: only a model or an external agent answers with a completion", describeAsk(&a.ask))
	}
	a.answerWith(actor.Answer{Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: c.Encode()}}})
}

func (a *PendingAsk) answerWith(answer actor.Answer) {
	a.turn.tb.Helper()
	if a.answer != nil {
		a.turn.tb.Fatalf("%s: answered twice", describeAsk(&a.ask))
	}
	a.answer = &answer
}
