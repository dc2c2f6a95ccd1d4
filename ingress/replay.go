// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// replayGapMax is the maximum delay between two messages of a replay, for example where a run
// has waited for a person.
const replayGapMax = 5 * time.Second

// replay sends the messages of a session again, or those of one root run and of the runs below
// it. It reads events that are stored and has no other effect. Its messages have no cursor: they
// do not change where the client resumes.
type replay struct {
	request Replay
	held    []ChannelMessage // mapped, and sent at the time next
	next    actor.Time
	last    actor.Time // time of the last event with messages
}

// startReplay begins a replay that a client asks for. A socket has at most one.
func (s *Socket) startReplay(id string, body []byte) {
	request, r := DecodeReplay(body)
	switch {
	case r != nil:
		s.fail(id, "invalid_request", r.Detail)
	case s.replay != nil || s.locating != nil:
		s.fail(id, "invalid_request", "a replay is running on this socket: wait for the state REPLAYED, or open another socket")
	case !request.Run.IsZero():
		s.locating = &request
		s.emit(Locate{request.Run})
	default:
		s.beginReplay(request)
	}
}

// located handles the answer to a Locate.
func (s *Socket) located(in *Located) {
	request := s.locating
	s.locating = nil
	switch {
	case request == nil:
	case in.Code != "":
		s.fail(request.ID, in.Code, in.Detail)
	case request.Session != "" && request.Session != in.Session:
		s.fail(request.ID, "invalid_request", "session_id: the run belongs to session "+in.Session)
	case in.Session == "":
		s.fail(request.ID, "invalid_request", "run_id: the run belongs to no session: read GET /v1/runs/"+request.Run.String()+"/events")
	default:
		request.Session, request.Run = in.Session, in.Root
		s.beginReplay(*request)
	}
}

func (s *Socket) beginReplay(request Replay) {
	s.replay = &followed{name: request.Session, channel: s.newChannel(request.Session, true), attached: true, news: true, replay: &replay{request: request}}
	s.sessions = append(s.sessions, s.replay)
}

// hold returns the messages of an event that are to be sent now. It keeps those that are to be
// sent later.
func (r *replay) hold(all []ChannelMessage, now actor.Time) []ChannelMessage {
	if run := r.request.Run; !run.IsZero() {
		id := run.String()
		all = slices.DeleteFunc(all, func(m ChannelMessage) bool { return m.Run != id })
	}
	if len(all) == 0 || r.request.Speed == 0 {
		return all
	}
	at := actor.Time(all[0].TS * int64(time.Millisecond))
	if r.last == 0 {
		r.last, r.next = at, now
	}
	gap := min(time.Duration(float64(max(at.Sub(r.last), 0))/r.request.Speed), replayGapMax)
	if r.last, r.next = max(at, r.last), r.next.Add(gap); now >= r.next {
		return all
	}
	r.held = all
	return nil
}

// release returns the messages that were kept, once they are to be sent.
func (r *replay) release(now actor.Time) (all []ChannelMessage) {
	if now >= r.next {
		all, r.held = r.held, nil
	}
	return all
}

// endReplay ends a replay whose messages were sent.
func (s *Socket) endReplay(f *followed) {
	m := ChannelMessage{Type: ChannelState, State: StateReplayed, Request: f.replay.request.ID, Session: f.name, Replay: true}
	if run := f.replay.request.Run; !run.IsZero() {
		m.Run = run.String()
	}
	s.unfollow(f)
	s.send(&m)
}
