// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"time"
	"unicode/utf8"

	"github.com/troupe-run/troupe/actor"
)

// What clients are promised of the pieces of an answer.
const (
	CutBytes = 256                   // a piece is no longer
	CutAfter = 50 * time.Millisecond // nor held back for longer
)

// Cutter joins the many small pieces of a stream into few, and cuts large ones.
//
//  1. What comes out, joined, is what went in.
//  2. Nothing comes out empty, longer than CutBytes, or cut inside a character.
//  3. The first piece comes out at once; of what follows nothing is held longer
//     than CutAfter, if the cutter is asked when it is Due.
type Cutter struct {
	held  string
	since actor.Time
	begun bool
}

// Add takes the next text and returns what is ready to go.
func (c *Cutter) Add(now actor.Time, text string) (out []string) {
	if text == "" {
		return nil
	}
	if c.held == "" {
		c.since = now
	}
	c.held += text
	for len(c.held) >= CutBytes {
		n := runeCut(c.held, CutBytes)
		out = append(out, c.held[:n])
		c.held = c.held[n:]
		c.since = now
	}
	if c.held != "" && (!c.begun || now >= c.since.Add(CutAfter)) {
		out = append(out, c.held)
		c.held = ""
	}
	c.begun = c.begun || len(out) > 0
	return out
}

// Due is when Flush has to be called at the latest.
func (c *Cutter) Due() (actor.Time, bool) { return c.since.Add(CutAfter), c.held != "" }

// Flush returns what is held back.
func (c *Cutter) Flush() (out []string) {
	if c.held != "" {
		out = []string{c.held}
	}
	c.held = ""
	return out
}

// runeCut is the length of the longest beginning of text that has at most limit
// bytes and ends between characters; at least one character.
func runeCut(text string, limit int) int {
	if len(text) <= limit {
		return len(text)
	}
	n := limit
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	if n <= 0 {
		_, n = utf8.DecodeRuneInString(text)
	}
	return n
}
