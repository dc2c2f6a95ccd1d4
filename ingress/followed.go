// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// followed is a session that a socket follows.
type followed struct {
	name     string
	cursor   runs.SessionCursor
	channel  *Channel
	foreign  bool // the client has resumed behind a cursor that is not of this session
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

func (s *Socket) find(session string) *followed {
	i := slices.IndexFunc(s.sessions, func(f *followed) bool { return f.name == session && f.replay == nil })
	if i < 0 {
		return nil
	}
	return s.sessions[i]
}

// newChannel returns the channel of a session, as the client may see it.
func (s *Socket) newChannel(session string, replay bool) *Channel {
	c := NewChannel(session, replay)
	c.detached, c.customer = s.detached, s.chats
	return c
}

// follow begins to follow a session.
func (s *Socket) follow(session string, after runs.SessionCursor, end bool) *followed {
	f := &followed{name: session, cursor: after, end: end, channel: s.newChannel(session, false), news: true}
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
		s.send(&ChannelMessage{Type: ChannelError, Session: f.name, Code: sessionCode(in.Refusal), Error: in.Refusal.Detail})
		if p := s.performs; p != nil && p.session == f {
			p.session = nil
			s.emit(Perform{p.request})
		}
		return
	}
	f.attached = true
	if f.foreign {
		s.send(&ChannelMessage{Type: ChannelError, Session: f.name, Code: "events_dropped", Error: ForeignCursor + ": the session follows from its first message"})
	}
	if f.end {
		f.cursor = in.End
	}
	if p := s.performs; p != nil && p.session == f {
		s.emit(Perform{p.request})
	}
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
		if f.replay == nil {
			s.emit(Detach{f.name})
		}
		s.send(&ChannelMessage{Type: ChannelError, Request: f.requestID(), Session: f.name, Code: sessionCode(in.Refusal), Error: in.Refusal.Detail, Replay: f.replay != nil})
		return
	case len(in.Dropped) > 0:
		s.reading = nil
		s.send(&ChannelMessage{Type: ChannelError, Session: f.name, Code: "events_dropped", Error: "messages of this session are gone, because the log was cut or the store was restored: those that are left follow, behind this cursor", Cursor: s.cursors.Text(f.name, in.Dropped), Replay: f.replay != nil})
		f.cursor, f.news, f.channel = in.Dropped, true, s.newChannel(f.name, f.replay != nil)
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
		if item.Body == nil {
			f.pending, f.cursor = f.pending[1:], f.cursor.After(item.At)
			continue
		}
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
		if f.replay == nil {
			s.show(f.channel.Map(&e, s.cursors.Text(f.name, f.cursor)))
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
		s.send(&ChannelMessage{Type: ChannelState, Session: f.name, State: StateLive, Cursor: s.cursors.Text(f.name, f.cursor)})
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
		if s.chats {
			all[i].forCustomer()
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
	if r.Reason == actor.NotFound && r.What != actor.WhatDeleted {
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
