// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"fmt"
	"strconv"
	"strings"
)

// Role is the author of a message of a conversation, as models know it.
type Role uint8

// The roles.
const (
	RoleUser Role = iota + 1
	RoleAssistant
	RoleSystem
	RoleTool
)

var roleNames = [...]string{RoleUser: "user", RoleAssistant: "assistant", RoleSystem: "system", RoleTool: "tool"}

// String returns the name of the role.
func (r Role) String() string { return nameOf(roleNames[:], int(r)) }

// ParseRole parses a name as returned by Role.String.
func ParseRole(text string) (Role, error) { return parseName[Role]("role", roleNames[:], text) }

// Source is the way by which a message came into a transcript. It cannot be forged by the
// content of a message.
type Source uint8

// The sources.
const (
	FromUser      Source = iota + 1 // message of a client
	FromAgent                       // answer of the agent
	FromOperator                    // appended without a run
	FromDelivered                   // answer to a call that the agent did not wait for
)

var sourceNames = [...]string{FromUser: "user", FromAgent: "agent", FromOperator: "operator", FromDelivered: "delivered"}

// String returns the name of the source.
func (s Source) String() string { return nameOf(sourceNames[:], int(s)) }

// ChatMessage is one message of the conversation that an actor holds with its clients.
type ChatMessage struct {
	Call       CallID // run that the message began or ended, or the call that appended it
	Role       Role
	Source     Source
	At         Time
	Parts      []Part
	Extensions Extensions
}

// MessageID identifies a message in the transcript of an actor. The input and the answer of
// a run have the same call.
type MessageID struct {
	Call   CallID
	Answer bool
}

// ID returns the identifier of the message.
func (m *ChatMessage) ID() MessageID { return MessageID{m.Call, m.Source == FromAgent} }

// String returns the call, followed by .0, or by .1 for an answer.
func (id MessageID) String() string {
	n := 0
	if id.Answer {
		n = 1
	}
	return id.Call.String() + "." + strconv.Itoa(n)
}

// ParseMessageID parses the form that MessageID.String returns.
func ParseMessageID(text string) (MessageID, error) {
	call, n, _ := strings.Cut(text, ".")
	id, err := ParseCallID(call)
	if err != nil || n != "0" && n != "1" {
		return MessageID{}, fmt.Errorf("message id %.80q: want one that a list of messages contains", text)
	}
	return MessageID{id, n == "1"}, nil
}

// ChatMessage appends a message of a conversation.
func (e *Encoder) ChatMessage(m *ChatMessage) {
	e.CallID(m.Call)
	e.Uint(uint64(m.Role))
	e.Uint(uint64(m.Source))
	e.Int(int64(m.At))
	e.Parts(m.Parts)
	e.Extensions(m.Extensions)
}

// ChatMessage reads a message of a conversation.
func (d *Decoder) ChatMessage() ChatMessage {
	m := ChatMessage{Call: d.CallID(), Role: Role(d.UintMax(uint64(len(roleNames)-1), "role")),
		Source: Source(d.UintMax(uint64(len(sourceNames)-1), "source")), At: Time(d.Int()), Parts: d.Parts(), Extensions: d.Extensions()}
	if d.err == nil && (m.Role == 0 || m.Source == 0 || m.Call.IsZero()) {
		d.Fail("message without role, source or call")
	}
	return m
}

// TranscriptPolicy is the part of its actor's transcript that a turn is given.
type TranscriptPolicy int32

// The policies other than a positive number, which means that number of the latest messages.
const (
	TranscriptNone TranscriptPolicy = 0
	TranscriptAll  TranscriptPolicy = -1
)

// TranscriptLastMax is the largest number of messages in a TranscriptPolicy.
const TranscriptLastMax = 100_000

// ParseTranscriptPolicy parses "none", "all" or "last:N".
func ParseTranscriptPolicy(text string) (TranscriptPolicy, error) {
	switch text {
	case "none":
		return TranscriptNone, nil
	case "all":
		return TranscriptAll, nil
	}
	n, err := strconv.Atoi(strings.TrimPrefix(text, "last:"))
	if !strings.HasPrefix(text, "last:") || err != nil || n < 1 || n > TranscriptLastMax || text != "last:"+strconv.Itoa(n) {
		return 0, fmt.Errorf(`%.40q: want "none", "all" or "last:N" with N from 1 to %d, like "last:100"`, text, TranscriptLastMax)
	}
	return TranscriptPolicy(n), nil
}

// String returns the form that ParseTranscriptPolicy parses.
func (p TranscriptPolicy) String() string {
	switch {
	case p == TranscriptNone:
		return "none"
	case p < 0:
		return "all"
	}
	return "last:" + strconv.Itoa(int(p))
}

// Window returns the number of the first message that a turn is given, of a transcript with n
// messages. The turn is given all from there on.
func (p TranscriptPolicy) Window(n uint64) (from uint64) {
	switch {
	case p < 0 || uint64(p) >= n:
		return 0
	default:
		return n - uint64(p)
	}
}
