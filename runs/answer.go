// SPDX-License-Identifier: Apache-2.0

package runs

import "strings"

// AnswerText is the text of a run's answer as received so far. Clients show it
// while a run is streamed.
//
//  1. A new answer of a model or an external agent replaces the previous one.
//  2. An Attempt discards the pieces at its position whose events have a number
//     greater than its field Discards. Exception: if Discards is 0, it discards
//     no piece.
//  3. The text of RunDone replaces all pieces.
type AnswerText struct {
	pieces []piece
	done   *string
}

type piece struct {
	position position
	seq      uint64
	text     string
}

// Apply adds the next event. It reports whether the text before the event is a
// prefix of the text after it. If not, a client MUST redraw the whole text.
func (s *AnswerText) Apply(e *Event) (extends bool) {
	at := position{e.Step, e.Index}
	if e.StartsAnswer() {
		extends = len(s.pieces) == 0
		s.pieces = nil
		return extends
	}
	switch e.Type {
	case AgentStreamDelta:
		s.pieces = append(s.pieces, piece{at, e.Seq, e.Text})
	case Attempt:
		if e.Discards == 0 {
			return true
		}
		remaining := s.pieces[:0]
		for _, p := range s.pieces {
			if p.position != at || p.seq <= e.Discards {
				remaining = append(remaining, p)
			}
		}
		extends = len(remaining) == len(s.pieces)
		s.pieces = remaining
		return extends
	case RunDone:
		before := s.Text()
		s.done = &e.Text
		return strings.HasPrefix(e.Text, before)
	}
	return true
}

// Streamed returns the concatenation of the pieces, and whether there are any.
func (s *AnswerText) Streamed() (text string, any bool) {
	var b strings.Builder
	for _, p := range s.pieces {
		b.WriteString(p.text)
	}
	return b.String(), len(s.pieces) > 0
}

// Text returns the answer so far.
func (s *AnswerText) Text() string {
	if s.done != nil {
		return *s.done
	}
	text, _ := s.Streamed()
	return text
}
