// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
)

// Frame is one Server-Sent Event: how a run event travels, and whatever else is
// said over such a stream.
type Frame struct {
	Name string // "" is what the standard calls message
	ID   string // "" if it has none of its own
	Data string
}

// Check says what no frame can carry. Data may be anything.
func (f Frame) Check() error {
	for _, s := range [...]struct{ what, text string }{{"name", f.Name}, {"id", f.ID}} {
		if at := strings.IndexAny(s.text, "\r\n\x00"); at >= 0 {
			return fmt.Errorf("frame: its %s has the byte %#02x at %d", s.what, s.text[at], at)
		}
		if !utf8.ValidString(s.text) {
			return fmt.Errorf("frame: its %s is not UTF-8", s.what)
		}
	}
	return nil
}

// Append writes the frame as one, whatever its data: line ends of every kind
// become line feeds, and what is not UTF-8 is replaced. Name and id are ours; a
// frame that Check refuses is a mistake of ours.
func (f Frame) Append(b []byte) []byte {
	err := f.Check()
	invariant.Check(err == nil, "runs: %v", err)
	if f.ID != "" {
		b = appendLine(b, "id: ", f.ID)
	}
	if f.Name != "" {
		b = appendLine(b, "event: ", f.Name)
	}
	for line := range strings.SplitSeq(normalizeLineEnds(f.Data), "\n") {
		b = appendLine(b, "data: ", line)
	}
	return append(b, '\n')
}

// AppendComment writes what every client ignores: a sign of life.
func AppendComment(b []byte, text string) []byte {
	for line := range strings.SplitSeq(normalizeLineEnds(text), "\n") {
		b = appendLine(b, ": ", line)
	}
	return append(b, '\n')
}

// AppendRetry tells the client how long to wait before it connects again.
func AppendRetry(b []byte, wait actor.Duration) []byte {
	return append(strconv.AppendInt(append(b, "retry: "...), int64(max(wait, 0)/time.Millisecond), 10), "\n\n"...)
}

func appendLine(b []byte, field, value string) []byte {
	return append(append(append(b, field...), value...), '\n')
}

var lineEnds = strings.NewReplacer("\r\n", "\n", "\r", "\n")

func normalizeLineEnds(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if strings.IndexByte(text, '\r') < 0 {
		return text
	}
	return lineEnds.Replace(text)
}
