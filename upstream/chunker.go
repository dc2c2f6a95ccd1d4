// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"time"
	"unicode/utf8"

	"github.com/troupe-run/troupe/actor"
)

// Bounds of a piece of a response, guaranteed to clients.
const (
	ChunkBytesMax = 256                   // maximum size of a piece
	ChunkDelayMax = 50 * time.Millisecond // maximum time that text is buffered
)

// Chunker merges small pieces of a stream and splits large ones.
//
//  1. The concatenated output equals the concatenated input.
//  2. No output is empty, longer than ChunkBytesMax, or split within a character.
//  3. The first piece is returned at once. Later text is buffered for at most
//     ChunkDelayMax, provided that Flush is called when Due.
type Chunker struct {
	buffered string
	since    actor.Time
	started  bool
}

// Add appends text and returns the pieces that are ready.
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

// Due returns the time by which Flush MUST be called, and whether text is
// buffered.
func (c *Chunker) Due() (actor.Time, bool) {
	if c.buffered == "" {
		return 0, false
	}
	return c.since.Add(ChunkDelayMax), true
}

// Flush returns the buffered text.
func (c *Chunker) Flush() (out []string) {
	if c.buffered != "" {
		out = []string{c.buffered}
	}
	c.buffered = ""
	return out
}

// runePrefix returns the length of the longest prefix of text that has at most
// limit bytes and ends between characters. If the first character is longer than
// limit bytes, it returns the length of this character.
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
