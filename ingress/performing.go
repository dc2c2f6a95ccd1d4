// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"slices"

	"github.com/troupe-run/troupe/actor"
)

// performing is the request that is being performed.
type performing struct {
	request SocketRequest
	session *followed // waits for the answer before it is read; or nil
}

// performNext begins to perform the next request. The session of an agent_invoke is followed
// before, so that no message of its run is missed.
func (s *Socket) performNext() {
	if s.performs != nil || len(s.requests) == 0 || !s.ready {
		return
	}
	next := s.requests[0]
	s.requests, s.waiting = s.requests[1:], s.waiting-next.Bytes
	s.performs = &performing{request: next}
	if next.Type == SocketInvoke && (next.Session == "" || s.find(next.Session) == nil) {
		if len(s.sessions) >= SocketSessionsMax {
			s.performs = nil
			s.fail(next.ID, "invalid_request", "this socket follows 64 sessions, which is the limit: open another one")
			s.performNext()
			return
		}
		if next.Session != "" {
			f := s.follow(next.Session, nil, true)
			f.held = true
			s.performs.session = f
			return
		}
	}
	s.emit(Perform{next})
}

// HeldBytes returns the bytes of the requests that wait or are performed.
func (s *Socket) HeldBytes() int {
	if s.performs == nil {
		return s.waiting
	}
	return s.waiting + s.performs.request.Bytes
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
		m := ChannelMessage{Type: ChannelError, Request: p.request.ID, Code: in.Code, Error: in.Detail, Detail: retryAfter(in.RetryAfter)}
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
		f.cursor, f.channel = nil, s.newChannel(f.name, false)
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
