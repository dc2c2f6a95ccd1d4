// SPDX-License-Identifier: Apache-2.0

package runs

import "strings"

// Said is the answer of a run as far as its events have brought it: what a
// client shows while it streams. At the end it is the terminal event's text.
//
//  1. A model's or an external agent's answer that begins takes the place of
//     the one before.
//  2. An attempt takes back the pieces of its place that came after the event it names.
//  3. A done run's own text is the last word.
type Said struct {
	pieces []piece
	done   *string
}

type piece struct {
	position position
	seq      uint64
	text     string
}

// Take folds the next event, and tells whether what was said before still stands:
// false means that a client has to show all of Text anew.
func (s *Said) Take(e *Event) (stands bool) {
	at := position{e.Step, e.Index}
	switch e.Type {
	case LLMCallStarted, AgentInvokeStarted:
		stands = len(s.pieces) == 0
		s.pieces = nil
		return stands
	case AgentStreamDelta:
		s.pieces = append(s.pieces, piece{at, e.Seq, e.Text})
	case Attempt:
		if e.Discards == 0 {
			return true
		}
		kept := s.pieces[:0]
		for _, p := range s.pieces {
			if p.position != at || p.seq <= e.Discards {
				kept = append(kept, p)
			}
		}
		stands = len(kept) == len(s.pieces)
		s.pieces = kept
		return stands
	case RunDone:
		before := s.Text()
		s.done = &e.Text
		return strings.HasPrefix(e.Text, before)
	}
	return true
}

// Streamed is what the pieces alone come to, and whether there were any.
func (s *Said) Streamed() (text string, any bool) {
	var b strings.Builder
	for _, p := range s.pieces {
		b.WriteString(p.text)
	}
	return b.String(), len(s.pieces) > 0
}

// Text is all that was said so far.
func (s *Said) Text() string {
	if s.done != nil {
		return *s.done
	}
	text, _ := s.Streamed()
	return text
}
