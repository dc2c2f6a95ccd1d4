// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"time"
	"unicode/utf8"

	"github.com/troupe-run/troupe/actor"
)

// What clients are promised of the pieces of an answer.
const (
	ChunkBytesMax = 256                   // a piece is no longer
	ChunkDelayMax = 50 * time.Millisecond // nor held back for longer
)

// Chunker joins the many small pieces of a stream into few, and cuts large ones.
//
//  1. What comes out, joined, is what went in.
//  2. Nothing comes out empty, longer than CutBytes, or cut inside a character.
//  3. The first piece comes out at once; of what follows nothing is held longer
//     than CutAfter, if the cutter is asked when it is Due.
type Chunker struct {
	buffered string
	since    actor.Time
	started  bool
}

// Add takes the next text and returns what is ready to go.
func (c *Chunker) Add(now actor.Time, text string) (out []string) {
	if text == "" {
		return nil
	}
	if c.buffered == "" {
		c.since = now
	}
	c.buffered += text
	for len(c.buffered) >= ChunkBytesMax {
		n := runePrefix(c.buffered, ChunkBytesMax)
		out = append(out, c.buffered[:n])
		c.buffered = c.buffered[n:]
		c.since = now
	}
	if c.buffered != "" && (!c.started || now >= c.since.Add(ChunkDelayMax)) {
		out = append(out, c.buffered)
		c.buffered = ""
	}
	c.started = c.started || len(out) > 0
	return out
}

// Due is when Flush has to be called at the latest.
func (c *Chunker) Due() (actor.Time, bool) { return c.since.Add(ChunkDelayMax), c.buffered != "" }

// Flush returns what is held back.
func (c *Chunker) Flush() (out []string) {
	if c.buffered != "" {
		out = []string{c.buffered}
	}
	c.buffered = ""
	return out
}

// runePrefix is the length of the longest beginning of text that has at most limit
// bytes and ends between characters; at least one character.
func runePrefix(text string, limit int) int {
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
