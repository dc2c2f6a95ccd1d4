// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// Bounds of a socket.
const (
	SocketMessageBytesMax = 1 << 20          // message of a client
	SocketSessionsMax     = 64               // sessions that a socket follows
	SocketRequestsMax     = 64               // requests that wait to be performed
	SocketWaitingBytesMax = 2 << 20          // bytes of these, if there are several
	HelloBytesMax         = 64 << 10         // hello of a client that the handshake has not authenticated
	SocketQueueBytesMax   = 256 << 10        // messages that wait for the client, with one page of events
	HelloTimeout          = 5 * time.Second  // time from the connection to the hello
	SocketPing            = 20 * time.Second // silence after which a ping is sent
	SocketSilence         = 60 * time.Second // silence of a client after which its socket is closed

	socketPageEvents = 64
	closeReasonMax   = 123 // RFC 6455, 5.5: a control frame has 125 bytes, 2 of them the code
)

// Close codes of RFC 6455.
const (
	CloseNormal      = 1000
	CloseGoingAway   = 1001
	CloseProtocol    = 1002
	CloseUnsupported = 1003
	CloseUTF8        = 1007
	ClosePolicy      = 1008
	CloseTooBig      = 1009
	CloseBroken      = 1011
	CloseTryLater    = 1013
)

// Socket serves one client of the channel protocol. It guarantees:
//
//  1. The client gets the messages of every event of a session that it follows, once and in
//     the order of the session. All sockets of a user get them in the same order.
//  2. A socket that resumes behind the cursor of a message gets exactly the messages that
//     follow it.
//  3. Requests are performed one after the other, in the order of their messages.
//  4. It holds at most SocketQueueBytesMax and one page of events. A client that does not
//     take them within the write timeout is disconnected, and resumes.
type Socket struct {
	opened   actor.Time
	known    bool // the handshake has authenticated the client
	chats    bool // the client sees what a customer may
	detached bool // and the runs of detached calls
	greeted  bool // a hello was received
	ready    bool // and accepted
	hello    Hello
	cursors  SessionCursors
	sessions []*followed
	reading  *followed       // of the outstanding ReadSession or ReadRun
	requests []SocketRequest // that wait to be performed
	waiting  int             // bytes of requests
	performs *performing
	replay   *followed        // the running replay, one of sessions; or nil
	locating *Replay          // waits for its session
	tools    []ChannelMessage // tool requests that wait for a place in the queue

	queue     [][]byte
	queued    int // bytes in queue
	answers   int // bytes of these that answer the client
	sending   bool
	sendBy    actor.Time
	lastHeard actor.Time
	nextPing  actor.Time
	closed    bool

	now     actor.Time
	outputs []SocketOutput
}

// NewSocket returns a socket that waits for SocketOpened.
func NewSocket() *Socket { return &Socket{} }

// Step applies one input and returns the actions to perform.
func (s *Socket) Step(now actor.Time, in SocketInput) []SocketOutput {
	if s.closed {
		return nil
	}
	s.now, s.outputs = now, nil
	switch in := in.(type) {
	case SocketOpened:
		s.opened, s.lastHeard, s.nextPing, s.known = now, now, now.Add(SocketPing), in.Known
	case SocketText:
		s.lastHeard = now
		s.receive(in.Body)
	case SocketFailed:
		s.close(in.Code, in.Reason)
	case SocketHeard:
		s.lastHeard = now
	case Admitted:
		s.admitted(&in)
	case Attached:
		s.attached(&in)
	case SessionNews:
		if f := s.find(in.Session); f != nil {
			f.news = true
		}
	case SessionPage:
		s.page(&in)
	case RunPage:
		s.restore(&in)
	case Performed:
		s.performed(&in)
	case Located:
		s.located(&in)
	case ToolAsked:
		s.askTool(&in)
	case SocketSent:
		// A client may be silent while it takes messages.
		s.lastHeard = min(now, s.lastHeard.Add(now.Sub(s.sendBy.Add(-WriteTimeout))))
		s.sending = false
	case Revoked:
		s.close(ClosePolicy, "the API key was revoked or has expired")
	case Draining:
		s.close(CloseGoingAway, "this server is stopping: reconnect and resume behind the last cursor")
	}
	s.advance()
	return s.outputs
}

// NextDeadline returns the time by which the next Tick is due.
func (s *Socket) NextDeadline() actor.Time {
	due := min(s.nextPing, s.lastHeard.Add(SocketSilence))
	if !s.ready {
		due = min(due, s.opened.Add(HelloTimeout))
	}
	if s.sending {
		due = min(due, s.sendBy)
	}
	if s.replay != nil && len(s.replay.replay.held) > 0 {
		due = min(due, s.replay.replay.next)
	}
	return due
}

func (s *Socket) emit(out SocketOutput) { s.outputs = append(s.outputs, out) }

func (s *Socket) close(code int, reason string) {
	if s.closed {
		return
	}
	s.closed = true
	s.emit(Close{code, strings.ToValidUTF8(reason[:min(len(reason), closeReasonMax)], "")})
}

// advance performs all work that is possible now.
func (s *Socket) advance() {
	switch {
	case s.closed:
		return
	case !s.ready && s.now >= s.opened.Add(HelloTimeout):
		s.close(ClosePolicy, `no hello within 5 s: send {"type": "hello"} first`)
		return
	case s.sending && s.now >= s.sendBy:
		s.close(CloseTryLater, "the client did not read in time: reconnect and resume behind the last cursor")
		return
	case s.now >= s.lastHeard.Add(SocketSilence):
		s.close(CloseGoingAway, "the client was silent for 60 s")
		return
	}
	if s.now >= s.nextPing {
		s.nextPing = s.now.Add(SocketPing)
		s.emit(SendPing{})
	}
	s.performNext()
	for len(s.tools) > 0 && s.queued < SocketQueueBytesMax {
		s.enqueue(&s.tools[0])
		s.tools = s.tools[1:]
	}
	s.readNext()
	if !s.sending && len(s.queue) > 0 {
		s.sending, s.sendBy = true, s.now.Add(WriteTimeout)
		s.emit(Send{s.queue})
		s.queue, s.queued, s.answers = nil, 0, 0
	}
}

// receive handles a message of the client.
func (s *Socket) receive(body []byte) {
	kind, request, r := socketType(body)
	if r != nil && !s.greeted {
		s.close(ClosePolicy, `the first message must be {"type": "hello"}: `+r.Detail)
		return
	}
	if r != nil {
		s.fail(request, "invalid_request", r.Detail)
		return
	}
	if kind == SocketHello {
		s.greet(body)
		return
	}
	if !s.ready && !(s.greeted && s.known) {
		if s.greeted {
			s.fail(request, "not_ready", "wait for the state READY, which answers the hello")
			return
		}
		s.close(ClosePolicy, `the first message must be {"type": "hello"}`)
		return
	}
	if kind == SocketReplay {
		s.startReplay(request, body)
		return
	}
	out, r := DecodeSocketRequest(kind, body)
	switch {
	case r != nil:
		s.fail(request, "invalid_request", r.Detail)
	case len(s.requests) >= SocketRequestsMax, len(s.requests) > 0 && s.waiting+out.Bytes > SocketWaitingBytesMax:
		s.fail(request, "agent_busy", "too many requests wait on this socket: send this one later")
	default:
		s.requests, s.waiting = append(s.requests, out), s.waiting+out.Bytes
	}
}

func (s *Socket) greet(body []byte) {
	if s.greeted {
		s.close(CloseProtocol, "a second hello")
		return
	}
	h, r := DecodeHello(body)
	if r != nil {
		s.fail("", "invalid_request", r.Detail)
		s.flushAndClose(ClosePolicy, "the hello is invalid: "+r.Detail)
		return
	}
	s.greeted, s.hello = true, h
	s.emit(Admit{h})
}

// flushAndClose sends the queue and closes the socket.
func (s *Socket) flushAndClose(code int, reason string) {
	if !s.sending && len(s.queue) > 0 {
		s.emit(Send{s.queue})
		s.queue = nil
	}
	s.close(code, reason)
}

func (s *Socket) admitted(in *Admitted) {
	if in.Code != "" {
		code := ClosePolicy
		if in.Later {
			code = CloseTryLater
		}
		s.fail("", in.Code, in.Detail)
		s.flushAndClose(code, in.Detail)
		return
	}
	s.ready, s.cursors, s.chats, s.detached = true, in.Cursors, in.Chats, in.Detached
	m := ChannelMessage{Type: ChannelState, State: StateReady, Detail: &struct {
		User   string `json:"user_id"`
		Device string `json:"device_id"`
	}{in.User, in.Device}}
	s.send(&m)
	for _, r := range s.hello.Resume {
		at, known := s.cursors.Find(r.Session, r.After)
		s.follow(r.Session, at, r.End).foreign = !known
	}
}

// send queues a message that has no place among the events of a session.
func (s *Socket) send(m *ChannelMessage) {
	m.TS = millisecondsOf(s.now)
	before := s.queued
	s.enqueue(m)
	if s.answers += s.queued - before; s.answers > SocketQueueBytesMax {
		s.close(CloseTryLater, "the client does not read the answers to its requests: reconnect and resume behind the last cursor")
	}
}

func (s *Socket) enqueue(m *ChannelMessage) {
	b := m.Append(nil)
	s.queue, s.queued = append(s.queue, b), s.queued+len(b)
}

// fail sends an error that answers a request.
func (s *Socket) fail(request, code, detail string) {
	s.send(&ChannelMessage{Type: ChannelError, Request: request, Code: code, Error: detail})
}

// askTool sends a request to the device.
func (s *Socket) askTool(in *ToolAsked) {
	m := ChannelMessage{Type: ChannelToolRequest, Run: in.Run.String(), Session: in.Session, ToolCall: in.Call, Tool: in.Tool,
		Args: argsOf(string(in.Args)), Deadline: millisecondsOf(in.Deadline)}
	if in.Child != in.Run {
		m.Child = in.Child.String()
	}
	m.TS = millisecondsOf(s.now)
	s.tools = append(s.tools, m)
}
