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
	no          int
	stream      StreamID // of its choices: that of whoever had it come
	to          actor.ID
	text        string
	lane        actor.Lane
	left        actor.Duration
	key         string       // Idempotency-Key, if any
	call        actor.CallID // of the last try
	tries       int
	burst       bool
	run         actor.CallID // that succeeded, under the key
	replyDigest uint32       // a digest of what it said
	reply       *actor.Reply // the last
	held        bool
	onReply     func(*actor.Reply) // of one who calls back: gets the answer, or nil if none comes
	swap        *linear.Op         // the value that it leaves, until it is told which was there before
	op          *registryOp        // for the registry; nil: a message
	apiKey      *apiKey            // with which it comes; nil: it needs none
	bodyStyle   int                // in which it writes
}

// pendingRequest is one request of a client, as long as it waits for its answer.
type pendingRequest struct {
	client  *client
	call    actor.CallID
	cell    *cell
	keyedOp *linear.Op // under a key
}

// clientLeftMax is the longest that a client gives its run.
const clientLeftMax = 20 * time.Second

// triesMax is how often a client asks before it gives up.
const triesMax = 8

// nextArrival has a client come, and then the next, until there were enough; a little
// later the last phase begins.
func (w *Simulation) nextArrival() {
	if w.plan.Calls > 0 && w.Stats.Calls >= w.plan.Calls || w.now.Sub(Origin) >= w.plan.Span {
		w.recordArrival()
		w.after(5*time.Second-w.between(0, 200*time.Millisecond), w.submitWaitCycle)
		w.after(5*time.Second, w.startRecovery)
		return
	}
	w.setCause(topicArrival + w.arrivals)
	w.setStream(topicArrival + w.arrivals)
	w.arrivals++
	most := w.arrivalGapMax()
	w.after(most-w.between(0, most-w.plan.ArrivalInterval/50), w.nextArrival)
	if w.entropy.Int(64) == 0 && w.maySkipArrival() {
		return // nobody comes this time
	}
	w.recordArrival()
	if w.entropy.Int(16) == 15 {
		w.submitWaitCycle()
	}
	c := w.drawClient()
	w.submit(c)
	if c.key != "" && w.faultFires(ClientDuplicate) {
		w.recordFault(ClientDuplicate, "client %d asks twice", c.no)
		w.after(w.between(0, 300*time.Millisecond), func() { w.submit(c) })
	}
}

// drawClient has somebody come, with something to ask. Some leave a value with
// who keeps it, and some have another leave it.
func (w *Simulation) drawClient() *client {
	d := generator{w: w}
	if w.team != nil {
		to, a := d.drawTeamAsk()
		return w.addClient(to, a.Message, a.Left)
	}
	to, message, value, keeper := d.target(), "", "", actor.ID{}
	if w.hasRegistry() && w.entropy.Int(12) == 11 {
		to.Agent = registeredAgents[w.entropy.Int(len(registeredAgents))].name
	}
	leaves := 0
	if !w.plan.Plain {
		leaves = w.entropy.Int(12)
	}
	switch {
	case leaves >= 10:
		to = d.swapTarget()
		value, message = d.swapMessage()
	default:
		message = d.message(4, to.Agent)
	}
	c := w.addClient(to, message, time.Duration(1+w.entropy.Int(int(clientLeftMax/time.Second)))*time.Second)
	w.assignKey(c)
	c.bodyStyle = w.entropy.Int(bodyStyles)
	c.lane = [...]actor.Lane{actor.Normal, actor.High, actor.Low}[w.entropy.Int(3)]
	switch {
	case value != "":
		c.swap = w.judge.Leaves(w.now, to, fmt.Sprintf("client %d", c.no), value)
	case leaves == 9 && w.agentKind(to.Agent) == actor.Native && !w.isVolatile(to.Agent):
		keeper = d.swapTarget()
		value, message = d.swapMessage()
		c.text += "; " + instruction{verb: "call", name: keeper.Agent + "/" + keeper.Key, script: message}.String()
		w.judge.Leaves(w.now, keeper, fmt.Sprintf("%s for client %d", to, c.no), value)
	}
	return c
}

func (w *Simulation) addClient(to actor.ID, text string, left actor.Duration) *client {
	c := &client{no: len(w.clients), stream: w.queue.stream, to: to, text: text, left: left, lane: actor.Normal}
	if !w.plan.Plain && w.entropy.Int(3) > 0 {
		c.key = "key-" + strconv.Itoa(c.no)
	}
	w.clients = append(w.clients, c)
	return c
}

// submit brings the client's request to some node.
func (w *Simulation) submit(c *client) {
	defer w.restoreStream(w.restoreStream(c.stream))
	n := w.drawNode()
	if n == nil {
		w.after(time.Second, func() { w.submit(c) })
		return
	}
	w.submitAt(c, n.cells[w.entropy.Int(len(n.cells))])
}

func (w *Simulation) submitAt(c *client, at *cell) {
	c.tries++
	w.lastRequestAt = w.now
	if w.rejectWhenDiskFull(at.n, c) || w.refusesKey(at.n, c) {
		return
	}
	id := w.newCallID()
	c.call = id
	if w.faultFires(ClientGarbage) {
		w.sendMalformed(c, at)
	}
	call, refusal := w.clientCall(c)
	if refusal != nil {
		w.fail(CodecRoundTrip, fmt.Sprintf("what client %d asks cannot be read: %v", c.no, refusal))
		return
	}
	call.ID, call.Root, call.Kind, call.Lane = id, id, actor.Waiting, c.lane
	call.Attempt, call.Origin = 1, actor.Human
	w.log.note(w.now, "client %d asks %s through %s: %s", c.no, c.to, at.self, c.text)
	l := &pendingRequest{client: c, call: id, cell: at}
	w.pending = append(w.pending, l)
	w.recordKeyedRequest(l)
	if c.no%2 == 1 { // as a door of the same process does it
		at.enqueue(input{orderGroup: unordered, in: &runtime.Visit{Call: call}})
	} else {
		at.enqueue(input{orderGroup: unordered, in: runtime.Deliver{Envelope: actor.Envelope{To: c.to, Body: actor.Request{Call: call}}}})
	}
	if w.faultFires(ClientDisconnect) {
		w.after(w.between(time.Millisecond, 3*time.Second), func() { w.disconnectClient(l, ClientDisconnect) })
	}
	if w.faultFires(ClientCancel) {
		w.after(w.between(time.Millisecond, 3*time.Second), func() { w.cancelRun(l) })
	}
	w.after(c.left+5*time.Second, func() { w.disconnectClient(l, Fault(faultKinds)) })
}

// clientCall is what the client asks for, as a door reads it.
func (w *Simulation) clientCall(c *client) (actor.Call, *actor.Refusal) {
	if c.op != nil {
		return c.op.request(c)
	}
	body := w.requestBody(c)
	call, refusal := ingress.Message(c.to.Agent, body)
	if refusal != nil {
		return actor.Call{}, refusal
	}
	call.Operation, call.Trace = actor.HandleMessageFull, w.traceParent(c)
	if call.Principal = "client-" + strconv.Itoa(c.no); c.apiKey != nil {
		call.Principal = c.apiKey.record.Principal()
	}
	if c.key != "" {
		call.Idempotency, refusal = ingress.ParseIdempotency(call.Principal, "messages", []string{c.key}, body)
	}
	return call, refusal
}

// disconnectClient ends a line from the client's side. Nobody tells the run.
func (w *Simulation) disconnectClient(l *pendingRequest, f Fault) {
	if !w.removePending(l) {
		return
	}
	if int(f) < faultKinds {
		w.recordFault(f, "client %d hangs up", l.client.no)
	} else {
		w.log.note(w.now, "client %d has waited long enough", l.client.no)
	}
	w.scheduleRetry(l.client, w.between(time.Millisecond, time.Second))
}

// dropRequests ends the lines that a crash cuts.
func (w *Simulation) dropRequests(at func(*pendingRequest) bool) {
	for _, l := range slices.Clone(w.pending) {
		if at(l) {
			w.removePending(l)
			w.scheduleRetry(l.client, w.between(time.Millisecond, time.Second))
		}
	}
}

func (w *Simulation) removePending(l *pendingRequest) bool {
	i := slices.Index(w.pending, l)
	if i < 0 {
		return false
	}
	w.pending = slices.Delete(w.pending, i, i+1)
	if l.client.onReply != nil {
		l.client.onReply(nil)
	}
	return true
}

// scheduleRetry has a client ask for the same again, by its key: without one it
// would not be the same. Nobody waits for longer than they would for an answer.
func (w *Simulation) scheduleRetry(c *client, after time.Duration) {
	if c.key == "" || c.tries >= triesMax || after > 3*clientLeftMax {
		return
	}
	w.retriesScheduled++
	w.after(after, func() { w.retriesScheduled--; w.submit(c) })
}

// cancelRun has a client give its run up: that is a command, hanging up is none.
func (w *Simulation) cancelRun(l *pendingRequest) { w.cancelRunAs(ClientCancel, l) }

func (w *Simulation) cancelRunAs(f Fault, l *pendingRequest) {
	n := w.drawNode()
	if n == nil || !slices.Contains(w.pending, l) {
		return
	}
	if f == ClientCancel {
		w.recordFault(f, "client %d cancels %s", l.client.no, l.call.Short())
	}
	if refusal := ingress.CheckEmpty([]byte([...]string{"", "{}", " { } "}[l.client.tries%3])); refusal != nil {
		w.fail(CodecRoundTrip, "a door does not take a cancel: "+refusal.Error())
	}
	n.cells[w.entropy.Int(len(n.cells))].enqueue(input{orderGroup: unordered,
		in: runtime.Deliver{Envelope: actor.Envelope{To: l.client.to, Body: actor.Cancel{Call: l.call, Reason: actor.Stopped}}}})
}

// deliverReply gives a client its answer, if it still waits for it.
func (w *Simulation) deliverReply(n *node, op runtime.Respond) {
	i := slices.IndexFunc(w.pending, func(l *pendingRequest) bool { return l.call == op.Call && l.cell.n == n })
	if i < 0 {
		return
	}
	l := w.pending[i]
	c := l.client
	w.pending = slices.Delete(w.pending, i, i+1)
	if op.HeldUntil != 0 {
		c.held = true
		w.Stats.Points[HeldReply]++
		if c.onReply != nil {
			c.onReply(nil)
		}
		return
	}
	reply := op.Reply
	c.reply = &reply
	w.recordReply(l, &reply)
	w.Stats.Replies++
	switch {
	case c.onReply != nil:
		c.onReply(&reply)
	case reply.Status == actor.Succeeded && c.key != "" && !w.isVolatile(c.to.Agent): // who writes nothing down forgets keys too
		if !c.run.IsZero() && c.run != reply.Run {
			w.fail("OneAnswer", fmt.Sprintf("client %d has two answers under one key, of runs %s and %s", c.no, c.run, reply.Run))
		}
		said := history.SaidIn(reply.Parts, reply.Warnings)
		if c.run == reply.Run && c.replyDigest != said {
			w.fail("OneAnswer", fmt.Sprintf("client %d has two answers under one key, of run %s", c.no, c.run))
		}
		c.replyDigest = said
		if c.run == reply.Run {
			w.Stats.Points[RepeatAnswered]++
		}
		c.run = reply.Run
	case reply.Refusal != nil && (reply.Refusal.Reason == actor.Busy || reply.Refusal.Reason == actor.Unavailable):
		if c.burst && reply.Refusal.Reason == actor.Busy {
			w.recordFault(AgentBusy, "client %d finds no room", c.no)
			return
		}
		w.scheduleRetry(c, w.between(reply.Refusal.RetryAfter, reply.Refusal.RetryAfter+3*time.Second))
	}
}

func (w *Simulation) isVolatile(agent string) bool {
	for i := range w.plan.Agents {
		if def := &w.plan.Agents[i]; def.Name == agent {
			return def.Durability == actor.Volatile
		}
	}
	return false
}

// handleJoined tells a client that it asks for what is under way already.
func (w *Simulation) handleJoined(op runtime.Joined) {
	if i := slices.IndexFunc(w.pending, func(l *pendingRequest) bool { return l.call == op.Call }); i >= 0 {
		w.maybeReadStream(op.Run, w.pending[i].client)
	}
}

// handlePublished shows a run's event to who watches: somebody answers a wait.
func (w *Simulation) handlePublished(_ *node, e store.RunEvent) {
	w.notifyStreams(e.Run)
	if e.Seq == 1 {
		if i := slices.IndexFunc(w.pending, func(l *pendingRequest) bool { return l.call == e.Run }); i >= 0 {
			w.maybeReadStream(e.Run, w.pending[i].client)
		}
	}
	if w.manual || w.plan.Plain || runs.TypeOf(e.Body) != runs.WaitOpened {
		return
	}
	event, err := runs.Decode(e.Body)
	if err != nil {
		return
	}
	owner, ok, err := store.ActorOf(w.kv, actor.DefaultTenant, e.Run)
	if !ok || err != nil || w.entropy.Int(8) == 7 {
		return // an unjournaled run cannot be found; or nobody is there
	}
	w.after(w.between(time.Millisecond, 8*time.Second), func() { w.sendSignal(owner.Actor, e.Run, event.Name) })
	w.maybeDecideTwice(owner.Actor, e.Run, event.Name)
}

func (w *Simulation) sendSignal(to actor.ID, run actor.CallID, name string) {
	text := "go on"
	if w.team != nil && w.team.Signal != nil {
		text = w.team.Signal(w.entropy, name)
	}
	w.sendSignalText(to, run, name, text)
}

func (w *Simulation) sendSignalText(to actor.ID, run actor.CallID, name, text string) {
	n := w.drawNode()
	if n == nil {
		return
	}
	id := w.newCallID()
	call, refusal := ingress.Signal(run, invariant.Must(json.Marshal(map[string]string{"name": name, "payload": text})))
	if refusal != nil {
		w.fail(CodecRoundTrip, fmt.Sprintf("the signal %s cannot be read: %v", name, refusal))
		return
	}
	call.ID, call.Root, call.To, call.Lane, call.Left, call.Attempt = id, id, to, actor.Normal, 10*time.Second, 1
	call.Principal, call.Origin = "person", actor.Human
	w.log.note(w.now, "signal %s for run %s of %s", name, run.Short(), to)
	n.cells[w.entropy.Int(len(n.cells))].enqueue(input{orderGroup: unordered, in: runtime.Deliver{Envelope: actor.Envelope{To: to, Body: actor.Request{Call: call}}}})
}
