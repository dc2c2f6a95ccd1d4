// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// storedSession is a store with one session.
type storedSession struct {
	name  string
	all   []SessionItem
	owner map[actor.CallID]int // number of events of each run
}

func newStoredSession() *storedSession {
	return &storedSession{name: "s1", owner: map[actor.CallID]int{}}
}

// add appends an event, which has the next number of its run.
func (s *storedSession) add(e runs.Event) {
	s.owner[e.Run]++
	e.Seq = uint64(s.owner[e.Run])
	if e.At == 0 {
		e.At = actor.Time(len(s.all)+1) * actor.Time(time.Second)
	}
	batch := uint64(len(s.all)/3 + 1)
	s.all = append(s.all, SessionItem{runs.Position{Node: "n1", Batch: batch, Index: uint32(len(s.all)%3 + 1)}, runs.Encode(e)})
}

func (s *storedSession) after(cursor runs.SessionCursor, limit int) (page SessionPage) {
	page.Session = s.name
	from := cursor.At("n1")
	for _, item := range s.all {
		if item.At.Batch < from.Batch || item.At.Batch == from.Batch && item.At.Index <= from.Index {
			continue
		}
		if len(page.All) == limit {
			page.More = true
			break
		}
		page.All = append(page.All, item)
	}
	return page
}

// run returns the first two of the events that are asked for.
func (s *storedSession) run(r ReadRun) (page RunPage) {
	for _, item := range s.all {
		if len(page.Bodies) == 2 {
			break
		}
		if e, err := runs.Decode(item.Body); err == nil && e.Run == r.Run && e.Seq > r.After && e.Seq <= r.To {
			page.Bodies = append(page.Bodies, item.Body)
		}
	}
	return page
}

// socketPeer performs the operations of a socket at once, and collects what it sends.
type socketPeer struct {
	socket *Socket
	store  *storedSession
	now    actor.Time
	got    []string
	end    *Close
}

func (p *socketPeer) step(in SocketInput) {
	for inputs := []SocketInput{in}; len(inputs) > 0; inputs = inputs[1:] {
		for _, out := range p.socket.Step(p.now, inputs[0]) {
			switch out := out.(type) {
			case Admit:
				inputs = append(inputs, Admitted{User: "ann", Device: "phone"})
			case Attach:
				inputs = append(inputs, Attached{Session: out.Session})
			case ReadSession:
				inputs = append(inputs, p.store.after(out.After, out.Limit))
			case ReadRun:
				inputs = append(inputs, p.store.run(out))
			case Locate:
				inputs = append(inputs, Located{Session: p.store.name, Root: out.Run})
			case Send:
				for _, m := range out.Messages {
					p.got = append(p.got, string(m))
				}
				inputs = append(inputs, SocketSent{})
			case Close:
				p.end = &out
			}
		}
	}
}

func (p *socketPeer) text(format string, args ...any) {
	p.step(SocketText{fmt.Appendf(nil, format, args...)})
}

func newSocketPeer(s *storedSession, after string) *socketPeer {
	p := &socketPeer{socket: NewSocket(), store: s}
	p.step(SocketOpened{})
	p.text(`{"type":"hello","resume":{"session_id":"s1","after":%q}}`, after)
	return p
}

// channelFields are the members that these tests read.
type channelFields struct {
	Type, State, Text, Code, Cursor string
	Run                             string `json:"run_id"`
	Child                           string `json:"child_run_id"`
	RunState                        string `json:"run_state"`
	Request                         string `json:"request_id"`
	Replay                          bool
	TS                              int64
	Deadline                        int64  `json:"deadline_ts"`
	Tool                            string `json:"tool_name"`
	Args                            json.RawMessage
	Message                         any
	Usage                           struct{ Tokens int64 }
	Detail                          struct {
		Approval string `json:"approval_id"`
		Decision string
		Void     int `json:"void_deltas"`
	}
}

func decodeAll(t interface{ Fatalf(string, ...any) }, texts []string) (all []channelFields) {
	for _, text := range texts {
		var m channelFields
		if err := json.Unmarshal([]byte(text), &m); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		all = append(all, m)
	}
	return all
}

// ofSession returns the messages of the session, without those of the connection.
func ofSession(texts []string) []string {
	return slices.DeleteFunc(slices.Clone(texts), func(m string) bool {
		return strings.Contains(m, `"state":"READY"`) || strings.Contains(m, `"state":"LIVE"`)
	})
}

func testRun(n byte) actor.CallID { return actor.CallID{0: 1, 15: n} }

// drawSession draws a session of several runs, some below others, with pieces of answers that
// are void, approvals and waits.
func drawSession(t *rapid.T) *storedSession {
	s := newStoredSession()
	type open struct {
		id     actor.CallID
		root   actor.CallID
		deltas []uint64
		text   string
		step   uint32
	}
	var all []*open
	begin := func(root actor.CallID) *open {
		o := &open{id: testRun(byte(len(s.owner) + 1)), step: 1}
		if o.root = root; root.IsZero() {
			o.root = o.id
		}
		if o.root == o.id {
			s.add(runs.Event{Run: o.id, Type: runs.UserInput, Actor: actor.NewID("buyer", "s1"), Text: "hello", Principal: "ann"})
		}
		s.add(runs.Event{Run: o.id, Type: runs.RunStarted, Actor: actor.NewID("buyer", "s1"), Root: o.root, Kind: "waiting", Operation: "HandleMessage", Origin: "human"})
		all = append(all, o)
		return o
	}
	for range rapid.IntRange(1, 40).Draw(t, "events") {
		if len(all) == 0 || len(s.owner) < 20 && rapid.IntRange(0, 5).Draw(t, "new") == 0 {
			begin(actor.CallID{})
			continue
		}
		i := rapid.IntRange(0, len(all)-1).Draw(t, "run")
		o := all[i]
		isRoot := o.root == o.id
		switch rapid.IntRange(0, 7).Draw(t, "event") {
		case 0:
			if isRoot && len(s.owner) < 20 {
				child := testRun(byte(len(s.owner) + 1))
				s.add(runs.Event{Run: o.id, Step: o.step, Type: runs.AgentCalledChild, Actor: actor.NewID("helper", "s1"), Child: child})
				begin(o.id)
			}
		case 1:
			o.step++
			o.deltas, o.text = nil, ""
			s.add(runs.Event{Run: o.id, Type: runs.LLMCallStarted, Step: o.step, Name: "m"})
		case 2, 3:
			if isRoot {
				piece := fmt.Sprintf("piece %d. ", len(s.all))
				s.add(runs.Event{Run: o.id, Step: o.step, Type: runs.AgentStreamDelta, Text: piece})
				o.deltas, o.text = append(o.deltas, uint64(s.owner[o.id])), o.text+piece
			}
		case 4:
			id := runs.ToolCallID{Run: o.id, Step: o.step}
			approval := "ap_" + strings.TrimPrefix(id.String(), "tc_")
			s.add(runs.Event{Run: o.id, Type: runs.ApprovalRequired, Name: "pay", Text: "pays", Approval: approval, Until: 7})
			if rapid.Bool().Draw(t, "decided") {
				s.add(runs.Event{Run: o.id, Type: runs.ApprovalDecision, Step: o.step, Name: "pay", Kind: "approve", Principal: "ann", Approval: approval})
			}
		case 5:
			s.add(runs.Event{Run: o.id, Type: runs.WaitOpened, Step: o.step, Name: "news", Until: 7})
		default:
			e := runs.Event{Run: o.id, Type: runs.RunDone, Status: actor.Succeeded, Text: o.text + "end"}
			if rapid.Bool().Draw(t, "failed") {
				e = runs.Event{Run: o.id, Type: runs.RunFailed, Refusal: actor.Refuse(actor.Rejected, "no")}
			}
			s.add(e)
			all = slices.Delete(all, i, i+1)
		}
	}
	return s
}

// A client that resumes behind any cursor reads what an undisturbed client reads behind it.
func TestSocketResumesBehindEachCursor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSession(t)
		whole := newSocketPeer(s, "")
		want := ofSession(whole.got)
		for i, m := range decodeAll(t, want) {
			if m.Cursor == "" {
				continue
			}
			again := ofSession(newSocketPeer(s, m.Cursor).got)
			if !slices.Equal(again, want[i+1:]) {
				t.Fatalf("behind message %d, %s:\n%s\nwant\n%s", i, want[i], strings.Join(again, "\n"), strings.Join(want[i+1:], "\n"))
			}
		}
	})
}

// A client that is connected while events are added reads the same messages as one that comes
// later.
func TestSocketIsSentNewsInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSession(t)
		later := newSocketPeer(s, "")
		all := s.all
		s.all = nil
		live := newSocketPeer(s, "")
		for _, item := range all {
			s.all = append(s.all, item)
			if rapid.Bool().Draw(t, "notified") {
				live.step(SessionNews{"s1"})
			}
		}
		live.step(SessionNews{"s1"})
		if got, want := ofSession(live.got), ofSession(later.got); !slices.Equal(got, want) {
			t.Fatalf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

// A replay sends the messages of a session again, marked and without cursors. A replay of a run
// sends those of the run.
func TestReplaySendsTheSameMessages(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSession(t)
		p := newSocketPeer(s, "")
		live := ofSession(p.got)
		run := decodeAll(t, live)
		p.got = nil
		want, request := live, `{"type":"replay","request_id":"p","session_id":"s1"}`
		if len(run) > 0 && rapid.Bool().Draw(t, "of a run") {
			id := run[rapid.IntRange(0, len(run)-1).Draw(t, "run")].Run
			request = fmt.Sprintf(`{"type":"replay","request_id":"p","run_id":%q,"ts":0}`, id)
			want = slices.DeleteFunc(slices.Clone(live), func(m string) bool { return !strings.Contains(m, `"run_id":"`+id+`"`) })
		}
		p.text("%s", request)
		got := p.got
		if len(got) == 0 || decodeAll(t, got[len(got)-1:])[0].State != StateReplayed || decodeAll(t, got[len(got)-1:])[0].Request != "p" {
			t.Fatalf("the replay does not end: %s", strings.Join(got, "\n"))
		}
		if got = got[:len(got)-1]; len(got) != len(want) {
			t.Fatalf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		for i := range got {
			if g, w := withoutReplay(t, got[i]), withoutReplay(t, want[i]); g != w || !strings.Contains(got[i], `"replay":true`) || strings.Contains(got[i], `"cursor"`) {
				t.Fatalf("got %s, want %s", got[i], want[i])
			}
		}
		p.got = nil
		if p.step(SessionNews{"s1"}); len(ofSession(p.got)) > 0 {
			t.Fatalf("after the replay: %v", p.got)
		}
	})
}

func withoutReplay(t *rapid.T, m string) string {
	var members map[string]any
	if err := json.Unmarshal([]byte(m), &members); err != nil {
		t.Fatal(err)
	}
	delete(members, "replay")
	delete(members, "cursor")
	b, _ := json.Marshal(members)
	return string(b)
}

// A replay keeps the delays of the original, divided by the speed, and at most five seconds each.
func TestReplayKeepsDelays(t *testing.T) {
	s, run := newStoredSession(), testRun(1)
	for _, e := range []struct {
		at time.Duration
		runs.Event
	}{
		{0, runs.Event{Type: runs.UserInput, Actor: actor.NewID("buyer", "s1"), Text: "hello"}},
		{2 * time.Second, runs.Event{Type: runs.AgentStreamDelta, Step: 1, Text: "a"}},
		{time.Hour, runs.Event{Type: runs.AgentStreamDelta, Step: 1, Text: "b"}},
		{time.Hour + time.Second, runs.Event{Type: runs.RunDone, Status: actor.Succeeded, Text: "ab"}},
	} {
		e.Event.Run, e.Event.At = run, actor.Time(time.Minute).Add(e.at)
		s.add(e.Event)
	}
	p := newSocketPeer(s, "")
	p.got = nil
	p.text(`{"type":"replay","run_id":%q,"speed":2}`, run)
	var sentAt []time.Duration
	for len(p.got) < 5 && p.now < actor.Time(time.Minute) {
		for range len(p.got) - len(sentAt) {
			sentAt = append(sentAt, time.Duration(p.now))
		}
		p.now = p.socket.NextDeadline()
		p.step(SocketHeard{})
	}
	sentAt = append(sentAt, time.Duration(p.now), time.Duration(p.now))
	if want := []time.Duration{0, time.Second, 6 * time.Second, 6500 * time.Millisecond, 6500 * time.Millisecond}; !slices.Equal(sentAt, want) {
		t.Errorf("sent at %v, want %v: %s", sentAt, want, strings.Join(p.got, "\n"))
	}
}

func TestReplayRefusals(t *testing.T) {
	for request, want := range map[string]string{
		`{"type":"replay"}`: "run_id or session_id",
		`{"type":"replay","session_id":"s1","speed":-1}`:                           "speed",
		`{"type":"replay","session_id":"s1","speed":"fast"}`:                       "speed",
		`{"type":"replay","session_id":"s1","pace":1}`:                             "pace",
		`{"type":"replay","run_id":"x"}`:                                           "run_id",
		fmt.Sprintf(`{"type":"replay","session_id":"s2","run_id":%q}`, testRun(1)): "belongs to session s1",
	} {
		p := newSocketPeer(newStoredSession(), "")
		p.got = nil
		p.text("%s", request)
		if all := decodeAll(t, p.got); len(all) != 1 || all[0].Code != "invalid_request" || !strings.Contains(fmt.Sprint(all[0].Message), want) || p.end != nil {
			t.Errorf("%s: %v %v, want an error about %s", request, p.got, p.end, want)
		}
	}
}

// A client that does not read holds a bounded number of bytes: its requests wait, and its socket is
// closed once too many answers do.
func TestSocketBoundsClientsThatDoNotRead(t *testing.T) {
	opened := func() *Socket {
		s := NewSocket()
		s.Step(0, SocketOpened{})
		s.Step(0, SocketText{[]byte(`{"type":"hello"}`)})
		s.Step(0, Admitted{User: "ann"}) // its Send is never answered
		return s
	}
	s, body := opened(), fmt.Appendf(nil, `{"type":"agent_invoke","session_id":"s1","agent_id":"a","message":{"role":"user","content":%q}}`, strings.Repeat("x", SocketMessageBytesMax/2))
	for n := 0; s.answers == 0; n++ {
		if n > SocketWaitingBytesMax/len(body)+2 {
			t.Fatalf("%d requests of %d bytes wait", n, len(body))
		}
		s.Step(0, SocketText{body})
	}
	if last := string(s.queue[len(s.queue)-1]); !strings.Contains(last, "agent_busy") {
		t.Errorf("got %s", last)
	}
	s = opened()
	for n := 0; ; n++ {
		outputs := s.Step(0, SocketText{[]byte(`{"type":"x"}`)})
		if len(outputs) > 0 {
			if c, ok := outputs[0].(Close); !ok || c.Code != CloseTryLater {
				t.Errorf("got %+v", outputs)
			}
			return
		}
		if n > SocketQueueBytesMax {
			t.Fatalf("%d answers of %d bytes wait", len(s.queue), s.queued)
		}
	}
}

// greetedSocket returns a socket whose client was admitted, and has read everything.
func greetedSocket() *Socket {
	s := NewSocket()
	for _, in := range []SocketInput{SocketOpened{}, SocketText{[]byte(`{"type":"hello"}`)}, Admitted{User: "ann"}, SocketSent{}} {
		s.Step(0, in)
	}
	return s
}

func TestSocketRefusesMoreSessions(t *testing.T) {
	s := greetedSocket()
	for n := range SocketSessionsMax {
		s.follow(fmt.Sprintf("s%d", n), nil, false)
	}
	for _, session := range []string{"", "another"} {
		outputs := s.Step(0, SocketText{fmt.Appendf(nil, `{"type":"agent_invoke","session_id":%q,"agent_id":"a","message":{"role":"user","content":"x"}}`, session)})
		send, ok := outputs[0].(Send)
		if !ok || !strings.Contains(string(send.Messages[0]), "which is the limit") {
			t.Errorf("in session %q: %+v", session, outputs)
		}
		s.Step(0, SocketSent{})
	}
}

// Arguments of tools are as large as messages of clients may be, and wait for a place in the queue.
func TestSocketAsksForLargeTools(t *testing.T) {
	s, args := greetedSocket(), fmt.Appendf(nil, "%q", strings.Repeat("x", SocketQueueBytesMax))
	var sent int
	for n := range 4 {
		for _, out := range s.Step(0, ToolAsked{Call: fmt.Sprint(n), Args: args}) {
			if _, closed := out.(Close); closed {
				t.Fatalf("%+v", out)
			}
			if send, ok := out.(Send); ok {
				sent += len(send.Messages)
			}
		}
	}
	if sent != 1 || len(s.queue) != 1 || len(s.tools) != 2 {
		t.Errorf("%d sent, %d in the queue, %d wait", sent, len(s.queue), len(s.tools))
	}
	for range 3 {
		for _, out := range s.Step(0, SocketSent{}) {
			sent += len(out.(Send).Messages)
		}
	}
	if sent != 4 {
		t.Errorf("%d were sent", sent)
	}
}

func TestSocketClosesWithCodes(t *testing.T) {
	closed := func(s *Socket, now actor.Time, inputs ...SocketInput) (c Close) {
		for _, in := range inputs {
			for _, out := range s.Step(now, in) {
				c, _ = out.(Close)
			}
		}
		return c
	}
	hello := []SocketInput{SocketOpened{}, SocketText{[]byte(`{"type":"hello"}`)}}
	long := strings.Repeat("é", closeReasonMax)
	for _, c := range []struct {
		in   Admitted
		want Close
	}{
		{Admitted{Code: "unauthorized", Detail: "no"}, Close{ClosePolicy, "no"}},
		{Admitted{Code: "agent_busy", Detail: "later", Later: true}, Close{CloseTryLater, "later"}},
		{Admitted{Code: "unauthorized", Detail: long}, Close{ClosePolicy, long[:closeReasonMax-1]}},
	} {
		if got := closed(NewSocket(), 0, append(hello, c.in)...); got != c.want {
			t.Errorf("%+v: %+v", c.in, got)
		}
	}
	// Time in which a client takes messages is no silence; time after it is.
	s, start := NewSocket(), actor.Time(time.Second)
	closed(s, start, append(hello, Admitted{User: "ann"})...)
	s.sendBy = start.Add(time.Hour)
	s.Step(start.Add(SocketSilence-1), Tick{})
	s.sendBy = start.Add(WriteTimeout)
	if c := closed(s, start.Add(SocketSilence), SocketSent{}); c != (Close{}) {
		t.Errorf("a client that took a minute to read: %+v", c)
	}
	if c := closed(s, start.Add(3*SocketSilence), Tick{}); c.Code != CloseGoingAway {
		t.Errorf("a silent client: %+v", c)
	}
}

func TestSocketDetachesFromRefusedSession(t *testing.T) {
	s := greetedSocket()
	s.follow("s1", nil, false)
	s.Step(0, Attached{Session: "s1"})
	outputs := s.Step(0, SessionPage{Session: "s1", Refusal: actor.Refuse(actor.NotFound, "deleted")})
	if !slices.Contains(outputs, SocketOutput(Detach{"s1"})) {
		t.Errorf("%+v", outputs)
	}
}
