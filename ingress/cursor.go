// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"strconv"
	"strings"

	"github.com/troupe-run/troupe/actor"
)

const (
	// TreeRunsMax is how many runs one stream may tell of.
	TreeRunsMax = 512
	// cursorSeqMax is the highest number a cursor may hold: what every client can hold, too.
	cursorSeqMax = 1<<53 - 1
)

// Cursor says how far a client has read. Of one run it is the number of the last
// event. Of a run and all runs below it, it is one such number for each run:
// first the run's own, then, for each call that it made among those events and in
// that order, the cursor of the run below. So the runs need no names: the events
// that were read say which they are.
//
//	12          twelve events of the run
//	12.7.3.0    twelve of the run; of its first call seven, and three of the call
//	            that this one made; of its second call none
//
// The empty Cursor is where nothing has been read.
type Cursor []uint64

// ParseCursor reads what String writes, and nothing else.
func ParseCursor(text string) (Cursor, *actor.Refusal) {
	wrong := actor.Refuse(actor.Invalid, "%.40q is no place in a stream of events: want the id of the last one that was read, or nothing to begin with the first", text)
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

// String writes the numbers with dots between them.
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
