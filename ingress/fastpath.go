// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
)

// messageBody is the JSON body of a message request.
type messageBody struct {
	Content   jsontext.Value `json:"content"`
	Message   jsontext.Value `json:"message" alias:"content"`
	SessionID *string        `json:"session_id"`
	Session   *string        `json:"session" alias:"session_id"`
	Timeout   milliseconds   `json:"timeout_ms"`
	Priority  *string        `json:"priority"`
	Project   *string        `json:"project_id"`
	IfBusy    *string        `json:"if_busy"`
	User      *string        `json:"user_id"`
}

// apply sets the lane, the project and the policy for a busy actor of the call.
func (m *messageBody) apply(call *actor.Call) *actor.Refusal {
	if m.Priority != nil && *m.Priority != "" {
		lane, err := actor.ParseLane(*m.Priority)
		if err != nil {
			return invalid("priority", "want high, normal or low")
		}
		call.Lane = lane
	}
	if m.Project != nil && *m.Project != "" {
		if err := actor.CheckName(*m.Project); err != nil {
			return invalid("project_id", "%v", err)
		}
		call.Project = *m.Project
	}
	if m.IfBusy != nil && *m.IfBusy != "" {
		policy, ok := actor.ParseBusyPolicy(*m.IfBusy)
		if !ok {
			return invalid(actor.BusyField, "%.40q: want queue, reject or interrupt", *m.IfBusy)
		}
		call.SetBusy(policy)
	}
	return nil
}

// decodeMessageFast decodes a message in the most common form: known members
// without duplicates, strings without escapes, a number without sign or fraction.
// It reports ok = false for any other body, which Decode then decodes or refuses.
// For a body that it accepts, Decode returns the same result. The returned
// content aliases body and is nil if the member is absent.
func decodeMessageFast(body []byte) (m messageBody, content []byte, ok bool) {
	s := scanner{body}
	if !s.consume('{') {
		return m, nil, false
	}
	for first := true; !s.consume('}'); first = false {
		if !first && !s.consume(',') {
			return m, nil, false
		}
		name, named := s.readString()
		if !named || !s.consume(':') {
			return m, nil, false
		}
		var text []byte
		switch {
		case string(name) == "content" && content == nil:
			content, ok = s.readString()
		case string(name) == "session_id" && m.SessionID == nil:
			text, ok = s.readString()
			m.SessionID = new(string(text))
		case string(name) == "session" && m.Session == nil:
			text, ok = s.readString()
			m.Session = new(string(text))
		case string(name) == "priority" && m.Priority == nil:
			text, ok = s.readString()
			m.Priority = new(string(text))
		case string(name) == "project_id" && m.Project == nil:
			text, ok = s.readString()
			m.Project = new(string(text))
		case string(name) == "user_id" && m.User == nil:
			text, ok = s.readString()
			m.User = new(string(text))
		case string(name) == "timeout_ms" && m.Timeout == nil:
			m.Timeout, ok = s.readInt()
		default:
			return m, nil, false
		}
		if !ok {
			return m, nil, false
		}
	}
	s.skipSpace()
	return m, content, len(s.rest) == 0
}

// scanner reads JSON tokens from left to right.
type scanner struct{ rest []byte }

func (s *scanner) skipSpace() {
	for len(s.rest) > 0 && (s.rest[0] == ' ' || s.rest[0] == '\n' || s.rest[0] == '\t' || s.rest[0] == '\r') {
		s.rest = s.rest[1:]
	}
}

// consume skips blanks and reads the byte c. It reports whether c was next.
func (s *scanner) consume(c byte) bool {
	s.skipSpace()
	if len(s.rest) == 0 || s.rest[0] != c {
		return false
	}
	s.rest = s.rest[1:]
	return true
}

// readString reads a string literal without escapes.
func (s *scanner) readString() ([]byte, bool) {
	if !s.consume('"') {
		return nil, false
	}
	for i, c := range s.rest {
		switch {
		case c == '"':
			text := s.rest[:i]
			s.rest = s.rest[i+1:]
			return text, utf8.Valid(text)
		case c == '\\' || c < ' ':
			return nil, false
		}
	}
	return nil, false
}

// readInt reads an unsigned decimal integer of at most 18 digits.
func (s *scanner) readInt() ([]byte, bool) {
	s.skipSpace()
	n := 0
	for n < len(s.rest) && '0' <= s.rest[n] && s.rest[n] <= '9' {
		n++
	}
	if n == 0 || n > 18 || s.rest[0] == '0' && n > 1 {
		return nil, false
	}
	digits := s.rest[:n]
	s.rest = s.rest[n:]
	return digits, true // a following fraction fails later, as a missing comma
}
