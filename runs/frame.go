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

// Frame is one Server-Sent Event. It carries a run event or another message of an
// event stream.
type Frame struct {
	Name string // event type; "" means "message" in the standard
	ID   string // "" if the event has no id
	Data string
}

// Check returns an error if the name or id cannot be encoded. Data is
// unrestricted.
func (f Frame) Check() error {
	for _, s := range [...]struct{ what, text string }{{"name", f.Name}, {"id", f.ID}} {
		if at := strings.IndexAny(s.text, "\r\n\x00"); at >= 0 {
			return fmt.Errorf("frame: %s has the byte %#02x at %d", s.what, s.text[at], at)
		}
		if !utf8.ValidString(s.text) {
			return fmt.Errorf("frame: %s is not UTF-8", s.what)
		}
	}
	return nil
}

// Append appends the frame in wire format as exactly one event, whatever its data:
// line ends of every kind become LF, and invalid UTF-8 is replaced. It panics if
// Check fails, because name and id never come from outside.
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

// AppendComment appends a comment, which clients ignore. It keeps a connection
// alive.
func AppendComment(b []byte, text string) []byte {
	for line := range strings.SplitSeq(normalizeLineEnds(text), "\n") {
		b = appendLine(b, ": ", line)
	}
	return append(b, '\n')
}

// AppendRetry appends the delay after which a client may reconnect.
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
