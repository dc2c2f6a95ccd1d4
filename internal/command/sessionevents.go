// SPDX-License-Identifier: Apache-2.0

package command

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

type (
	// SessionEventsQuery asks for the events of all runs of a session that follow a cursor, at
	// most EventsMax. A session that does not exist yet has none.
	SessionEventsQuery struct {
		Session string
		After   runs.SessionCursor
		Limit   int
	}
	// SessionEndQuery asks for the cursor behind all events of a session.
	SessionEndQuery struct{ Session string }
	// SessionEnd is a cursor behind all events of a session that exist.
	SessionEnd struct {
		Cursor runs.SessionCursor
		Exists bool // the session exists; the cursor is empty while it has no events
	}
	// SessionEvents is a page of the events of a session.
	SessionEvents struct {
		All     []SessionEvent
		More    bool               // more events may follow the last one
		Dropped runs.SessionCursor // the page is empty, because events were dropped; they are complete from this cursor on
	}
	// SessionEvent is an event of a run as it was recorded, and its place in the session.
	SessionEvent struct {
		At   runs.Position
		Run  actor.CallID
		Seq  uint64
		Body []byte // see runs.Decode; nil for an event that the client may not see, and that only moves its cursor
	}
)

func (SessionEventsQuery) query()                {}
func (SessionEventsQuery) returns(SessionEvents) {}
func (SessionEvents) result()                    {}
func (SessionEndQuery) query()                   {}
func (SessionEndQuery) returns(SessionEnd)       {}
func (SessionEnd) result()                       {}

// fit returns the part of the page that one frame can carry.
func (s SessionEvents) fit() SessionEvents {
	size := 0
	for i, e := range s.All {
		if size += len(e.Body); size > FrameBytesMax/2 && i > 0 {
			return SessionEvents{All: s.All[:i], More: true}
		}
	}
	return s
}
