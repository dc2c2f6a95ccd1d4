// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"bytes"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
)

// IdempotencyKey is the header that makes a request safe to retry.
const IdempotencyKey = "Idempotency-Key"

const (
	idempotencyKeyBytesMax = 255
	timeoutMax             = 24 * time.Hour // upper bound on the wire; a cell grants less
)

// The functions below decode requests of clients. The returned calls have no id,
// principal or idempotency yet, because a client must not choose those.

// Message decodes a message of a principal to an agent. The returned call does not alias body.
func Message(by actor.Principal, agent string, body []byte) (actor.Call, *actor.Refusal) {
	in, content, ok := decodeMessageFast(body)
	if !ok {
		in, content = messageBody{}, nil
		if r := Decode(body, &in); r != nil {
			return actor.Call{}, r
		}
		if in.Content != nil {
			content = []byte(*in.Content)
		}
	}
	if content == nil {
		return actor.Call{}, invalid("content", `is missing: want {"content": "text for the agent"}`)
	}
	to := by.ID(agent, in.Session)
	left, r := parseTimeout(in.Timeout)
	switch {
	case r != nil:
		return actor.Call{}, r
	case actor.CheckName(to.Key) != nil:
		return actor.Call{}, invalid("session", "%v", actor.CheckName(to.Key))
	}
	call := actor.Call{To: to, Left: left, Parts: []actor.Part{{Media: actor.MediaText, Bytes: bytes.Clone(content)}}}
	if r := in.apply(&call); r != nil {
		return actor.Call{}, r
	}
	return call, nil
}

func parseTimeout(ms int64) (actor.Duration, *actor.Refusal) {
	if ms < 0 || ms > int64(timeoutMax/time.Millisecond) {
		return 0, invalid("timeout_ms", "want 1 to %d, or no value", timeoutMax/time.Millisecond)
	}
	return actor.Duration(ms) * time.Millisecond, nil
}

// Signal decodes a signal to a waiting run.
func Signal(run actor.CallID, body []byte) (actor.Call, *actor.Refusal) {
	var in struct {
		Name    string         `json:"name"`
		Payload jsontext.Value `json:"payload"`
	}
	if r := Decode(body, &in); r != nil {
		return actor.Call{}, r
	}
	if err := actor.CheckName(in.Name); err != nil {
		return actor.Call{}, invalid("name", "%v", err)
	}
	return actor.Call{Kind: actor.Signal, Parent: run, Operation: in.Name, Parts: payloadParts(in.Payload)}, nil
}

// payloadParts returns the payload of a signal: a string as text, any other value
// as JSON.
func payloadParts(v jsontext.Value) []actor.Part {
	var text string
	switch {
	case len(v) == 0 || v.Kind() == 'n':
		return nil
	case v.Kind() == '"' && json.Unmarshal(v, &text) == nil:
		return actor.Text(text)
	default:
		return []actor.Part{{Media: actor.MediaJSON, Bytes: v.Clone()}}
	}
}

// CallAgent is the operation of the signal with which an external agent calls
// another agent on behalf of the run that it is working on.
const CallAgent = "call_agent"

// Invoke decodes a call to agent by an external agent. caller and run, the
// actor and the run that the external agent works for, come from its token. The
// returned call is a signal to that run, which then calls the actor given by
// the result to.
func Invoke(run actor.CallID, caller actor.ID, agent string, body []byte) (call actor.Call, to actor.ID, r *actor.Refusal) {
	var in struct {
		Message  *string `json:"message"`
		Session  string  `json:"session_id"`
		Timeout  int64   `json:"timeout_ms"`
		Priority string  `json:"priority"`
	}
	if r := Decode(body, &in); r != nil {
		return actor.Call{}, to, r
	}
	if in.Message == nil {
		return actor.Call{}, to, invalid("message", `is missing: want {"message": "text for the agent"}`)
	}
	if _, r := parseTimeout(in.Timeout); r != nil {
		return actor.Call{}, to, r
	}
	to = actor.ID{Tenant: caller.Tenant, Agent: agent, Key: caller.Key}
	if in.Session != "" {
		if err := actor.CheckName(in.Session); err != nil {
			return actor.Call{}, to, invalid("session_id", "%v", err)
		}
		agent, to.Key = agent+"/"+in.Session, in.Session
	}
	out := invariant.Must(json.Marshal(struct {
		Agent   string `json:"agent_id"`
		Message string `json:"message"`
		Timeout int64  `json:"timeout_ms,omitzero"`
	}{agent, *in.Message, in.Timeout}))
	call = actor.Call{To: caller, Kind: actor.Signal, Parent: run, Operation: CallAgent, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: out}}}
	if r := (&messageContext{Priority: in.Priority}).apply(&call); r != nil {
		return actor.Call{}, to, r
	}
	return call, to, nil
}

// CheckEmpty checks the body of a request that takes no parameters: it must be
// absent or an empty object.
func CheckEmpty(body []byte) *actor.Refusal {
	if len(body) == 0 {
		return nil
	}
	return Decode(body, &struct{}{})
}

// CheckObject checks that body is a JSON object. Its members are validated
// elsewhere.
func CheckObject(body []byte) *actor.Refusal { return checkShape(body) }

// ParseIdempotency parses the Idempotency-Key headers of a request. At most one
// header is allowed.
func ParseIdempotency(principal, route string, headers []string, body []byte) (actor.Idempotency, *actor.Refusal) {
	if len(headers) == 0 {
		return actor.Idempotency{}, nil
	}
	key := headers[0]
	if len(headers) > 1 || key == "" || len(key) > idempotencyKeyBytesMax || strings.ContainsFunc(key, func(c rune) bool { return c < ' ' || c > '~' }) {
		return actor.Idempotency{}, invalid(IdempotencyKey, "want one header of 1 to %d printable ASCII characters", idempotencyKeyBytesMax)
	}
	return actor.Idempotency{Principal: principal, Route: route, Key: key, Body: actor.HashOf(body)}, nil
}
