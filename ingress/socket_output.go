// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// SocketOutput is an action requested by a socket. Actions MUST be performed in order. The
// set is closed.
type SocketOutput interface{ socketOutput() }

type (
	// Admit authenticates the client.
	Admit struct{ Hello Hello }
	// Attach subscribes to the news of a session. With End it also asks for the cursor
	// behind all its events.
	Attach struct {
		Session string
		End     bool
	}
	// Detach ends the subscription of an Attach.
	Detach struct{ Session string }
	// ReadSession asks for events of a session.
	ReadSession struct {
		Session string
		After   runs.SessionCursor
		Limit   int
	}
	// ReadRun asks for the first events of a run behind the event After, up to the event To.
	ReadRun struct {
		Run       actor.CallID
		After, To uint64
	}
	// Locate asks for the session of a run.
	Locate struct{ Run actor.CallID }
	// Perform asks for a request to be performed. The next one follows its answer.
	Perform struct{ Request SocketRequest }
	// Send sends messages. The next Send follows SocketSent.
	Send struct{ Messages [][]byte }
	// SendPing sends a ping.
	SendPing struct{}
	// Close is the last output. It closes the socket.
	Close struct {
		Code   int
		Reason string // at most closeReasonMax bytes
	}
)

func (Admit) socketOutput()       {}
func (Attach) socketOutput()      {}
func (Detach) socketOutput()      {}
func (ReadSession) socketOutput() {}
func (ReadRun) socketOutput()     {}
func (Perform) socketOutput()     {}
func (Locate) socketOutput()      {}
func (Send) socketOutput()        {}
func (SendPing) socketOutput()    {}
func (Close) socketOutput()       {}
