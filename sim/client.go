// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/specs/linear"
	"github.com/troupe-run/troupe/store"
)

// client is somebody outside who asks one thing of an actor, through a node of
// their choice, and asks again if that node goes away and they have a key.
type client struct {
	no     int
	stream StreamID // of its choices: that of whoever had it come
	to     actor.ID
	text   string
	lane   actor.Lane
	left   actor.Duration
	key    string       // Idempotency-Key, if any
	call   actor.CallID // of the last try
	tries  int
	burst  bool
	run    actor.CallID // that succeeded, under the key
	said   uint32       // a digest of what it said
	reply  *actor.Reply // the last
	held   bool
	told   func(*actor.Reply) // of one who calls back: gets the answer, or nil if none comes
	leaves *linear.Op         // the value that it leaves, until it is told which was there before
	order  *order             // for the registry; nil: a message
	pass   *pass              // with which it comes; nil: it needs none
	style  int                // in which it writes
}

// line is one request of a client, as long as it waits for its answer.
type line struct {
	client *client
	call   actor.CallID
	at     *cell
	asked  *linear.Op // under a key
}

// clientLeftMax is the longest that a client gives its run.
const clientLeftMax = 20 * time.Second

// triesMax is how often a client asks before it gives up.
const triesMax = 8

// come has a client come, and then the next, until there were enough; a little
// later the last phase begins.
func (w *World) come() {
	if w.plan.Calls > 0 && w.Stats.Calls >= w.plan.Calls || w.now.Sub(Origin) >= w.plan.Span {
		w.came()
		w.after(5*time.Second-w.between(0, 200*time.Millisecond), w.comeInARing)
		w.after(5*time.Second, w.heal)
		return
	}
	w.account(aboutArrival + w.arrivals)
	w.turn(aboutArrival + w.arrivals)
	w.arrivals++
	most := w.gapMost()
	w.after(most-w.between(0, most-w.plan.Gap/50), w.come)
	if w.choose.Int(64) == 0 && w.mayStayAway() {
		return // nobody comes this time
	}
	w.came()
	if w.choose.Int(16) == 15 {
		w.comeInARing()
	}
	c := w.drawClient()
	w.ask(c)
	if c.key != "" && w.fault(ClientDuplicate) {
		w.hit(ClientDuplicate, "client %d asks twice", c.no)
		w.after(w.between(0, 300*time.Millisecond), func() { w.ask(c) })
	}
}

// drawClient has somebody come, with something to ask. Some leave a value with
// who keeps it, and some have another leave it.
func (w *World) drawClient() *client {
	d := drawer{w: w}
	if w.team != nil {
		to, a := d.teamAsk()
		return w.addClient(to, a.Message, a.Left)
	}
	to, message, value, keeper := d.target(), "", "", actor.ID{}
	if w.enlists() && w.choose.Int(12) == 11 {
		to.Agent = enlisted[w.choose.Int(len(enlisted))].name
	}
	leaves := 0
	if !w.plan.Plain {
		leaves = w.choose.Int(12)
	}
	switch {
	case leaves >= 10:
		to = d.keeper()
		value, message = d.leave()
	default:
		message = d.message(4, to.Agent)
	}
	c := w.addClient(to, message, time.Duration(1+w.choose.Int(int(clientLeftMax/time.Second)))*time.Second)
	w.presents(c)
	c.style = w.choose.Int(styles)
	c.lane = [...]actor.Lane{actor.Normal, actor.High, actor.Low}[w.choose.Int(3)]
	switch {
	case value != "":
		c.leaves = w.judge.Leaves(w.now, to, fmt.Sprintf("client %d", c.no), value)
	case leaves == 9 && w.kindOf(to.Agent) == actor.Native && !w.isVolatile(to.Agent):
		keeper = d.keeper()
		value, message = d.leave()
		c.text += "; " + one{verb: "call", name: keeper.Agent + "/" + keeper.Key, script: message}.String()
		w.judge.Leaves(w.now, keeper, fmt.Sprintf("%s for client %d", to, c.no), value)
	}
	return c
}

func (w *World) addClient(to actor.ID, text string, left actor.Duration) *client {
	c := &client{no: len(w.clients), stream: w.queue.stream, to: to, text: text, left: left, lane: actor.Normal}
	if !w.plan.Plain && w.choose.Int(3) > 0 {
		c.key = "key-" + strconv.Itoa(c.no)
	}
	w.clients = append(w.clients, c)
	return c
}

// ask brings the client's request to some node.
func (w *World) ask(c *client) {
	defer w.resume(w.resume(c.stream))
	n := w.someNode()
	if n == nil {
		w.after(time.Second, func() { w.ask(c) })
		return
	}
	w.askAt(c, n.cells[w.choose.Int(len(n.cells))])
}

func (w *World) askAt(c *client, at *cell) {
	c.tries++
	w.asked = w.now
	if w.noRoom(at.n, c) || w.sentAway(at.n, c) {
		return
	}
	id := w.newCallID()
	c.call = id
	if w.fault(ClientGarbage) {
		w.sendsRubbish(c, at)
	}
	call, refusal := w.request(c)
	if refusal != nil {
		w.violate(CodecRoundTrip, fmt.Sprintf("what client %d asks cannot be read: %v", c.no, refusal))
		return
	}
	call.ID, call.Root, call.Kind, call.Lane = id, id, actor.Waiting, c.lane
	call.Attempt, call.Origin = 1, actor.Human
	w.log.world(w.now, "client %d asks %s through %s: %s", c.no, c.to, at.self, c.text)
	l := &line{client: c, call: id, at: at}
	w.lines = append(w.lines, l)
	w.asksUnderKey(l)
	if c.no%2 == 1 { // as a door of the same process does it
		at.put(input{stream: anyOrder, in: &runtime.Visit{Call: call}})
	} else {
		at.put(input{stream: anyOrder, in: runtime.Deliver{Envelope: actor.Envelope{To: c.to, Body: actor.Request{Call: call}}}})
	}
	if w.fault(ClientDisconnect) {
		w.after(w.between(time.Millisecond, 3*time.Second), func() { w.hangUp(l, ClientDisconnect) })
	}
	if w.fault(ClientCancel) {
		w.after(w.between(time.Millisecond, 3*time.Second), func() { w.cancel(l) })
	}
	w.after(c.left+5*time.Second, func() { w.hangUp(l, Fault(faultKinds)) })
}

// request is what the client asks for, as a door reads it.
func (w *World) request(c *client) (actor.Call, *actor.Refusal) {
	if c.order != nil {
		return c.order.request(c)
	}
	body := w.body(c)
	call, refusal := ingress.Message(c.to.Agent, body)
	if refusal != nil {
		return actor.Call{}, refusal
	}
	call.Operation, call.Trace = actor.HandleMessageFull, w.parent(c)
	if call.Principal = "client-" + strconv.Itoa(c.no); c.pass != nil {
		call.Principal = c.pass.key.Principal()
	}
	if c.key != "" {
		call.Idempotency, refusal = ingress.Promise(call.Principal, "messages", []string{c.key}, body)
	}
	return call, refusal
}

// hangUp ends a line from the client's side. Nobody tells the run.
func (w *World) hangUp(l *line, f Fault) {
	if !w.drop(l) {
		return
	}
	if int(f) < faultKinds {
		w.hit(f, "client %d hangs up", l.client.no)
	} else {
		w.log.world(w.now, "client %d has waited long enough", l.client.no)
	}
	w.askAgain(l.client, w.between(time.Millisecond, time.Second))
}

// disconnect ends the lines that a crash cuts.
func (w *World) disconnect(at func(*line) bool) {
	for _, l := range slices.Clone(w.lines) {
		if at(l) {
			w.drop(l)
			w.askAgain(l.client, w.between(time.Millisecond, time.Second))
		}
	}
}

func (w *World) drop(l *line) bool {
	i := slices.Index(w.lines, l)
	if i < 0 {
		return false
	}
	w.lines = slices.Delete(w.lines, i, i+1)
	if l.client.told != nil {
		l.client.told(nil)
	}
	return true
}

// askAgain has a client ask for the same again, by its key: without one it
// would not be the same. Nobody waits for longer than they would for an answer.
func (w *World) askAgain(c *client, after time.Duration) {
	if c.key == "" || c.tries >= triesMax || after > 3*clientLeftMax {
		return
	}
	w.asking++
	w.after(after, func() { w.asking--; w.ask(c) })
}

// cancel has a client give its run up: that is a command, hanging up is none.
func (w *World) cancel(l *line) { w.cancelBy(ClientCancel, l) }

func (w *World) cancelBy(f Fault, l *line) {
	n := w.someNode()
	if n == nil || !slices.Contains(w.lines, l) {
		return
	}
	if f == ClientCancel {
		w.hit(f, "client %d cancels %s", l.client.no, l.call.Short())
	}
	if refusal := ingress.Nothing([]byte([...]string{"", "{}", " { } "}[l.client.tries%3])); refusal != nil {
		w.violate(CodecRoundTrip, "a door does not take a cancel: "+refusal.Error())
	}
	n.cells[w.choose.Int(len(n.cells))].put(input{stream: anyOrder,
		in: runtime.Deliver{Envelope: actor.Envelope{To: l.client.to, Body: actor.Cancel{Call: l.call, Reason: actor.Stopped}}}})
}

// respond gives a client its answer, if it still waits for it.
func (w *World) respond(n *node, op runtime.Respond) {
	i := slices.IndexFunc(w.lines, func(l *line) bool { return l.call == op.Call && l.at.n == n })
	if i < 0 {
		return
	}
	l := w.lines[i]
	c := l.client
	w.lines = slices.Delete(w.lines, i, i+1)
	if op.HeldUntil != 0 {
		c.held = true
		w.Stats.Sometimes[HeldReply]++
		if c.told != nil {
			c.told(nil)
		}
		return
	}
	reply := op.Reply
	c.reply = &reply
	w.told(l, &reply)
	w.Stats.Replies++
	switch {
	case c.told != nil:
		c.told(&reply)
	case reply.Status == actor.Succeeded && c.key != "" && !w.isVolatile(c.to.Agent): // who writes nothing down forgets keys too
		if !c.run.IsZero() && c.run != reply.Run {
			w.violate("OneAnswer", fmt.Sprintf("client %d has two answers under one key, of runs %s and %s", c.no, c.run, reply.Run))
		}
		said := history.SaidIn(reply.Parts, reply.Warnings)
		if c.run == reply.Run && c.said != said {
			w.violate("OneAnswer", fmt.Sprintf("client %d has two answers under one key, of run %s", c.no, c.run))
		}
		c.said = said
		if c.run == reply.Run {
			w.Stats.Sometimes[RepeatAnswered]++
		}
		c.run = reply.Run
	case reply.Refusal != nil && (reply.Refusal.Reason == actor.Busy || reply.Refusal.Reason == actor.Unavailable):
		if c.burst && reply.Refusal.Reason == actor.Busy {
			w.hit(AgentBusy, "client %d finds no room", c.no)
			return
		}
		w.askAgain(c, w.between(reply.Refusal.RetryAfter, reply.Refusal.RetryAfter+3*time.Second))
	}
}

func (w *World) isVolatile(agent string) bool {
	for i := range w.plan.Agents {
		if def := &w.plan.Agents[i]; def.Name == agent {
			return def.Durability == actor.Volatile
		}
	}
	return false
}

// joined tells a client that it asks for what is under way already.
func (w *World) joined(op runtime.Joined) {
	if i := slices.IndexFunc(w.lines, func(l *line) bool { return l.call == op.Call }); i >= 0 {
		w.listenTo(op.Run, w.lines[i].client)
	}
}

// published shows a run's event to who watches: somebody answers a wait.
func (w *World) published(_ *node, e store.RunEvent) {
	w.news(e.Run)
	if e.Seq == 1 {
		if i := slices.IndexFunc(w.lines, func(l *line) bool { return l.call == e.Run }); i >= 0 {
			w.listenTo(e.Run, w.lines[i].client)
		}
	}
	if w.story || w.plan.Plain || runs.TypeOf(e.Body) != runs.WaitOpened {
		return
	}
	event, err := runs.Decode(e.Body)
	if err != nil {
		return
	}
	owner, ok, err := store.ActorOf(w.kv, actor.DefaultTenant, e.Run)
	if !ok || err != nil || w.choose.Int(8) == 7 {
		return // an unjournaled run cannot be found; or nobody is there
	}
	w.after(w.between(time.Millisecond, 8*time.Second), func() { w.signal(owner.Actor, e.Run, event.Name) })
	w.decidesAgain(owner.Actor, e.Run, event.Name)
}

func (w *World) signal(to actor.ID, run actor.CallID, name string) {
	text := "go on"
	if w.team != nil && w.team.Signal != nil {
		text = w.team.Signal(w.choose, name)
	}
	w.signalWith(to, run, name, text)
}

func (w *World) signalWith(to actor.ID, run actor.CallID, name, text string) {
	n := w.someNode()
	if n == nil {
		return
	}
	id := w.newCallID()
	call, refusal := ingress.Signal(run, invariant.Must(json.Marshal(map[string]string{"name": name, "payload": text})))
	if refusal != nil {
		w.violate(CodecRoundTrip, fmt.Sprintf("the signal %s cannot be read: %v", name, refusal))
		return
	}
	call.ID, call.Root, call.To, call.Lane, call.Left, call.Attempt = id, id, to, actor.Normal, 10*time.Second, 1
	call.Principal, call.Origin = "person", actor.Human
	w.log.world(w.now, "signal %s for run %s of %s", name, run.Short(), to)
	n.cells[w.choose.Int(len(n.cells))].put(input{stream: anyOrder, in: runtime.Deliver{Envelope: actor.Envelope{To: to, Body: actor.Request{Call: call}}}})
}
