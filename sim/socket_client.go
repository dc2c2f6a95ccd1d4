// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/runs"
)

// sockets is the part of a simulation with clients of the channel protocol.
type sockets struct {
	w    *Simulation
	all  []*socketClient
	open []*socketConn
}

// socketClient is a client of a user that follows a session over the channel protocol. After
// each lost connection it resumes behind the cursor of the last message that it has read.
type socketClient struct {
	w            *Simulation
	no           int
	choiceStream StreamID
	to           actor.ID // of the message that made the client follow the session
	conn         *socketConn
	cursor       string
	messages     []string       // up to the cursor
	unconfirmed  []shownMessage // after the cursor: the server sends them again after a lost connection
	shown        map[string]*shownRun
	live         bool
}

// shownMessage is a message as its readers see it.
type shownMessage struct {
	text    string // as received
	Type    string `json:"type"`
	Run     string `json:"run_id"`
	Child   string `json:"child_run_id"`
	Session string `json:"session_id"`
	Text    string `json:"text"`
	State   string `json:"state"`
	Cursor  string `json:"cursor"`
	Code    string `json:"code"`
	Message any    `json:"message"`
	Detail  struct {
		Void int `json:"void_deltas"`
	} `json:"detail"`
}

// shownRun is a root run as a client sees it.
type shownRun struct {
	deltas []string
	ended  bool
}

// socketConn connects a production socket to its client.
type socketConn struct {
	client   *socketClient
	node     *node
	socket   *ingress.Socket
	attached bool
	news     bool // a notification is in flight
	timerAt  actor.Time
	slow     bool
	readDue  actor.Time
	closed   bool
}

// socketClientsMax is the maximum number of clients of a simulation.
const socketClientsMax = 6

// maybeFollow sometimes starts a client that follows the session of another client's call. It
// connects after a delay, possibly after the run has ended. Positions in a session are ordered
// within a node, so the simulation has one.
func (s *sockets) maybeFollow(c *client) {
	w := s.w
	if _, ok := c.to.Session(); !ok || w.manual || len(w.nodes) != 1 || w.plan.Plain || w.plan.Retention || len(s.all) >= socketClientsMax || w.isVolatile(c.to.Agent) || actor.IsSystemAgent(c.to.Agent) {
		return
	}
	defer w.setStream(w.setStream(topicSocket + c.stream&ownerMask))
	if w.entropy.Int(3) != 0 {
		return
	}
	k := &socketClient{w: w, no: len(s.all), choiceStream: w.queue.stream, to: c.to, shown: map[string]*shownRun{}}
	s.all = append(s.all, k)
	w.after(w.between(0, 2*time.Second), k.connect)
}

// connect opens a connection that resumes behind the cursor.
func (k *socketClient) connect() {
	w := k.w
	n := w.drawNode()
	if n == nil {
		w.after(time.Second, k.connect)
		return
	}
	k.unconfirmed, k.live = nil, false
	c := &socketConn{client: k, node: n, socket: ingress.NewSocket()}
	k.conn = c
	w.sockets.open = append(w.sockets.open, c)
	w.log.note(w.now, "socket client %d follows session %s at %s after %q", k.no, k.to.Key, n.id, k.cursor)
	c.step(ingress.SocketOpened{Known: w.entropy.Int(2) == 1})
	hello := fmt.Sprintf(`{"type":"hello","ts":0,"resume":{"session_id":%q,"after":%q}}`, k.to.Key, k.cursor)
	c.after(w.between(0, 10*time.Millisecond), func() { c.step(ingress.SocketText{Body: []byte(hello)}) })
}

// reconnect makes the client connect again after a delay.
func (k *socketClient) reconnect(after time.Duration) {
	k.conn = nil
	k.w.after(after, k.connect)
}

// step passes one input to the socket and performs the resulting operations.
func (c *socketConn) step(in ingress.SocketInput) {
	w, n := c.client.w, c.node
	for _, out := range c.socket.Step(w.now, in) {
		if c.closed {
			return
		}
		c.perform(out)
	}
	if due := c.socket.NextDeadline(); !c.closed && (c.timerAt == 0 || c.timerAt > due) {
		c.timerAt = due
		n.after(due.Sub(w.now), func() {
			if !c.closed && c.timerAt == due {
				c.timerAt = 0
				c.step(ingress.Tick{})
			}
		})
	}
}

// perform performs one operation of the socket.
func (c *socketConn) perform(out ingress.SocketOutput) {
	w := c.client.w
	latency := func() time.Duration { return w.between(20*time.Microsecond, 2*time.Millisecond) }
	switch out := out.(type) {
	case ingress.Admit:
		c.after(latency(), func() { c.step(ingress.Admitted{User: c.client.to.Tenant, Device: "device"}) })
	case ingress.Attach:
		c.after(latency(), func() { c.attach(out) })
	case ingress.ReadSession:
		c.after(latency(), func() { c.readSession(out) })
	case ingress.ReadRun:
		c.after(latency(), func() { c.readRun(out) })
	case ingress.Send:
		c.send(out.Messages)
	case ingress.SendPing:
		c.after(latency(), func() { c.step(ingress.SocketHeard{}) })
	case ingress.Close:
		w.log.note(w.now, "the socket of client %d is closed with %d: %s", c.client.no, out.Code, out.Reason)
		c.countSlow("is disconnected as too slow")
		late := strings.HasPrefix(out.Reason, "no hello") // the node was paused
		if out.Code != ingress.CloseTryLater && out.Code != ingress.CloseGoingAway && !late {
			c.client.fail("is closed with %d: %s", out.Code, out.Reason)
		}
		c.detach()
		c.client.reconnect(w.between(time.Millisecond, 2*time.Second))
	}
}

// after calls the function do once the delay d is over, if the connection is still open.
func (c *socketConn) after(d time.Duration, do func()) {
	c.node.after(d, func() {
		if !c.closed {
			do()
		}
	})
}

// whenReadable calls do, once the store is reachable.
func (c *socketConn) whenReadable(do func()) {
	if w := c.client.w; w.storeRefuses(c.node) || w.isCorrupt() {
		c.after(storeRetryInterval, func() { c.whenReadable(do) })
		return
	}
	do()
}

func (c *socketConn) attach(out ingress.Attach) {
	c.attached = true
	c.whenReadable(func() {
		in := ingress.Attached{Session: out.Session}
		if out.End {
			end, err := c.client.w.store.SessionEnd(c.client.to.Tenant, out.Session)
			c.client.check(err)
			in.End = end
		}
		c.step(in)
	})
}

// readSession reads stored events. Sometimes the read fails.
func (c *socketConn) readSession(r ingress.ReadSession) {
	w := c.client.w
	c.whenReadable(func() {
		if w.faultFires(DiskReadFailed) {
			before := c.closed
			if w.acts(DiskReadFailed) {
				c.step(ingress.SessionPage{Session: r.Session, Refusal: actor.Refuse(actor.Unavailable, "the messages of the session cannot be read now")})
			}
			if recordChange(w, DiskReadFailed, before, c.closed, "%s cannot read the events of session %s", c.node.id, r.Session) {
				return
			}
		}
		all, err := w.store.SessionEvents(c.client.to.Tenant, r.Session, r.After, r.Limit)
		c.client.check(err)
		in := ingress.SessionPage{Session: r.Session, More: len(all) == r.Limit}
		for i := range all {
			in.All = append(in.All, ingress.SessionItem{At: all[i].At, Body: all[i].Body})
		}
		c.step(in)
	})
}

func (c *socketConn) readRun(r ingress.ReadRun) {
	c.whenReadable(func() { c.step(c.client.runPage(r)) })
}

const runPageEvents = 4

// runPage reads the first events of a run that were asked for.
func (k *socketClient) runPage(r ingress.ReadRun) (in ingress.RunPage) {
	stored, err := k.w.store.Events(k.to.Tenant, r.Run, r.After, int(min(r.To-r.After, runPageEvents)))
	k.check(err)
	for i := range stored {
		in.Bodies = append(in.Bodies, stored[i].Body)
	}
	return in
}

func (k *socketClient) check(err error) {
	if err != nil {
		k.w.fail(StoreReads, err.Error())
	}
}

// send delivers messages to the client, which reads them late, in part, or not at all. A
// connection that is cut within a message loses it.
func (c *socketConn) send(messages [][]byte) {
	w := c.client.w
	wait := w.between(50*time.Microsecond, 5*time.Millisecond)
	c.readDue = w.now.Add(wait)
	if w.faultFires(ClientSlowReader) {
		c.slow = true
		wait += w.extraDelay(ClientSlowReader, w.between(9*time.Second, 20*time.Second))
	}
	disconnect := w.faultFires(ClientDisconnect)
	c.after(wait, func() {
		c.countSlow("reads late")
		read := len(messages)
		if disconnect {
			read = w.entropy.Int(len(messages) + 1)
		}
		acts := disconnect && w.acts(ClientDisconnect)
		if !acts {
			read = len(messages)
		}
		for _, m := range messages[:read] {
			if c.client.receive(m); c.closed || w.violation != nil {
				return
			}
		}
		if acts {
			c.close()
		}
		if disconnect {
			recordChange(w, ClientDisconnect, false, c.closed, "socket client %d disconnects", c.client.no)
		}
		if !c.closed {
			c.step(ingress.SocketSent{})
		}
	})
}

// countSlow counts a slow client when it reads later than without the fault, or is disconnected.
func (c *socketConn) countSlow(how string) {
	if c.slow {
		c.slow = false
		recordChange(c.client.w, ClientSlowReader, c.readDue, c.client.w.now, "socket client %d %s", c.client.no, how)
	}
}

// close closes the connection from the client's side.
func (c *socketConn) close() {
	if !c.closed {
		c.detach()
		c.client.reconnect(c.client.w.between(time.Millisecond, 2*time.Second))
	}
}

func (c *socketConn) detach() {
	c.closed = true
	s := &c.client.w.sockets
	s.open = slices.DeleteFunc(s.open, func(o *socketConn) bool { return o == c })
}

// notify notifies the clients that follow the session of a run. It is called when the run has a
// new event.
func (s *sockets) notify(run actor.CallID) {
	if len(s.open) == 0 {
		return
	}
	at := s.w.eventJudge.admitted[run].Actor
	for _, c := range s.open {
		if c.attached && !c.news && at.Tenant == c.client.to.Tenant && at.Key == c.client.to.Key {
			c.news = true
			before := s.w.restoreStream(c.client.choiceStream)
			c.after(s.w.between(10*time.Microsecond, 3*time.Millisecond), func() {
				c.news = false
				c.step(ingress.SessionNews{Session: c.client.to.Key})
			})
			s.w.restoreStream(before)
		}
	}
}

// drop ends the connections of a node that has crashed.
func (s *sockets) drop(n *node) {
	for _, c := range slices.Clone(s.open) {
		if c.node == n {
			c.close()
		}
	}
}

// drain ends the connections of a node that stops.
func (s *sockets) drain(n *node) {
	for _, c := range slices.Clone(s.open) {
		if c.node == n {
			c.step(ingress.Draining{})
		}
	}
}

func (k *socketClient) fail(format string, args ...any) {
	k.w.fail(ClientSeesAll, fmt.Sprintf("socket client %d of session %s ", k.no, k.to.Key)+fmt.Sprintf(format, args...))
}

// receive records a message.
func (k *socketClient) receive(body []byte) {
	m := shownMessage{text: string(body)}
	if err := json.Unmarshal(body, &m); err != nil {
		k.fail("receives an invalid message: %v: %.200q", err, body)
		return
	}
	namespaces{k.w}.checkApart(k.to.Tenant, fmt.Sprintf("socket client %d", k.no), m.text)
	switch {
	case m.Type == ingress.ChannelState && m.State == ingress.StateReady:
		return
	case m.Type == ingress.ChannelState && m.State == ingress.StateLive:
		k.live = true
	case m.Type == ingress.ChannelError && m.Run == "": // a failed read; the client connects again
		return
	case m.Session != k.to.Key:
		k.fail("receives a message of session %q: %.200q", m.Session, body)
	default:
		k.unconfirmed = append(k.unconfirmed, m)
	}
	if m.Cursor == "" {
		return
	}
	k.cursor = m.Cursor
	for i := range k.unconfirmed {
		k.apply(&k.unconfirmed[i])
	}
	k.unconfirmed = nil
}

// apply checks a message of a run against the earlier ones. Each run is begun once and ended
// once, and nothing of it follows its end.
func (k *socketClient) apply(m *shownMessage) {
	k.messages = append(k.messages, m.text)
	r := k.shown[m.Run]
	switch {
	case m.Type == ingress.ChannelRunStarted && r != nil:
		k.fail("reads the begin of run %s twice", m.Run)
	case m.Type == ingress.ChannelRunStarted:
		k.shown[m.Run] = &shownRun{}
	case r == nil:
		k.fail("receives a message of run %s before its begin: %.200q", m.Run, m.text)
	case r.ended:
		k.fail("receives a message of run %s after its end: %.200q", m.Run, m.text)
	case m.Type == ingress.ChannelDelta:
		r.deltas = append(r.deltas, m.Text)
	case m.Type == ingress.ChannelState && m.State == ingress.StateRetrying:
		if m.Detail.Void > len(r.deltas) {
			k.fail("reads that %d of %d deltas of run %s are void", m.Detail.Void, len(r.deltas), m.Run)
			return
		}
		r.deltas = r.deltas[:len(r.deltas)-m.Detail.Void]
	case m.Type == ingress.ChannelDone || m.Type == ingress.ChannelError:
		r.ended = true
		k.checkEnd(m, r)
	}
}

// checkEnd compares the end of a run with its last event.
func (k *socketClient) checkEnd(m *shownMessage, r *shownRun) {
	run, err := actor.ParseCallID(m.Run)
	events := k.w.eventJudge.streams[run]
	if err != nil || len(events) == 0 {
		k.fail("reads the end of run %q, which has no events", m.Run)
		return
	}
	last := events[len(events)-1]
	want := ingress.ChannelError
	if last.Type == runs.RunDone.String() {
		want = ingress.ChannelDone
	}
	text := strings.Join(r.deltas, "")
	if m.Type != want || want == ingress.ChannelDone && !last.Payload.Truncated && !strings.HasSuffix(strings.TrimSpace(text), strings.TrimSpace(last.Payload.Text)) {
		k.fail("reads the end of run %s by %.200q after the text %.200q, but its last event is %s with the text %.200q", run, m.text, text, last.Type, last.Payload.Text)
	}
}

// pending describes a client that has not yet seen the end of each root run of its session, or
// returns "".
func (s *sockets) pending() string {
	for _, k := range s.all {
		for _, run := range k.roots() {
			if r := k.shown[run.String()]; r == nil || !r.ended {
				return fmt.Sprintf("socket client %d has not seen the end of run %s", k.no, run)
			}
		}
	}
	return ""
}

// roots returns the ended root runs of the session, in the order of their IDs.
func (k *socketClient) roots() (all []actor.CallID) {
	j := k.w.eventJudge
	for _, run := range slices.SortedFunc(maps.Keys(j.streams), actor.CallID.Compare) {
		at, events := j.admitted[run].Actor, j.streams[run]
		last := events[len(events)-1]
		if at.Tenant != k.to.Tenant || at.Key != k.to.Key || actor.IsSystemAgent(at.Agent) || k.w.isVolatile(at.Agent) || !strings.HasPrefix(last.Type, "run_") {
			continue
		}
		if last.Type != runs.RunDone.String() && last.Type != runs.RunFailed.String() && last.Type != runs.RunCancelled.String() {
			continue
		}
		if events[0].Type != runs.UserInput.String() {
			continue
		}
		if _, stored, err := k.w.store.Run(at.Tenant, run); err == nil && stored { // or the batch with its events was lost
			all = append(all, run)
		}
	}
	return all
}

// audit compares the messages that each client has read over all its connections with those
// that one connection without faults is sent.
func (s *sockets) audit() {
	for _, k := range s.all {
		if s.w.violation != nil || s.w.isCorrupt() {
			return
		}
		fresh := &socketClient{w: s.w, no: k.no, to: k.to, shown: map[string]*shownRun{}}
		fresh.readAll()
		for i := range max(len(fresh.messages), len(k.messages)) {
			got, want := "nothing", "nothing"
			if i < len(k.messages) {
				got = k.messages[i]
			}
			if i < len(fresh.messages) {
				want = fresh.messages[i]
			}
			if got != want {
				k.fail("has read as message %d of %d\n%s\nbut another client reads\n%s", i, len(k.messages), got, want)
				return
			}
		}
		if len(k.messages) > 0 {
			s.w.Stats.Audit.ClientSeesAll++
			s.w.Stats.Points[SessionFollowed]++
		}
	}
}

// readAll reads all messages of the session, at once.
func (k *socketClient) readAll() {
	w, socket := k.w, ingress.NewSocket()
	inputs := []ingress.SocketInput{ingress.SocketOpened{}, ingress.SocketText{Body: fmt.Appendf(nil, `{"type":"hello","resume":{"session_id":%q}}`, k.to.Key)}}
	for len(inputs) > 0 && !k.live && w.violation == nil {
		in := inputs[0]
		inputs = inputs[1:]
		for _, out := range socket.Step(w.now, in) {
			switch out := out.(type) {
			case ingress.Admit:
				inputs = append(inputs, ingress.Admitted{})
			case ingress.Attach:
				inputs = append(inputs, ingress.Attached{Session: out.Session})
			case ingress.ReadSession:
				all, err := w.store.SessionEvents(k.to.Tenant, out.Session, out.After, out.Limit)
				k.check(err)
				page := ingress.SessionPage{Session: out.Session, More: len(all) == out.Limit}
				for i := range all {
					page.All = append(page.All, ingress.SessionItem{At: all[i].At, Body: all[i].Body})
				}
				inputs = append(inputs, page)
			case ingress.ReadRun:
				inputs = append(inputs, k.runPage(out))
			case ingress.Send:
				for _, m := range out.Messages {
					k.receive(m)
				}
				inputs = append(inputs, ingress.SocketSent{})
			case ingress.Close:
				k.fail("is closed with %d: %s", out.Code, out.Reason)
			}
		}
	}
}
