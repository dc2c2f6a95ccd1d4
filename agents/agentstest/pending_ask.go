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

// PendingAsk is something that a turn waits for. It is answered once.
type PendingAsk struct {
	turn     *Turn
	ask      actor.Ask
	expected bool
	answer   *actor.Answer
}

// Ask is the ask itself, to look at more closely.
func (a *PendingAsk) Ask() actor.Ask { return a.ask }

// Prompt is all that a model is asked.
func (a *PendingAsk) Prompt() upstream.Prompt {
	a.turn.tb.Helper()
	p, err := upstream.DecodePrompt(a.ask.Body)
	if a.ask.Kind != actor.AskModel || err != nil {
		a.turn.tb.Fatalf("%s has no prompt: %v", describeAsk(&a.ask), err)
	}
	return p
}

// Answer answers with a text. A model or an external agent ends with it.
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

// AnswerEmpty lets a sleep or a wait end with nothing.
func (a *PendingAsk) AnswerEmpty() {
	a.turn.tb.Helper()
	a.answerWith(actor.Answer{})
}

// Use is a tool that a model wants, with its input as JSON.
type Use struct{ Tool, Input string }

// UseCall is a call of another agent that a model wants.
func UseCall(agent, message string) Use {
	input, err := json.Marshal(struct {
		Agent   string `json:"agent_id"`
		Message string `json:"message"`
	}{agent, message})
	invariant.Check(err == nil, "agentstest: %v", err)
	return Use{tools.CallAgent, string(input)}
}

// Uses answers as a model that wants tools, all at once.
func (a *PendingAsk) Uses(uses ...Use) {
	a.turn.tb.Helper()
	c := upstream.Completion{Finish: upstream.FinishCalls}
	for i, u := range uses {
		c.Calls = append(c.Calls, upstream.ToolCall{ID: fmt.Sprintf("use-%d-%d", len(a.turn.answers)+1, i+1), Name: u.Tool, Arguments: u.Input})
	}
	a.completion(c)
}

// Scripted answers as the built-in model does, which does what it is told.
func (a *PendingAsk) Scripted() {
	a.turn.tb.Helper()
	a.completion(upstream.Script(a.Prompt()))
}

func (a *PendingAsk) completion(c upstream.Completion) {
	a.turn.tb.Helper()
	if !a.ask.Streams() {
		a.turn.tb.Fatalf("%s is answered as a model is, and is none", describeAsk(&a.ask))
	}
	a.answerWith(actor.Answer{Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: c.Encode()}}})
}

func (a *PendingAsk) answerWith(answer actor.Answer) {
	a.turn.tb.Helper()
	if a.answer != nil {
		a.turn.tb.Fatalf("%s is answered twice", describeAsk(&a.ask))
	}
	a.answer = &answer
}
