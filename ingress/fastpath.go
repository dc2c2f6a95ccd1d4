// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"strconv"
	"unicode/utf8"
)

// messageBody is the body of a message.
type messageBody struct {
	Content *string `json:"content"`
	Session string  `json:"session"`
	Timeout int64   `json:"timeout_ms"`
}

// decodeMessageFast reads a message that is written as most are: known names, each once, texts
// without escapes, a number without sign or fraction. Of anything else it says
// nothing but that it is not for it: Decode reads that, or refuses it. What it does
// read, Decode reads alike. The content is a part of the body; nil if there is none.
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
		case string(name) == "session" && m.Session == "":
			text, ok = s.readString()
			m.Session = string(text)
			ok = ok && m.Session != "" // twice could not be seen otherwise
		case string(name) == "timeout_ms" && m.Timeout == 0:
			m.Timeout, ok = s.readInt()
			ok = ok && m.Timeout != 0
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

// scanner reads JSON from the left.
type scanner struct{ rest []byte }

func (s *scanner) skipSpace() {
	for len(s.rest) > 0 && (s.rest[0] == ' ' || s.rest[0] == '\n' || s.rest[0] == '\t' || s.rest[0] == '\r') {
		s.rest = s.rest[1:]
	}
}

// consume takes a byte, if it is the next behind blanks.
func (s *scanner) consume(c byte) bool {
	s.skipSpace()
	if len(s.rest) == 0 || s.rest[0] != c {
		return false
	}
	s.rest = s.rest[1:]
	return true
}

// readString takes a text without escapes.
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

// readInt takes digits.
func (s *scanner) readInt() (int64, bool) {
	s.skipSpace()
	n := 0
	for n < len(s.rest) && '0' <= s.rest[n] && s.rest[n] <= '9' {
		n++
	}
	if n == 0 || n > 18 || s.rest[0] == '0' && n > 1 {
		return 0, false
	}
	v, err := strconv.ParseInt(string(s.rest[:n]), 10, 64)
	s.rest = s.rest[n:]
	return v, err == nil // a fraction that follows is no comma
}
