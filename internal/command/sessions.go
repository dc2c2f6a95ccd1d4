// SPDX-License-Identifier: Apache-2.0

package command

import (
	"github.com/troupe-run/troupe/actor"
)

// Bounds of results about sessions. A query for more is refused as Invalid.
const (
	SessionsMax = 200 // sessions of a list
	MessagesMax = 200 // messages of a page
)

type (
	// Forget deletes a session with all that it contains. A session with open runs is
	// refused as Rejected.
	Forget struct {
		By      actor.Principal
		Session string
	}

	// SessionsQuery asks for a page of the sessions of the principal's namespace, in
	// descending order of their names: those before the name Before.
	SessionsQuery struct {
		Before string // "": from the last name
		Limit  int
	}
	// SessionQuery asks for one session.
	SessionQuery struct{ Session string }
	// MessagesQuery asks for messages of the transcript of an agent in a session, the
	// newest first. If Agent is empty, the session MUST have one agent with messages.
	MessagesQuery struct {
		Session, Agent string
		Before         actor.MessageID // zero: from the newest message
		Limit          int
	}
	// ContextQuery asks for a version of a context; 0 means the newest.
	ContextQuery struct {
		Session, ID string
		Version     uint64
	}
	// SessionStateQuery asks for what the agents of a session share, or for one result of a workflow of theirs.
	SessionStateQuery struct{ Session, Output string }
)

func (SessionsQuery) query() {}
func (SessionQuery) query()  {}
func (MessagesQuery) query() {}
func (ContextQuery) query()  {}

func (SessionStateQuery) query() {}

func (SessionsQuery) returns(Sessions) {}
func (SessionQuery) returns(Session)   {}
func (MessagesQuery) returns(Messages) {}
func (ContextQuery) returns(Context)   {}

func (SessionStateQuery) returns(SessionState) {}

func (Sessions) result() {}
func (Session) result()  {}
func (Messages) result() {}
func (Context) result()  {}

func (SessionState) result() {}

// SessionState is what the agents of a session share, or one of their results: JSON as clients and models get it.
type SessionState struct{ JSON []byte }

// Context is a version of a context.
type Context struct {
	OwnerType, OwnerID string
	Version            uint64
	At                 actor.Time
	Value              []byte // JSON
}

// Sessions is a page of a list of sessions.
type Sessions struct {
	All  []Session
	Next string // name to continue before; "" if the page is the last one
}

// Session is a session and the agents that have a transcript or open runs in it.
type Session struct {
	Name     string
	Title    string
	Metadata []byte     // JSON object; nil if there is none
	Created  actor.Time // 0 if unknown
	Last     actor.Time // time of the last message; 0 if there is none
	Updated  actor.Time // time of the last change; 0 if unknown
	Agents   []SessionAgent
}

// SessionAgent is an agent in a session.
type SessionAgent struct {
	Agent    string
	Messages uint64
	Runs     uint64         // ended runs of clients
	Open     []actor.CallID // open runs, in order of acceptance
	Usage    actor.Usage    // of the ended runs, with the runs below them
}

// Usage returns the sum of all agents.
func (s *Session) Usage() (total actor.Usage) {
	for i := range s.Agents {
		total = total.Add(s.Agents[i].Usage)
	}
	return total
}

// Messages is a page of a transcript.
type Messages struct {
	Session, Agent string
	All            []actor.ChatMessage // newest first
	More           bool                // there are older messages
	Total          uint64              // messages of the transcript
	Open           []actor.ChatMessage // messages of clients whose runs are open, in order of acceptance
}
