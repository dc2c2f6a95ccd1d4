// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"bytes"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/signals"
)

// IdempotencyKey is the header that makes a request safe to retry.
const IdempotencyKey = "Idempotency-Key"

const (
	idempotencyKeyBytesMax = 255
	timeoutMax             = 24 * time.Hour // upper bound on the wire; a cell grants less
)

// The functions below decode requests of clients. The returned calls have no id,
// principal or idempotency yet, because a client must not choose those.

// Message decodes a message of a principal to an agent. The returned call does not alias
// body. A message without session is for the actor under DefaultKey.
func Message(by actor.Principal, agent string, body []byte) (actor.Call, *actor.Refusal) {
	m, r := ClientMessage(by, agent, body)
	return m.Call, r
}

// Sent is a message of a client.
type Sent struct {
	Call  actor.Call
	Named bool    // the message names a session
	User  *string // user that the message names, or nil
}

// ClientMessage is Message with all that the body names.
func ClientMessage(by actor.Principal, agent string, body []byte) (Sent, *actor.Refusal) {
	in, content, ok := decodeMessageFast(body)
	field := "content"
	if !ok {
		var all messageBody // unlike in, on the heap
		r := Decode(body, &all)
		if r == nil {
			content, field, r = all.text(nil)
		}
		if r != nil {
			return Sent{}, r
		}
		in = all
	}
	m, r := in.message(field, content)
	if r != nil {
		return Sent{}, r
	}
	m.call.To = by.ID(agent, m.session)
	m.call.Parts = []actor.Part{{Media: actor.MediaText, Bytes: bytes.Clone(m.content)}}
	return Sent{m.call, m.session != "", in.User}, nil
}

// message is a decoded body of a message.
type message struct {
	content []byte     // not empty; may alias the body
	session string     // a valid name, or empty
	call    actor.Call // time left, lane and project
}

// text returns the content of the message and the name of the field that holds it. The
// parameter input is the value of a further alias, input_message.
func (m *messageBody) text(input jsontext.Value) (content []byte, field string, r *actor.Refusal) {
	text, r := contentText("content", m.Content)
	if r != nil {
		return nil, "", r
	}
	field = "content"
	for _, alias := range [...]struct {
		name  string
		value jsontext.Value
	}{{"message", m.Message}, {"input_message", input}} {
		other, r := messageText(alias.name, alias.value)
		if r != nil {
			return nil, "", r
		}
		if text, field, r = oneOf(field, text, alias.name, other); r != nil {
			return nil, "", r
		}
	}
	if text != nil {
		content = []byte(*text)
	}
	return content, field, nil
}

// message returns the message with the content that the field holds.
func (m *messageBody) message(field string, content []byte) (out message, r *actor.Refusal) {
	if content == nil {
		return out, invalid("content", `is missing: want {"content": "text for the agent"}`)
	}
	if len(content) == 0 {
		return out, invalid(field, "is empty: want text for the agent")
	}
	key, name, r := oneOf("session_id", m.SessionID, "session", m.Session)
	if r != nil {
		return out, r
	}
	out.content = content
	if key != nil && *key != "" {
		if err := actor.CheckName(*key); err != nil {
			return out, invalid(name, "%v", err)
		}
		out.session = *key
	}
	if out.call.Left, r = m.Timeout.duration(); r != nil {
		return out, r
	}
	return out, m.apply(&out.call)
}

// oneOf returns the value of a field that has an alias, and the name it was given
// with. Both names may be present if their values are equal.
func oneOf(name string, value *string, alias string, other *string) (*string, string, *actor.Refusal) {
	switch {
	case other == nil:
		return value, name, nil
	case value != nil && *value != *other:
		return nil, "", invalid(alias, "differs from %s, which means the same: want one of them", name)
	}
	return other, alias, nil
}

// milliseconds is the JSON value of a timeout.
type milliseconds jsontext.Value

// UnmarshalJSON accepts any value. Method duration checks it.
func (m *milliseconds) UnmarshalJSON(b []byte) error {
	*m = bytes.Clone(b)
	return nil
}

// duration returns the timeout; 0 if there is none.
func (m milliseconds) duration() (actor.Duration, *actor.Refusal) {
	if len(m) == 0 || string(m) == "null" {
		return 0, nil
	}
	n, err := strconv.ParseInt(string(m), 10, 64)
	if err != nil || n < 1 || n > int64(timeoutMax/time.Millisecond) {
		return 0, invalid("timeout_ms", "want a whole number of milliseconds from 1 to %d, or no value", timeoutMax/time.Millisecond)
	}
	return actor.Duration(n) * time.Millisecond, nil
}

// RunSignal is a signal to a waiting run.
type RunSignal struct {
	Name    string
	Payload []actor.Part
}

// DecodeSignal decodes a signal to a waiting run.
func DecodeSignal(body []byte) (RunSignal, *actor.Refusal) {
	var in struct {
		Name    string         `json:"name"`
		Payload jsontext.Value `json:"payload"`
	}
	if r := Decode(body, &in); r != nil {
		return RunSignal{}, r
	}
	if err := signals.CheckName(in.Name); err != nil {
		return RunSignal{}, invalid("name", "%v", err)
	}
	return RunSignal{in.Name, payloadParts(in.Payload)}, nil
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

// invokeBody is the JSON body of a call by an external agent: that of a message, or that
// of an invocation as the agent received it.
type invokeBody struct {
	messageBody
	Input    jsontext.Value            `json:"input_message" alias:"content"`
	Agent    *string                   `json:"agent_id"`
	Run      *string                   `json:"run_id"`
	Messages []jsontext.Value          `json:"messages"`
	Context  map[string]jsontext.Value `json:"context"`
}

// RunNamed returns the run that the body of a call by an external agent names, "" if there
// is none. It does not check the rest of the body.
func RunNamed(body []byte) string {
	var in struct {
		Run string `json:"run_id"`
	}
	if !withinDepth(body) || json.Unmarshal(body, &in) != nil {
		return ""
	}
	return in.Run
}

// check checks the fields that have a value of their own already: the agent in the path
// of the request, and the run in its token. The callee gets its messages and its context
// from the server, so those of the body have no effect.
func (b *invokeBody) check(run actor.CallID, agent string) *actor.Refusal {
	switch {
	case b.Agent != nil && *b.Agent != "" && *b.Agent != agent:
		return invalid("agent_id", "want %s as in the path, or no value", agent)
	case b.Run != nil && *b.Run != "" && *b.Run != run.String():
		return invalid("run_id", "want %s, the run of the token, or no value", run)
	}
	return nil
}

// Invoke decodes a call to agent by an external agent. caller and run, the
// actor and the run that the external agent works for, come from its token. The
// returned call is a signal to that run, which then calls the actor given by
// the result to.
func Invoke(run actor.CallID, caller actor.ID, agent string, body []byte) (call actor.Call, to actor.ID, r *actor.Refusal) {
	in, content, ok := decodeMessageFast(body)
	field := "content"
	if !ok {
		var all invokeBody
		if r = Decode(body, &all); r == nil {
			r = all.check(run, agent)
		}
		if r == nil {
			content, field, r = all.text(all.Input)
		}
		if r != nil {
			return actor.Call{}, to, r
		}
		in = all.messageBody
	}
	m, r := in.message(field, content)
	switch {
	case r != nil:
		return actor.Call{}, to, r
	case in.User != nil && !actor.InNamespace(*in.User, caller.Tenant):
		return actor.Call{}, to, invalid("user_id", "want the user of the run, or no value: a call acts for the user of its run")
	case m.session != "" && m.session != caller.Key:
		_, name, _ := oneOf("session_id", in.SessionID, "session", in.Session)
		return actor.Call{}, to, invalid(name, "want %s, the session of the run, or no value: an external agent calls others in that session only", caller.Key)
	case strings.Contains(agent, "/"):
		return actor.Call{}, to, invalid("agent_id", "%.80q: want an agent without a session: an external agent calls others in the session of its run only", agent)
	case m.call.Project != "":
		return actor.Call{}, to, invalid("project_id", "want no value: a call belongs to the project of its run")
	}
	to = actor.ID{Tenant: caller.Tenant, Agent: agent, Key: caller.Key}
	call = signals.New(caller, run, signals.CallAgent{Agent: agent, Message: string(m.content), TimeoutMS: m.call.Left.Milliseconds()})
	call.Lane = m.call.Lane
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
