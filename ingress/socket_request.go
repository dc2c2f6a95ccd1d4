// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/signals"
)

// Types of messages of a client.
const (
	SocketHello       = "hello"
	SocketInvoke      = "agent_invoke"
	SocketToolResult  = "tool_result"
	SocketDecision    = "approval_decision"
	SocketCancel      = "cancel_run"
	SocketReplay      = "replay"
	requestIDBytesMax = idempotencyKeyBytesMax
)

// socketTypes are the types of messages that a client may send.
var socketTypes = []string{SocketHello, SocketInvoke, SocketToolResult, SocketDecision, SocketCancel, SocketReplay}

// Hello is the first message of a client.
type Hello struct {
	User   *string
	Key    *string
	Device string // "": the connection is the device
	Resume []Resume
}

// Resume asks for the messages of a session behind a cursor.
type Resume struct {
	Session string
	After   string // empty: from the first message; see CheckSessionCursor
	End     bool   // behind all messages that exist
}

// SocketRequest is a message of a client that changes something. It has the rules and errors of
// the HTTP API.
type SocketRequest struct {
	Type     string
	ID       string             // request_id; makes the request safe to repeat
	Bytes    int                // of the message
	Body     []byte             // body of the same request over HTTP, which a repeat must have too; nil if none is needed
	Agent    string             // of an agent_invoke
	Session  string             // of an agent_invoke; "": the server begins one
	Run      actor.CallID       // root run that the message names, or zero
	Call     runs.ToolCallID    // of a decision or result
	Decision signals.Decide     // of an approval_decision
	Result   signals.GiveResult // of a tool_result
}

// Replay asks for the messages of a run or of a session again.
type Replay struct {
	ID      string
	Run     actor.CallID // zero: of the session
	Session string
	Speed   float64 // 0: without delays
}

// common are the members that every message may have.
type common struct {
	Type    string         `json:"type"`
	TS      jsontext.Value `json:"ts"`
	Request *string        `json:"request_id"`
	Session *string        `json:"session_id"`
	Run     *string        `json:"run_id"`
}

func (c *common) check() *actor.Refusal {
	if c.Request != nil && (len(*c.Request) > requestIDBytesMax || strings.ContainsFunc(*c.Request, func(r rune) bool { return r < ' ' || r > '~' })) {
		return invalid("request_id", "want at most %d printable ASCII characters", requestIDBytesMax)
	}
	if k := c.TS.Kind(); k != 0 && k != '0' && k != 'n' {
		return invalid("ts", "want milliseconds since 1970")
	}
	return nil
}

// socketType returns the type and the request id of a message.
func socketType(body []byte) (kind, request string, r *actor.Refusal) {
	if r := checkShape(body); r != nil {
		return "", "", r
	}
	var in struct {
		Type    *string        `json:"type"`
		Request jsontext.Value `json:"request_id"`
	}
	_ = json.Unmarshal(body, &in)
	if json.Unmarshal(in.Request, &request) != nil || len(request) > requestIDBytesMax {
		request = "" // refused by the rules of its message
	}
	switch {
	case in.Type == nil:
		return "", request, invalid("type", "is missing: want one of %s", strings.Join(socketTypes, ", "))
	case !slices.Contains(socketTypes, *in.Type):
		return "", request, invalid("type", "%.40q %s", *in.Type, Unknown(*in.Type, socketTypes))
	}
	return *in.Type, request, nil
}

// DecodeHello decodes a hello.
func DecodeHello(body []byte) (h Hello, r *actor.Refusal) {
	var in struct {
		common
		User   *string                   `json:"user_id"`
		Key    *string                   `json:"api_key"`
		Device *string                   `json:"device_id"`
		Meta   map[string]jsontext.Value `json:"client_meta"`
		Resume jsontext.Value            `json:"resume"`
	}
	if r := Decode(body, &in); r != nil {
		return h, r
	}
	if r := in.check(); r != nil {
		return h, r
	}
	h = Hello{User: in.User, Key: in.Key}
	if device := ""; in.Device != nil {
		h.Device = *in.Device
	} else if json.Unmarshal(in.Meta["device_id"], &device) == nil {
		h.Device = device
	}
	if h.Device != "" && actor.CheckName(h.Device) != nil {
		return h, invalid("device_id", "%v", actor.CheckName(h.Device))
	}
	h.Resume, r = decodeResume(in.Resume)
	return h, r
}

// decodeResume decodes one session to resume, or a list of them.
func decodeResume(v jsontext.Value) (all []Resume, r *actor.Refusal) {
	var list []jsontext.Value
	switch v.Kind() {
	case 0, 'n':
		return nil, nil
	case '[':
		_ = json.Unmarshal(v, &list)
	default:
		list = []jsontext.Value{v}
	}
	if len(list) > SocketSessionsMax {
		return nil, invalid("resume", "want at most %d sessions", SocketSessionsMax)
	}
	for _, one := range list {
		var in struct {
			Session string  `json:"session_id"`
			After   *string `json:"after"`
		}
		if r := Decode(one, &in); r != nil {
			return nil, invalid("resume", "%s", r.Detail)
		}
		next := Resume{}
		if next.Session, r = CheckSession(in.Session); r != nil {
			return nil, invalid("resume", "%s", r.Detail)
		}
		if slices.ContainsFunc(all, func(o Resume) bool { return o.Session == next.Session }) {
			return nil, invalid("resume", "names session %s twice", next.Session)
		}
		if in.After != nil {
			var err error
			if next.End = *in.After == "end"; !next.End {
				if next.After, err = *in.After, CheckSessionCursor(*in.After); err != nil {
					return nil, invalid("resume", "after: %v", err)
				}
			}
		}
		all = append(all, next)
	}
	return all, nil
}

// DecodeSocketRequest decodes a message that changes something.
func DecodeSocketRequest(kind string, body []byte) (out SocketRequest, r *actor.Refusal) {
	switch kind {
	case SocketInvoke:
		out, r = decodeInvoke(body)
	case SocketDecision:
		out, r = decodeDecision(body)
	case SocketCancel:
		out, r = decodeCancel(body)
	case SocketToolResult:
		out, r = decodeToolResult(body)
	default:
		return out, invalid("type", "%.40q is no request", kind)
	}
	out.Type, out.Bytes = kind, len(body)
	return out, r
}

// with sets the fields that all requests have.
func (out *SocketRequest) with(c *common) *actor.Refusal {
	if r := c.check(); r != nil {
		return r
	}
	if c.Request != nil {
		out.ID = *c.Request
	}
	if c.Run != nil && *c.Run != "" {
		run, err := actor.ParseCallID(*c.Run)
		if err != nil {
			return invalid("run_id", "%v", err)
		}
		out.Run = run
	}
	return nil
}

func decodeInvoke(body []byte) (out SocketRequest, r *actor.Refusal) {
	var in struct {
		common
		Agent   *string        `json:"agent_id"`
		Message jsontext.Value `json:"message"`
		Content jsontext.Value `json:"content"`
		Timeout jsontext.Value `json:"timeout_ms"`
	}
	if r := Decode(body, &in); r != nil {
		return out, r
	}
	switch {
	case in.Agent == nil:
		return out, invalid("agent_id", "is missing")
	case actor.CheckName(*in.Agent) != nil:
		return out, invalid("agent_id", "%v", actor.CheckName(*in.Agent))
	}
	if in.Session != nil && *in.Session != "" {
		if out.Session, r = CheckSession(*in.Session); r != nil {
			return out, r
		}
	}
	out.Agent = *in.Agent
	out.Body = invariant.Must(json.Marshal(struct {
		Session string         `json:"session_id,omitzero"`
		Message jsontext.Value `json:"message,omitzero"`
		Content jsontext.Value `json:"content,omitzero"`
		Timeout jsontext.Value `json:"timeout_ms,omitzero"`
	}{out.Session, in.Message, in.Content, in.Timeout}))
	r = out.with(&in.common)
	return out, r
}

func decodeDecision(body []byte) (out SocketRequest, r *actor.Refusal) {
	var in struct {
		common
		Approval string `json:"approval_id"`
		decisionBody
	}
	if r := Decode(body, &in); r != nil {
		return out, r
	}
	var err error
	if out.Call, err = runs.ParseApprovalID(in.Approval); err != nil {
		return out, invalid("approval_id", "%v", err)
	}
	if out.Decision, r = in.decision(); r != nil {
		return out, r
	}
	if in.Request != nil {
		out.Body = invariant.Must(json.Marshal(in.decisionBody))
	}
	r = out.with(&in.common)
	return out, r
}

func decodeCancel(body []byte) (out SocketRequest, r *actor.Refusal) {
	var in struct{ common }
	if r := Decode(body, &in); r != nil {
		return out, r
	}
	if r := out.with(&in.common); r != nil {
		return out, r
	}
	if out.Run.IsZero() {
		return out, invalid("run_id", "is missing")
	}
	return out, nil
}

func decodeToolResult(body []byte) (out SocketRequest, r *actor.Refusal) {
	var in struct {
		common
		ToolCall string `json:"tool_call_id"`
		resultBody
	}
	if r := Decode(body, &in); r != nil {
		return out, r
	}
	var err error
	if out.Call, err = runs.ParseToolCallID(in.ToolCall); err != nil {
		return out, invalid("tool_call_id", "%v", err)
	}
	if out.Result, r = in.result(); r != nil {
		return out, r
	}
	if in.Request != nil {
		out.Body = invariant.Must(json.Marshal(in.resultBody))
	}
	r = out.with(&in.common)
	return out, r
}

// DecodeReplay decodes a replay.
func DecodeReplay(body []byte) (out Replay, r *actor.Refusal) {
	var in struct {
		common
		Speed jsontext.Value `json:"speed"`
	}
	if r := Decode(body, &in); r != nil {
		return out, r
	}
	var of SocketRequest
	if r := of.with(&in.common); r != nil {
		return out, r
	}
	out.ID, out.Run = of.ID, of.Run
	if len(in.Speed) > 0 && (json.Unmarshal(in.Speed, &out.Speed) != nil || out.Speed < 0 || out.Speed > ReplaySpeedMax) {
		return out, invalid("speed", "want a number from 0, for no delays, to %d times the original speed", ReplaySpeedMax)
	}
	switch {
	case out.Run.IsZero() && (in.Session == nil || *in.Session == ""):
		return out, invalid("run_id", "is missing: want run_id or session_id")
	case in.Session != nil && *in.Session != "":
		out.Session, r = CheckSession(*in.Session)
	}
	return out, r
}

// ReplaySpeedMax is the maximum speed of a replay.
const ReplaySpeedMax = 1000
