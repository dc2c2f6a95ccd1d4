// SPDX-License-Identifier: Apache-2.0

package signals

import (
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
)

// Operations of the signals. That of CallAgent is the name of the tool, whose input is its content.
const (
	OpCallAgent  = "call_agent"
	OpAddTool    = actor.ReservedOperation + "tool"
	OpAddModel   = actor.ReservedOperation + "model"
	OpEndModel   = actor.ReservedOperation + "model_end"
	OpDecide     = actor.ReservedOperation + "decide"
	OpGiveResult = actor.ReservedOperation + "result"
	OpRetry      = actor.ReservedOperation + "retry"
	// OpCancelReminder cancels the reminder Call.Parent of the actor, and needs no run either.
	OpCancelReminder = actor.ReservedOperation + "cancel"
	OpAppend         = actor.ReservedOperation + "append" // to the transcript of the actor, whose content is the text; it needs no run
)

type (
	// CallAgent is the request of an external agent to call another one. The answer to the
	// signal is that of the call.
	CallAgent struct {
		Agent     string `json:"agent_id"`
		Message   string `json:"message"`
		TimeoutMS int64  `json:"timeout_ms,omitzero"`
	}

	// AddTool is the request of an external agent to use a declared tool. It is answered with
	// AddedTool once the tool call is recorded. Its result is read from the events of the run.
	AddTool struct {
		Args jsontext.Value `json:"args"`
		Tool string         `json:"tool_name"`
	}
	// AddedTool is the content of the answer to AddTool.
	AddedTool struct {
		ID string `json:"tool_call_id"`
	}

	// AddModel records a request of an external agent to a model before it is sent. It is
	// answered with AddedModel.
	AddModel struct {
		Model   string       `json:"model"`
		Request ModelRequest `json:"request"`
		// The most tokens that the prompt and the answer can have; 0 is unknown.
		PromptTokens int64 `json:"prompt_tokens,omitzero"`
		AnswerTokens int64 `json:"answer_tokens,omitzero"`
	}
	// ModelRequest names a request to a model.
	ModelRequest struct {
		ID string `json:"request_id"` // of the HTTP request
	}
	// AddedModel is the content of the answer to AddModel.
	AddedModel struct {
		ID string `json:"llm_call_id"`
	}

	// EndModel records the outcome of a request to a model, before the agent reads the end of
	// the answer: a completion or a refusal.
	EndModel struct {
		Completion string `json:"completion,omitzero"` // of package upstream, without text
		Detail     string `json:"detail,omitzero"`     // of the refusal
		ID         string `json:"llm_call_id"`
		Reason     string `json:"reason,omitzero"` // type of the refusal, if the request has failed
	}

	// Decide decides about a tool call that waits for a person. The first decision counts.
	Decide struct {
		Approval string `json:"approval_id"`
		Approve  bool   `json:"approve"`
		Reason   string `json:"reason,omitzero"` // given by the person
		Raise    *Raise `json:"raise,omitzero"`  // of a budget; nil: by as much again
	}
	// Raise is what is added to the budget of a run.
	Raise struct {
		Tokens int64 `json:"tokens,omitzero"`
		Micros int64 `json:"micros,omitzero"` // millionths of the currency
	}

	// Decided is the content of the answer to Decide: when the call was decided.
	Decided struct{ At actor.Time }

	// GiveResult is the result of a client tool, from the device that performed it. The result is
	// durable before the device learns that it was taken. The first one ends the call.
	GiveResult struct {
		ToolCall string         `json:"tool_call_id"`
		OK       bool           `json:"ok"`
		Result   jsontext.Value `json:"result,omitzero"` // if OK
		Error    string         `json:"error,omitzero"`  // otherwise
		Code     string         `json:"code,omitzero"`   // of the error; "" if the device gives none
	}

	// Retry replays a parked run again. It has no content.
	Retry struct{}
)

// Purse returns the amounts, or nil.
func (r *Raise) Purse() *actor.Purse {
	if r == nil {
		return nil
	}
	return &actor.Purse{Tokens: min(max(r.Tokens, 0), actor.UsageMax), Micros: min(max(r.Micros, 0), actor.UsageMax)}
}

func (CallAgent) Operation() string  { return OpCallAgent }
func (AddTool) Operation() string    { return OpAddTool }
func (AddModel) Operation() string   { return OpAddModel }
func (EndModel) Operation() string   { return OpEndModel }
func (Decide) Operation() string     { return OpDecide }
func (GiveResult) Operation() string { return OpGiveResult }
func (Retry) Operation() string      { return OpRetry }

func (CallAgent) want() string  { return "a call of an agent" }
func (AddTool) want() string    { return "a tool call" }
func (AddModel) want() string   { return "a model request" }
func (EndModel) want() string   { return "the outcome of a model request" }
func (Decide) want() string     { return "a decision about an approval" }
func (GiveResult) want() string { return "the result of a client tool" }
func (Retry) want() string      { return "no content" }

// Parts returns the answer to AddTool.
func (a AddedTool) Parts() []actor.Part { return encode(a) }

// Parts returns the answer to AddModel.
func (a AddedModel) Parts() []actor.Part { return encode(a) }

// Parts returns the answer to Decide. A text costs less than JSON.
func (d Decided) Parts() []actor.Part { return actor.Text(strconv.FormatInt(int64(d.At), 10)) }

// ReadDecided returns the answer to Decide. It reports false for any other content.
func ReadDecided(parts []actor.Part) (Decided, bool) {
	at, err := strconv.ParseInt(actor.TextOf(parts), 10, 64)
	return Decided{actor.Time(at)}, err == nil
}

// ReadAddedTool returns the answer to AddTool. It reports false for any other content.
func ReadAddedTool(parts []actor.Part) (a AddedTool, ok bool) { return a, decode(parts, &a) }

// ReadAddedModel returns the answer to AddModel. It reports false for any other content.
func ReadAddedModel(parts []actor.Part) (a AddedModel, ok bool) { return a, decode(parts, &a) }
