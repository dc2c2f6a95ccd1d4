// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/mutant"
	"github.com/troupe-run/troupe/runs"
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
		User, Device string
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
	// ReadSession asks for events of a session.
	ReadSession struct {
		Session string
		After   runs.SessionCursor
		Limit   int
	}
	// ReadRun asks for events of a run behind the event After, up to the event To.
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
		Reason string // at most 123 bytes
	}
)

func (Admit) socketOutput()       {}
func (Attach) socketOutput()      {}
func (ReadSession) socketOutput() {}
func (ReadRun) socketOutput()     {}
func (Perform) socketOutput()     {}
func (Locate) socketOutput()      {}
func (Send) socketOutput()        {}
func (SendPing) socketOutput()    {}
func (Close) socketOutput()       {}

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
	greeted  bool // a hello was received
	ready    bool // and accepted
	hello    Hello
	sessions []*followed
	reading  *followed       // of the outstanding ReadSession or ReadRun
	requests []SocketRequest // that wait to be performed
	waiting  int             // bytes of requests
	performs *performing
	replay   *followed // the running replay, one of sessions; or nil
	locating *Replay   // waits for its session

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

// performing is the request that is being performed.
type performing struct {
	request SocketRequest
	session *followed // waits for the answer before it is read; or nil
}

// followed is a session that a socket follows.
type followed struct {
	name     string
	cursor   runs.SessionCursor
	channel  *Channel
	attached bool
	end      bool           // begins behind all events
	held     bool           // not read before the request that follows it is performed
	news     bool           // events may follow the cursor
	live     bool           // LIVE was sent
	pending  []SessionItem  // read, not mapped
	replay   *replay        // the messages are a replay; or nil
	started  []actor.CallID // the last runs whose run_started was sent
}

const startedMax = 64

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
	s.emit(Close{code, reason[:min(len(reason), 123)]})
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
	case len(s.requests) >= SocketRequestsMax, len(s.requests) > 0 && s.waiting+len(out.Body) > SocketWaitingBytesMax:
		s.fail(request, "agent_busy", "too many requests wait on this socket: send this one later")
	default:
		s.requests, s.waiting = append(s.requests, out), s.waiting+len(out.Body)
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
		s.fail("", in.Code, in.Detail)
		s.flushAndClose(ClosePolicy, in.Detail)
		return
	}
	s.ready = true
	m := ChannelMessage{Type: ChannelState, State: StateReady, Detail: &struct {
		User   string `json:"user_id"`
		Device string `json:"device_id"`
	}{in.User, in.Device}}
	s.send(&m)
	for _, r := range s.hello.Resume {
		s.follow(r.Session, r.After, r.End)
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

func (s *Socket) find(session string) *followed {
	i := slices.IndexFunc(s.sessions, func(f *followed) bool { return f.name == session && f.replay == nil })
	if i < 0 {
		return nil
	}
	return s.sessions[i]
}

// follow begins to follow a session.
func (s *Socket) follow(session string, after runs.SessionCursor, end bool) *followed {
	f := &followed{name: session, cursor: after, end: end, channel: NewChannel(session, false), news: true}
	s.sessions = append(s.sessions, f)
	s.emit(Attach{session, end})
	return f
}

func (s *Socket) unfollow(f *followed) {
	s.sessions = slices.DeleteFunc(s.sessions, func(o *followed) bool { return o == f })
	if s.replay == f {
		s.replay = nil
	}
}

func (s *Socket) attached(in *Attached) {
	f := s.find(in.Session)
	if f == nil {
		return
	}
	switch {
	case isUnavailable(in.Refusal):
		s.close(CloseTryLater, in.Refusal.Detail)
		return
	case in.Refusal != nil:
		s.unfollow(f)
		s.fail("", sessionCode(in.Refusal), in.Refusal.Detail)
		if p := s.performs; p != nil && p.session == f {
			p.session = nil
			s.emit(Perform{p.request})
		}
		return
	}
	f.attached = true
	if f.end {
		f.cursor = in.End
	}
	if p := s.performs; p != nil && p.session == f {
		s.emit(Perform{p.request})
	}
}

// performNext begins to perform the next request. The session of an agent_invoke is followed
// before, so that no message of its run is missed.
func (s *Socket) performNext() {
	if s.performs != nil || len(s.requests) == 0 || !s.ready {
		return
	}
	next := s.requests[0]
	s.requests, s.waiting = s.requests[1:], s.waiting-len(next.Body)
	s.performs = &performing{request: next}
	if next.Type == SocketInvoke && next.Session != "" && s.find(next.Session) == nil {
		if len(s.sessions) >= SocketSessionsMax {
			s.performs = nil
			s.fail(next.ID, "invalid_request", "this socket follows 64 sessions, which is the limit: open another one")
			return
		}
		f := s.follow(next.Session, nil, true)
		f.held = true
		s.performs.session = f
		return
	}
	s.emit(Perform{next})
}

func (s *Socket) performed(in *Performed) {
	p := s.performs
	if p == nil {
		return
	}
	s.performs = nil
	f := p.session
	if f != nil {
		f.held = false
	}
	if in.Code != "" {
		m := ChannelMessage{Type: ChannelError, Request: p.request.ID, Code: in.Code, Error: in.Detail}
		if in.RetryAfter > 0 {
			m.Detail = map[string]int64{"retry_after": in.RetryAfter}
		}
		if !p.request.Run.IsZero() {
			m.Run = p.request.Run.String()
		}
		s.send(&m)
		return
	}
	m := ChannelMessage{Type: ChannelState, State: StateAccepted, Request: p.request.ID, Session: in.Session}
	if !in.Run.IsZero() {
		m.Run = in.Run.String()
	}
	s.send(&m)
	if p.request.Type != SocketInvoke {
		return
	}
	switch {
	case f != nil && in.Repeated: // its messages may precede the end of the session
		f.cursor, f.channel = nil, NewChannel(f.name, false)
	case f == nil && s.find(in.Session) == nil && in.Session != "" && len(s.sessions) < SocketSessionsMax:
		s.follow(in.Session, nil, false) // a new one
	case f == nil && in.Repeated && !s.hasStarted(in.Session, in.Run): // the client may have missed it
		s.send(&ChannelMessage{Type: ChannelRunStarted, Request: p.request.ID, Run: in.Run.String(), Session: in.Session, Agent: in.Agent})
	}
}

// hasStarted reports whether this socket has sent the run_started of a run.
func (s *Socket) hasStarted(session string, run actor.CallID) bool {
	f := s.find(session)
	return f != nil && slices.Contains(f.started, run)
}

// askTool sends a request to the device.
func (s *Socket) askTool(in *ToolAsked) {
	m := ChannelMessage{Type: ChannelToolRequest, Run: in.Run.String(), Session: in.Session, ToolCall: in.Call, Tool: in.Tool,
		Args: argsOf(string(in.Args)), Deadline: millisecondsOf(in.Deadline)}
	if in.Child != in.Run {
		m.Child = in.Child.String()
	}
	if f := s.find(in.Session); f != nil && len(f.pending) == 0 {
		m.Cursor = f.cursor.String()
	}
	s.send(&m)
}

// readNext reads the next page of the session that waits longest, unless the queue is full.
func (s *Socket) readNext() {
	if s.reading != nil || s.queued >= SocketQueueBytesMax {
		return
	}
	if f := s.replay; f != nil && len(f.replay.held) > 0 {
		if all := f.replay.release(s.now); len(all) > 0 {
			s.reading = f
			s.show(all)
			s.mapPending()
			s.readNext()
			return
		}
	}
	for i, f := range s.sessions {
		if !f.attached || f.held || !f.news || f.replay != nil && len(f.replay.held) > 0 {
			continue
		}
		s.sessions = append(slices.Delete(slices.Clone(s.sessions), i, i+1), f)
		f.news, s.reading = false, f
		s.emit(ReadSession{f.name, f.cursor, socketPageEvents})
		return
	}
}

// page handles the answer to a ReadSession.
func (s *Socket) page(in *SessionPage) {
	f := s.reading
	if f == nil || f.name != in.Session {
		return
	}
	switch {
	case isUnavailable(in.Refusal):
		s.close(CloseTryLater, in.Refusal.Detail)
		return
	case in.Refusal != nil:
		s.reading = nil
		s.unfollow(f)
		s.send(&ChannelMessage{Type: ChannelError, Request: f.requestID(), Session: f.name, Code: sessionCode(in.Refusal), Error: in.Refusal.Detail, Replay: f.replay != nil})
		return
	case len(in.Dropped) > 0:
		s.reading = nil
		s.send(&ChannelMessage{Type: ChannelError, Session: f.name, Code: "events_dropped", Error: "messages of this session were dropped: those that are left follow, behind the cursor", Cursor: in.Dropped.String(), Replay: f.replay != nil})
		f.cursor, f.news, f.channel = in.Dropped, true, NewChannel(f.name, f.replay != nil)
		return
	}
	f.pending = in.All
	f.news = f.news || in.More
	s.mapPending()
}

// mapPending maps the events that were read. It stops at one whose run began before the
// cursor: the earlier events of that run are read first.
func (s *Socket) mapPending() {
	f := s.reading
	for len(f.pending) > 0 {
		item := f.pending[0]
		e, err := runs.Decode(item.Body)
		if err != nil {
			s.close(CloseBroken, "an event cannot be decoded")
			return
		}
		if from, to := f.channel.Missing(&e); from < to {
			s.emit(ReadRun{e.Run, from, to})
			return
		}
		f.pending = f.pending[1:]
		f.cursor = f.cursor.After(item.At)
		if mutant.On("event-sent-twice-after-resume") {
			item.At.Index--
			f.cursor = f.cursor.After(item.At)
		}
		if f.replay == nil {
			s.show(f.channel.Map(&e, f.cursor.String()))
			continue
		}
		s.show(f.replay.hold(f.channel.Map(&e, ""), s.now))
		if len(f.replay.held) > 0 {
			s.reading = nil
			return
		}
	}
	switch s.reading = nil; {
	case f.news:
	case f.replay != nil:
		s.endReplay(f)
	case !f.live:
		f.live = true
		s.send(&ChannelMessage{Type: ChannelState, Session: f.name, State: StateLive, Cursor: f.cursor.String()})
	}
}

// show queues messages of the session that is read.
func (s *Socket) show(all []ChannelMessage) {
	f := s.reading
	for i := range all {
		if m := &all[i]; m.Type == ChannelRunStarted {
			if run, err := actor.ParseCallID(m.Run); err == nil && f.replay == nil {
				f.started = append(f.started[max(0, len(f.started)-startedMax+1):], run)
			}
		}
		s.enqueue(&all[i])
	}
}

// requestID returns the request_id of a replay.
func (f *followed) requestID() string {
	if f.replay == nil {
		return ""
	}
	return f.replay.request.ID
}

// sessionCode returns the code of the refusal to read a session.
func sessionCode(r *actor.Refusal) string {
	if r.Reason == actor.NotFound {
		return "session_not_found"
	}
	return codeOf(r)
}

// isUnavailable reports whether a read may succeed later. The socket is closed then, because a
// client that reconnects misses nothing.
func isUnavailable(r *actor.Refusal) bool { return r != nil && r.Reason == actor.Unavailable }

// restore handles the answer to a ReadRun.
func (s *Socket) restore(in *RunPage) {
	f := s.reading
	if f == nil || len(f.pending) == 0 {
		return
	}
	if in.Refusal != nil {
		s.close(CloseTryLater, in.Refusal.Detail)
		return
	}
	next, err := runs.Decode(f.pending[0].Body)
	for _, body := range in.Bodies {
		e, failed := runs.Decode(body)
		if err == nil {
			err = failed
		}
		if err == nil && e.Seq < next.Seq {
			f.channel.Restore(&e)
		}
	}
	if err != nil {
		s.close(CloseBroken, "an event cannot be decoded")
		return
	}
	if len(in.Bodies) == 0 {
		f.channel.Skip(next.Run, in.Root, next.Seq-1)
	}
	s.mapPending()
}
