// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/troupe-run/troupe/actor"
)

// Position is the place of an event among the events of its session in the log of a node.
type Position struct {
	Node  actor.NodeID
	Batch uint64 // of the log
	Index uint32 // ordinal of the event among those of the session in the batch, from 1
}

// SessionCursor is a position in the events of a session: the last event read in the log of
// each node, sorted by node. The empty cursor is the position before the first event.
//
//	n1:45.2         all events up to the second one of batch 45
//	n1:45.2,n2:7.1  likewise for a session that has moved to another node
type SessionCursor []Position

// cursorNodesMax is the maximum number of nodes in a cursor.
const cursorNodesMax = 64

// At returns the position in the log of a node.
func (c SessionCursor) At(node actor.NodeID) Position {
	if i, ok := c.find(node); ok {
		return c[i]
	}
	return Position{Node: node}
}

// After returns the cursor behind an event.
func (c SessionCursor) After(p Position) SessionCursor {
	c = slices.Clone(c)
	i, ok := c.find(p.Node)
	if ok {
		c[i] = p
		return c
	}
	return slices.Insert(c, i, p)
}

func (c SessionCursor) find(node actor.NodeID) (int, bool) {
	return slices.BinarySearchFunc(c, node, func(p Position, node actor.NodeID) int { return cmp.Compare(p.Node, node) })
}

// String returns the text that ParseSessionCursor parses.
func (c SessionCursor) String() string {
	var b []byte
	for i, p := range c {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(b, p.Node...), ':')
		b = append(strconv.AppendUint(b, p.Batch, 10), '.')
		b = strconv.AppendUint(b, uint64(p.Index), 10)
	}
	return string(b)
}

// ParseSessionCursor parses the output of String and rejects any other spelling.
func ParseSessionCursor(text string) (c SessionCursor, err error) {
	if text == "" {
		return nil, nil
	}
	wrong := fmt.Errorf("invalid cursor %.80q: send the cursor of the last message or event read, or omit it to start at the first one", text)
	if strings.Count(text, ",") >= cursorNodesMax {
		return nil, wrong
	}
	for part := range strings.SplitSeq(text, ",") {
		node, place, ok := strings.Cut(part, ":")
		batch, index, _ := strings.Cut(place, ".")
		b, err := strconv.ParseUint(batch, 10, 63)
		i, err2 := strconv.ParseUint(index, 10, 32)
		if !ok || cmp.Or(err, err2, actor.CheckName(node)) != nil {
			return nil, wrong
		}
		c = append(c, Position{actor.NodeID(node), b, uint32(i)})
	}
	sorted := slices.IsSortedFunc(c, func(a, b Position) int { return cmp.Compare(a.Node, b.Node) })
	distinct := len(slices.CompactFunc(slices.Clone(c), func(a, b Position) bool { return a.Node == b.Node })) == len(c)
	if !sorted || !distinct || c.String() != text {
		return nil, wrong
	}
	return c, nil
}
