// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
)

// Bounds of the description of a session.
const (
	SessionTitleBytesMax    = 256
	SessionMetadataBytesMax = 16 << 10
)

// SessionOf returns the session of a message that names none. Messages to the same agent with the
// same idempotency key have the same session, so that a repeat reaches the actor that knows the
// first one. A message without a key begins the session drawn.
//
// Lists of sessions are in the order of their names. The name of a drawn session begins with its
// time. The name for a key that is a UUIDv7 begins with the time of the key.
func SessionOf(to actor.ID, key actor.Idempotency, drawn actor.CallID) string {
	if key.IsZero() {
		return drawn.String()
	}
	h := sha256.New()
	for _, part := range [...]string{to.Tenant, key.Principal, key.Route, to.Agent, key.Key} {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(part)))
		h.Write(n[:])
		h.Write([]byte(part))
	}
	var id actor.CallID // UUIDv8
	copy(id[:], h.Sum(nil))
	if ordered, err := actor.ParseCallID(key.Key); err == nil && ordered.Version() == 7 {
		copy(id[:6], ordered[:6])
	}
	id[6] = 0x80 | id[6]&0x0f
	id[8] = 0x80 | id[8]&0x3f
	return id.String()
}

// SessionRequest is the body of a request that creates or describes a session.
type SessionRequest struct {
	Session     string // "": the server chooses one
	Description []byte // title and metadata as JSON, the input of agents.OpDescribe
}

// DecodeSession decodes the body of a request that creates or describes a session.
func DecodeSession(body []byte) (out SessionRequest, r *actor.Refusal) {
	if len(body) == 0 {
		body = []byte("{}")
	}
	var in struct {
		Session  *string        `json:"session_id"`
		Title    *string        `json:"title"`
		Metadata jsontext.Value `json:"metadata"`
	}
	if r := Decode(body, &in); r != nil {
		return out, r
	}
	var description struct {
		Title    *string        `json:"title,omitzero"`
		Metadata jsontext.Value `json:"metadata,omitzero"`
	}
	if in.Session != nil && *in.Session != "" {
		if out.Session, r = CheckSession(*in.Session); r != nil {
			return out, r
		}
	}
	if in.Title != nil {
		if len(*in.Title) > SessionTitleBytesMax || !actor.IsLine(*in.Title) {
			return out, invalid("title", "want one line of at most %d bytes, without invisible characters and those that change the direction of the text", SessionTitleBytesMax)
		}
		description.Title = in.Title
	}
	if len(in.Metadata) > 0 {
		if kind := in.Metadata.Kind(); kind != '{' && kind != 'n' {
			return out, invalid("metadata", "want a JSON object")
		}
		description.Metadata = bytes.Clone(in.Metadata)
		if description.Metadata.Compact() != nil || len(description.Metadata) > SessionMetadataBytesMax {
			return out, invalid("metadata", "want an object of at most %d bytes", SessionMetadataBytesMax)
		}
	}
	out.Description = invariant.Must(json.Marshal(description))
	return out, nil
}

// CheckSession checks the name of a session in a request. DefaultKey is no session: it is the key
// of the actor that all messages without a session share.
func CheckSession(name string) (string, *actor.Refusal) {
	if err := actor.CheckName(name); err != nil {
		return "", invalid("session_id", "%v", err)
	}
	if name == actor.DefaultKey {
		return "", invalid("session_id", "%s is not a session: it stands for the actor of an agent with default_session; choose another name", name)
	}
	return name, nil
}

// AppendedMessage is a message that is added to the transcript of an agent in a session.
type AppendedMessage struct {
	Agent string // "": the only one of the session
	Role  actor.Role
	Text  string
}

// DecodeAppend decodes a message that is added to a transcript.
func DecodeAppend(body []byte) (out AppendedMessage, r *actor.Refusal) {
	var in struct {
		Role    *string        `json:"role"`
		Content jsontext.Value `json:"content"`
		Agent   *string        `json:"agent_id"`
		Alias   *string        `json:"agent" alias:"agent_id"`
	}
	if r := Decode(body, &in); r != nil {
		return out, r
	}
	if in.Role == nil {
		return out, invalid("role", `is missing: want "user", "assistant", "system" or "tool"`)
	}
	role, err := actor.ParseRole(*in.Role)
	if err != nil {
		return out, invalid("role", `%.40q: want "user", "assistant", "system" or "tool"`, *in.Role)
	}
	text, r := contentText("content", in.Content)
	switch {
	case r != nil:
		return out, r
	case text == nil || *text == "":
		return out, invalid("content", "is missing or empty: want the text of the message")
	}
	out.Role, out.Text = role, string(*text)
	out.Agent, r = TranscriptAgent(in.Agent, in.Alias)
	return out, r
}

// TranscriptAgent returns the agent that a request about a transcript names in agent_id, or
// in its alias agent; "" if it names none.
func TranscriptAgent(agentID, alias *string) (string, *actor.Refusal) {
	name, field, r := oneOf("agent_id", agentID, "agent", alias)
	if r != nil || name == nil {
		return "", r
	}
	if err := actor.CheckName(*name); err != nil {
		return "", invalid(field, "%v", err)
	}
	return *name, nil
}
