// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"cmp"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/signals"
)

// Time that a request waits for the end of a tool call.
const (
	ToolWaitDefault = 30 * time.Second
	ToolWaitMax     = 5 * time.Minute
)

// reasonBytesMax is the maximum length of the reason of a decision.
const reasonBytesMax = 1 << 10

// ToolInvocation is the request of an external agent to use a tool on behalf of its run.
type ToolInvocation struct {
	Tool signals.AddTool
	Key  *string // idempotency key in the body, or nil
	Wait time.Duration
}

// InvokeTool decodes a request to use a tool. The run that the external agent works for comes from
// its token. timeout_ms limits how long the request waits. The time of the call is that of the
// tool's definition.
func InvokeTool(run actor.CallID, tool string, body []byte) (out ToolInvocation, r *actor.Refusal) {
	var in struct {
		Run     *string        `json:"run_id"`
		Args    jsontext.Value `json:"args"`
		Key     *string        `json:"idempotency_key"`
		Timeout milliseconds   `json:"timeout_ms"`
	}
	if r := Decode(body, &in); r != nil {
		return out, r
	}
	if in.Run != nil && *in.Run != "" && *in.Run != run.String() {
		return out, invalid("run_id", "want %s, the run of the token, or no value", run)
	}
	switch in.Args.Kind() {
	case '{':
	case 'n', 0: // 0: absent
		in.Args = jsontext.Value("{}")
	default:
		return out, invalid("args", "want an object with the arguments of the tool")
	}
	out = ToolInvocation{Key: in.Key, Wait: ToolWaitDefault}
	if string(in.Timeout) == "0" {
		out.Wait = 0
	} else if wait, r := in.Timeout.duration(); r != nil || wait > ToolWaitMax {
		return out, invalid("timeout_ms", "want a whole number of milliseconds from 0 to %d, or no value", ToolWaitMax.Milliseconds())
	} else if wait > 0 {
		out.Wait = wait
	}
	out.Tool = signals.AddTool{Tool: tool, Args: in.Args}
	return out, nil
}

// CheckToolName checks that the definition of a tool in a body has the name in the path.
func CheckToolName(tool string, body []byte) *actor.Refusal {
	if r := checkShape(body); r != nil {
		return r
	}
	var in struct {
		ToolName string `json:"tool_name"`
		Name     string `json:"name"`
	}
	if json.Unmarshal(body, &in) != nil || in.ToolName+in.Name != tool {
		return invalid("tool_name", "want %q as in the path", tool)
	}
	return nil
}

// decisionBody is the body of a decision.
type decisionBody struct {
	Decision *string `json:"decision,omitzero"`
	Reason   *string `json:"reason,omitzero"`
	Raise    *struct {
		Tokens *int64   `json:"tokens,omitzero"`
		Money  *float64 `json:"money,omitzero"`
	} `json:"raise,omitzero"` // of a budget
}

// DecodeDecision decodes a decision of a person about a tool call.
func DecodeDecision(body []byte) (out signals.Decide, r *actor.Refusal) {
	var in decisionBody
	if r := Decode(body, &in); r != nil {
		return out, r
	}
	return in.decision()
}

func (b *decisionBody) decision() (out signals.Decide, r *actor.Refusal) {
	if b.Decision == nil {
		return out, invalid("decision", "is missing: want approve or reject")
	}
	reason := ""
	if b.Reason != nil {
		reason = *b.Reason
	}
	if out, r = CheckDecision(*b.Decision, reason); r != nil || b.Raise == nil {
		return out, r
	}
	if out.Raise = (&signals.Raise{}); !out.Approve {
		return out, invalid("raise", "a rejection raises no budget")
	}
	if n := b.Raise.Tokens; n != nil {
		if out.Raise.Tokens = *n; *n < 0 || *n > actor.UsageMax {
			return out, invalid("raise.tokens", "got %d, want a number of tokens from 0", *n)
		}
	}
	if n := b.Raise.Money; n != nil {
		var err error
		if out.Raise.Micros, err = actor.ParseMoney(*n); err != nil {
			return out, invalid("raise.money", "%v", err)
		}
	}
	if *out.Raise == (signals.Raise{}) {
		return out, invalid("raise", "want tokens or money above 0; without raise the budget gets as much again as a tree has")
	}
	return out, nil
}

// CheckDecision returns a decision, approve or reject, with a reason that may be empty.
func CheckDecision(decision, reason string) (out signals.Decide, r *actor.Refusal) {
	switch {
	case decision != "approve" && decision != "reject":
		return out, invalid("decision", "%.40q: want approve or reject", decision)
	case len(reason) > reasonBytesMax:
		return out, invalid("reason", "%d bytes, at most %d allowed", len(reason), reasonBytesMax)
	}
	return signals.Decide{Approve: decision == "approve", Reason: reason}, nil
}

// Statuses of tool calls in the protocol with clients. The states of a call distinguish more.
const (
	ToolSucceeded = "succeeded"
	ToolPending   = "pending"
	ToolFailed    = "failed"
)

// ToolOutcome returns the status word of a tool call in a state.
func ToolOutcome(s runs.ToolStatus) string {
	switch {
	case !s.Ended():
		return ToolPending
	case s.Advances():
		return ToolSucceeded
	}
	return ToolFailed
}

// ToolValue returns arguments or the result of a tool as JSON: JSON as it is, and any other
// text as a string.
func ToolValue(text string) jsontext.Value {
	if v := jsontext.Value(text); v.IsValid() {
		return v
	}
	return invariant.Must(jsontext.AppendQuote(nil, strings.ToValidUTF8(text, "\uFFFD")))
}

// ToolResult is ToolValue for the whole result of a tool.
func ToolResult(parts []actor.Part) jsontext.Value {
	if len(parts) == 1 && parts[0].Media == actor.MediaJSON && jsontext.Value(parts[0].Bytes).IsValid() {
		return jsontext.Value(parts[0].Bytes)
	}
	var e runs.Event
	e.SetText(parts)
	return invariant.Must(jsontext.AppendQuote(nil, strings.ToValidUTF8(e.Text, "\uFFFD")))
}

// resultBody is the body of the result of a client tool.
type resultBody struct {
	OK     *bool          `json:"ok,omitzero"`
	Result jsontext.Value `json:"result,omitzero"`
	Error  jsontext.Value `json:"error,omitzero"`
}

// DecodeToolResult decodes the result of a client tool from a device of the user.
func DecodeToolResult(body []byte) (out signals.GiveResult, r *actor.Refusal) {
	var in resultBody
	if r := Decode(body, &in); r != nil {
		return out, r
	}
	return in.result()
}

func (b *resultBody) result() (out signals.GiveResult, r *actor.Refusal) {
	switch {
	case b.OK == nil:
		return out, invalid("ok", `is missing: want {"ok": true, "result": …} or {"ok": false, "error": {"message": "…"}}`)
	case *b.OK && len(b.Error) > 0:
		return out, invalid("error", "not allowed with ok: true")
	case !*b.OK && len(b.Result) > 0:
		return out, invalid("result", "not allowed with ok: false")
	case *b.OK:
		out.OK, out.Result = true, b.Result
		if len(b.Result) == 0 {
			out.Result = jsontext.Value("null")
		}
		return out, nil
	}
	out.Error, out.Code, r = deviceError(b.Error)
	return out, r
}

// deviceError returns the text of an error, which is a string, or an object with a message and
// maybe a code, and its code.
func deviceError(v jsontext.Value) (text, code string, r *actor.Refusal) {
	if len(v) == 0 || json.Unmarshal(v, &text) == nil {
		return actor.FitText(cmp.Or(text, "the device reports an error"), actor.TextBytesMax), "", nil
	}
	var in struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	if r := Decode(v, &in); r != nil {
		return "", "", invalid("error", "%s", r.Detail)
	}
	if text = cmp.Or(in.Message, "the device reports an error"); in.Code != "" {
		text = in.Code + ": " + text
	}
	return actor.FitText(text, actor.TextBytesMax), actor.FitText(in.Code, actor.NameBytesMax), nil
}
