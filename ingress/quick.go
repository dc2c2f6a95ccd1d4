// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"strconv"
	"unicode/utf8"
)

// message is the body of a message.
type message struct {
	Content *string `json:"content"`
	Session string  `json:"session"`
	Timeout int64   `json:"timeout_ms"`
}

// quick reads a message that is written as most are: known names, each once, texts
// without escapes, a number without sign or fraction. Of anything else it says
// nothing but that it is not for it: Decode reads that, or refuses it. What it does
// read, Decode reads alike. The content is a part of the body; nil if there is none.
func quick(body []byte) (m message, content []byte, ok bool) {
	s := scan{body}
	if !s.take('{') {
		return m, nil, false
	}
	for first := true; !s.take('}'); first = false {
		if !first && !s.take(',') {
			return m, nil, false
		}
		name, named := s.text()
		if !named || !s.take(':') {
			return m, nil, false
		}
		var text []byte
		switch {
		case string(name) == "content" && content == nil:
			content, ok = s.text()
		case string(name) == "session" && m.Session == "":
			text, ok = s.text()
			m.Session = string(text)
			ok = ok && m.Session != "" // twice could not be seen otherwise
		case string(name) == "timeout_ms" && m.Timeout == 0:
			m.Timeout, ok = s.number()
			ok = ok && m.Timeout != 0
		default:
			return m, nil, false
		}
		if !ok {
			return m, nil, false
		}
	}
	s.space()
	return m, content, len(s.rest) == 0
}

// scan reads JSON from the left.
type scan struct{ rest []byte }

func (s *scan) space() {
	for len(s.rest) > 0 && (s.rest[0] == ' ' || s.rest[0] == '\n' || s.rest[0] == '\t' || s.rest[0] == '\r') {
		s.rest = s.rest[1:]
	}
}

// take takes a byte, if it is the next behind blanks.
func (s *scan) take(c byte) bool {
	s.space()
	if len(s.rest) == 0 || s.rest[0] != c {
		return false
	}
	s.rest = s.rest[1:]
	return true
}

// text takes a text without escapes.
func (s *scan) text() ([]byte, bool) {
	if !s.take('"') {
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

// number takes digits.
func (s *scan) number() (int64, bool) {
	s.space()
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
