// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// SocketInput is an input of Socket.Step. The set is closed.
type SocketInput interface{ socketInput() }

type (
	// SocketOpened is the first input. Known is set if the handshake has authenticated
	// the client.
	SocketOpened struct{ Known bool }
	// SocketText is a message of the client, which is valid UTF-8. It is not used after
	// the step.
	SocketText struct{ Body []byte }
	// SocketFailed reports that the client has violated the protocol.
	SocketFailed struct {
		Code   int
		Reason string
	}
	// SocketHeard reports a sign of life of the client, such as a pong.
	SocketHeard struct{}
	// Admitted answers an Admit.
	Admitted struct {
		Code, Detail string // of the refusal; "" admits the client
		Later        bool   // the refused client may be admitted later
		User, Device string
		Cursors      SessionCursors
		Chats        bool // the client sees what a customer may
		Detached     bool // the client sees the runs of detached calls; a customer does not
	}
	// Attached answers an Attach.
	Attached struct {
		Session string
		End     runs.SessionCursor // if the Attach asks for it
		Refusal *actor.Refusal
	}
	// SessionNews reports that events of a session have been written.
	SessionNews struct{ Session string }
	// SessionPage answers a ReadSession.
	SessionPage struct {
		Session string
		All     []SessionItem
		More    bool
		Dropped runs.SessionCursor // events were dropped; the rest begins here
		Refusal *actor.Refusal
	}
	// RunPage answers a ReadRun. Bodies may be fewer than asked for. If there are none, they
	// were dropped; Root is then the root of the run.
	RunPage struct {
		Bodies  [][]byte
		Root    actor.CallID
		Refusal *actor.Refusal
	}
	// Performed answers a Perform.
	Performed struct {
		Code, Detail string // of the refusal; "": the request was performed
		RetryAfter   int64  // seconds
		Run          actor.CallID
		Session      string
		Agent        string
		Repeated     bool // an earlier request with the same id has made the run
	}
	// Located answers a Locate.
	Located struct {
		Code, Detail string       // of the refusal; "": the run was found
		Session      string       // of the run; "" if it has none
		Root         actor.CallID // of its tree
	}
	// ToolAsked is a call of a tool that this device performs.
	ToolAsked struct {
		Run, Child actor.CallID
		Session    string
		Call, Tool string
		Args       []byte // JSON
		Deadline   actor.Time
	}
	// SocketSent reports that the client has taken the messages of the last Send.
	SocketSent struct{}
)

func (SocketOpened) socketInput() {}
func (SocketText) socketInput()   {}
func (SocketFailed) socketInput() {}
func (SocketHeard) socketInput()  {}
func (Admitted) socketInput()     {}
func (Attached) socketInput()     {}
func (SessionNews) socketInput()  {}
func (SessionPage) socketInput()  {}
func (RunPage) socketInput()      {}
func (Performed) socketInput()    {}
func (Located) socketInput()      {}
func (ToolAsked) socketInput()    {}
func (SocketSent) socketInput()   {}
func (Tick) socketInput()         {}
func (Revoked) socketInput()      {}
func (Draining) socketInput()     {}

// SessionItem is an event of a session.
type SessionItem struct {
	At   runs.Position
	Body []byte
}
