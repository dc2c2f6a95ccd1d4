// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"strconv"
	"strings"

	"github.com/troupe-run/troupe/actor"
)

const (
	// TreeRunsMax is the maximum number of runs in one stream.
	TreeRunsMax = 512
	// cursorSeqMax is the highest number in a cursor: the largest integer that a
	// JSON number holds exactly.
	cursorSeqMax = 1<<53 - 1
)

// Cursor is a position in a stream of events: how far a client has read. For a
// single run it is the number of the last event. For a run with all runs below
// it, the cursor holds one such number per run. The number of the run itself
// comes first. The cursors of the runs that its events called follow, in call
// order. The runs need no names, because the events already read identify them.
//
//	12          twelve events of the run
//	12.7.3.0    twelve events of the run; seven of its first child; three of
//	            that child's own child; none of the second child
//
// The empty Cursor is the position before the first event.
type Cursor []uint64

// ParseCursor parses the output of String and rejects any other spelling.
func ParseCursor(text string) (Cursor, *actor.Refusal) {
	wrong := actor.Refuse(actor.Invalid, "invalid event id %.40q: send the id of the last event read, or omit it to start at the first event", text)
	if strings.Count(text, ".") >= TreeRunsMax {
		return nil, wrong
	}
	var c Cursor
	for number := range strings.SplitSeq(text, ".") {
		n, err := strconv.ParseUint(number, 10, 64)
		if err != nil || n > cursorSeqMax || strconv.FormatUint(n, 10) != number {
			return nil, wrong
		}
		c = append(c, n)
	}
	return c, nil
}

// String returns the numbers separated by dots.
func (c Cursor) String() string { return string(c.appendTo(nil)) }

func (c Cursor) appendTo(b []byte) []byte {
	for i, n := range c {
		if i > 0 {
			b = append(b, '.')
		}
		b = strconv.AppendUint(b, n, 10)
	}
	return b
}
