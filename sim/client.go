// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/specs"
	"github.com/troupe-run/troupe/specs/linear"
	"github.com/troupe-run/troupe/store"
)

// client is a client that sends one request to an actor, through a node of its choice.
// If that node fails, the client retries, provided that it has an idempotency key.
type client struct {
	no          int
	stream      StreamID // entropy stream of its choices: the stream of the arrival that created the client
	to          actor.ID
	text        string
	lane        actor.Lane
	left        actor.Duration
	key         string       // idempotency key; "" if none
	call        actor.CallID // run requested by the last attempt
	tries       int
	burst       bool               // part of a burst: not retried when refused as Busy
	run         actor.CallID       // run that succeeded under the key
	replyDigest uint32             // digest of the run's answer
	reply       *actor.Reply       // last reply
	held        bool               // the last reply reported that the run is held
	onReply     func(*actor.Reply) // called with the reply, or with nil if there is none; optional
	swap        *linear.Op         // recorded swap whose result is not known yet; nil: none
	op          *registryOp        // registry operation; nil for a message
	apiKey      *apiKey            // presented to the gateway; nil for none
	bodyStyle   int                // formatting of the body; less than bodyStyles
	busy        actor.BusyPolicy   // effect on open runs of its actor
	otherBody   bool               // repeats the key of another request with another body
}

// pendingRequest is one attempt of a client that has no reply yet.
type pendingRequest struct {
	client  *client
	call    actor.CallID
	cell    *cell
	keyedOp *linear.Op // recorded operation, if the client has an idempotency key
}

// clientLeftMax is the longest time left that a client gives its run, except for the
// requests of a team.
const clientLeftMax = 20 * time.Second

// triesMax is the maximum number of attempts of a client.
const triesMax = 8

// nextArrival submits the request of the next client and schedules the following
// arrival. After the last arrival it schedules the recovery phase, 5 s later.
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
	gapMax := w.arrivalGapMax()
	w.after(gapMax-w.between(0, gapMax-w.plan.ArrivalInterval/50), w.nextArrival)
	if w.entropy.Int(64) == 0 && w.maySkipArrival() {
		return // this arrival is skipped
	}
	w.recordArrival()
	switch w.entropy.Int(32) {
	case 30, 31:
		w.submitWaitCycle()
	case 29:
		w.submitTree()
	case 27, 28:
		conversations{w}.startConversation()
	}
	c := w.drawClient()
	w.submit(c)
	if c.key != "" && w.faultFires(ClientDuplicate) {
		w.after(w.between(0, 300*time.Millisecond), func() {
			w.addInputs(ClientDuplicate, func() { w.submit(c) }, "client %d sends its request twice", c.no)
		})
	}
}

// drawClient draws a client and its request. Some clients swap a value in the register,
// and some have another agent swap it.
func (w *Simulation) drawClient() *client {
	d := newGenerator(w)
	if w.team != nil {
		to, a := d.drawTeamAsk()
		return w.addClient(to, a.Message, a.Left)
	}
	to, message, value, register := d.target(), "", "", actor.ID{}
	if w.hasRegistry() && w.entropy.Int(12) == 11 {
		to.Agent = registeredAgents[w.entropy.Int(len(registeredAgents))].name
	}
	choice := 0
	if !w.plan.Plain {
		choice = w.entropy.Int(12)
	}
	switch {
	case choice == 11 && w.entropy.Int(8) == 7:
		to, message = d.swapTarget(), d.failingSwap()
	case choice >= 10:
		to = d.swapTarget()
		value, message = d.swapMessage()
	default:
		message = d.message(4, to.Agent)
	}
	c := w.addClient(to, message, time.Duration(1+w.entropy.Int(int(clientLeftMax/time.Second)))*time.Second)
	w.assignKey(c)
	c.bodyStyle = w.entropy.Int(bodyStyles)
	c.lane = [...]actor.Lane{actor.Normal, actor.High, actor.Low}[w.entropy.Int(3)]
	if !w.plan.Plain {
		c.busy = conversations{w}.drawBusyPolicy(32)
	}
	switch {
	case value != "":
		c.swap = w.judge.BeginSwap(w.now, to, fmt.Sprintf("client %d", c.no), value)
	case choice == 9 && w.agentKind(to.Agent) == actor.Native && !w.isVolatile(to.Agent):
		register = d.swapTarget()
		value, message = d.swapMessage()
		c.text += "; " + instruction{verb: "call", name: register.Agent + "/" + register.Key, script: message}.String()
		w.judge.BeginSwap(w.now, register, fmt.Sprintf("%s for client %d", to, c.no), value)
	}
	return c
}

// addClient adds a client without submitting its request. Two of three clients have an
// idempotency key.
func (w *Simulation) addClient(to actor.ID, text string, left actor.Duration) *client {
	c := &client{no: len(w.clients), stream: w.queue.stream, to: to, text: namespaces{w}.mark(to, cmp.Or(text, " ")), left: left, lane: actor.Normal}
	if !w.plan.Plain && w.entropy.Int(3) > 0 {
		c.key = "key-" + strconv.Itoa(c.no)
	}
	w.clients = append(w.clients, c)
	return c
}

// submit submits the client's request through a random node that is up.
func (w *Simulation) submit(c *client) {
	defer w.restoreStream(w.restoreStream(c.stream))
	n := w.drawNode()
	if n == nil {
		w.after(time.Second, func() { w.submit(c) })
		return
	}
	w.submitAt(c, n.cells[w.entropy.Int(len(n.cells))])
}

// submitAt submits the client's request through a cell, and may schedule a disconnect or
// a cancel. The client waits for the reply until 5 s after the time left is over.
func (w *Simulation) submitAt(c *client, cell *cell) {
	c.tries++
	w.lastRequestAt = w.now
	if w.rejectWhenDiskFull(cell.n, c) || w.refusesKey(cell.n, c) {
		return
	}
	w.checkForms()
	if !w.plan.Plain && w.team == nil && w.entropy.Int(16) == 15 {
		w.sendInvalidCall(cell.n, c.to)
	}
	if w.faultFires(ClientGarbage) && w.sendMalformed(c, cell) { // the client sends its request after the refusal
		w.retriesScheduled++
		w.after(w.between(time.Millisecond, 300*time.Millisecond), func() { w.retriesScheduled--; w.submit(c) })
		return
	}
	id := w.newCallID()
	c.call = id
	call, refusal := w.clientCall(c)
	if refusal != nil {
		w.fail(CodecRoundTrip, fmt.Sprintf("valid request of client %d rejected: %v", c.no, refusal))
		return
	}
	call.ID, call.Root, call.Kind, call.Lane = id, id, actor.Waiting, c.lane
	call.Attempt, call.Origin = 1, actor.Human
	w.eventJudge.requests[id] = &call
	w.log.note(w.now, "client %d calls %s through %s: %s", c.no, c.to, cell.self, c.text)
	req := &pendingRequest{client: c, call: id, cell: cell}
	w.pending = append(w.pending, req)
	w.recordKeyedRequest(req)
	if c.no%2 == 1 { // like a gateway in the same process
		cell.enqueue(input{orderGroup: unordered, in: &runtime.Visit{Call: call, Subscribed: c.no%8 != 1}})
	} else {
		cell.enqueue(input{orderGroup: unordered, in: runtime.Deliver{Envelope: actor.Envelope{To: c.to, Body: actor.Request{Call: call}}}})
	}
	if w.faultFires(ClientDisconnect) {
		w.after(w.between(time.Millisecond, 3*time.Second), func() { w.disconnectClient(req, ClientDisconnect) })
	}
	if w.faultFires(ClientCancel) {
		// A cancel that is sent at once may overtake its call.
		w.after(w.between(0, [...]time.Duration{3 * time.Second, 2 * time.Millisecond}[w.entropy.Int(2)]), func() { w.cancelRunAs(ClientCancel, req) })
	}
	w.after(c.left+5*time.Second, func() { w.disconnectClient(req, noFault) })
}

// clientCall returns the call that the gateway builds from the client's request.
func (w *Simulation) clientCall(c *client) (actor.Call, *actor.Refusal) {
	if c.op != nil {
		return c.op.request(c)
	}
	body := w.requestBody(c)
	by := actor.NewPrincipal("client-"+strconv.Itoa(c.no), "")
	if c.apiKey != nil {
		by = c.apiKey.record.Principal()
	}
	by.Tenant = c.to.Tenant
	call, refusal := ingress.Message(by, c.to.Agent, body)
	if refusal != nil {
		return actor.Call{}, refusal
	}
	call.Principal, call.Operation, call.Trace = by.User, actor.HandleMessageFull, w.traceParent(c)
	call.SetBusy(c.busy)
	if c.key != "" {
		call.Idempotency, refusal = ingress.ParseIdempotency(call.Principal, "messages", []string{c.key}, body)
	}
	clear(body) // the buffer of a request is used again
	if got := actor.TextOf(call.Parts); got != strings.ToValidUTF8(c.text, "\uFFFD") {
		w.fail(CodecRoundTrip, fmt.Sprintf("message %.80q of client %d is read as %.80q", c.text, c.no, got))
	}
	return call, refusal
}

// disconnectClient ends a request from the client's side. The run is not notified, and
// continues.
func (w *Simulation) disconnectClient(req *pendingRequest, f Fault) {
	if !slices.Contains(w.pending, req) || f != noFault && !w.acts(f) {
		return
	}
	waiting := len(w.pending)
	w.removePending(req)
	if recordChange(w, f, waiting, len(w.pending), "client %d disconnects", req.client.no); f == noFault {
		w.log.note(w.now, "client %d times out", req.client.no)
	}
	w.scheduleRetry(req.client, w.between(time.Millisecond, time.Second))
}

// dropRequests ends the requests whose connections are lost in a crash.
func (w *Simulation) dropRequests(lost func(*pendingRequest) bool) {
	for _, req := range slices.Clone(w.pending) {
		if lost(req) {
			w.removePending(req)
			w.scheduleRetry(req.client, w.between(time.Millisecond, time.Second))
		}
	}
}

// removePending removes a request that has lost its connection. It returns false if the
// request was not pending.
func (w *Simulation) removePending(req *pendingRequest) bool {
	i := slices.Index(w.pending, req)
	if i < 0 {
		return false
	}
	w.pending = slices.Delete(w.pending, i, i+1)
	if req.client.onReply != nil {
		req.client.onReply(nil)
	}
	return true
}

// scheduleRetry schedules another attempt of the client under its idempotency key. A
// client without a key does not retry, because the attempt would be a new request. A
// client also stops after triesMax attempts, or if the delay exceeds
// 3 × clientLeftMax.
func (w *Simulation) scheduleRetry(c *client, delay time.Duration) {
	if c.key == "" || c.tries >= triesMax || delay > 3*clientLeftMax {
		return
	}
	w.retriesScheduled++
	w.after(delay, func() { w.retriesScheduled--; w.submit(c) })
}

// cancelRunAs has fault f cancel the run of a request.
func (w *Simulation) cancelRunAs(f Fault, req *pendingRequest) {
	w.addInputs(f, func() { w.cancelRun(req) }, "client %d cancels %s", req.client.no, req.call.Short())
}

// cancelRun cancels the run of a pending request through a random node. Only this command
// of a client cancels a run: disconnecting does not.
func (w *Simulation) cancelRun(req *pendingRequest) {
	n := w.drawNode()
	if n == nil || !slices.Contains(w.pending, req) {
		return
	}
	if refusal := ingress.CheckEmpty([]byte([...]string{"", "{}", " { } "}[req.client.tries%3])); refusal != nil {
		w.fail(CodecRoundTrip, "cancel request rejected: "+refusal.Error())
	}
	n.cells[w.entropy.Int(len(n.cells))].enqueue(input{orderGroup: unordered,
		in: runtime.Deliver{Envelope: actor.Envelope{To: req.client.to, Body: actor.Cancel{Call: req.call, Reason: actor.Stopped, By: "client-" + strconv.Itoa(req.client.no)}}}})
}

// deliverReply delivers the reply to the client, if the request is still pending.
func (w *Simulation) deliverReply(n *node, op runtime.Respond) {
	i := slices.IndexFunc(w.pending, func(req *pendingRequest) bool { return req.call == op.Call && req.cell.n == n })
	if i < 0 {
		return
	}
	req := w.pending[i]
	c := req.client
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
	namespaces{w}.checkReplyApart(c.to.Tenant, fmt.Sprintf("client %d", c.no), &reply)
	w.recordReply(req, &reply)
	if w.Stats.Replies++; reply.Run != op.Call {
		w.feelStorm(LoadRetryStorm, op.Call)
	}
	w.judgeBody(c, &reply)
	conversations{w}.judgeBusyReply(c, &reply)
	if reply.Refusal == nil && c.no >= 0 && c.op == nil && !w.isVolatile(c.to.Agent) {
		w.transcripts.acknowledged(c.to, &reply)
	}
	switch {
	case c.otherBody:
	case c.onReply != nil:
		c.onReply(&reply)
	case reply.Status == actor.Succeeded && c.key != "" && !w.isVolatile(c.to.Agent): // a volatile actor forgets idempotency keys
		if !c.run.IsZero() && c.run != reply.Run {
			w.fail("OneAnswer", fmt.Sprintf("client %d received answers of two runs under one key, %s and %s", c.no, c.run, reply.Run))
		}
		digest := history.OutcomeDigest(reply.Parts, reply.Warnings)
		if c.run == reply.Run && c.replyDigest != digest {
			w.fail("OneAnswer", fmt.Sprintf("client %d received two different answers under one key, of run %s", c.no, c.run))
		}
		c.replyDigest = digest
		if c.run == reply.Run {
			w.Stats.Points[RepeatAnswered]++
		}
		c.run = reply.Run
		w.repeatWithOtherBody(c)
	case reply.Refusal != nil && (reply.Refusal.Reason == actor.Busy || reply.Refusal.Reason == actor.Unavailable):
		if c.burst && recordChange(w, AgentBusy, false, reply.Refusal.Reason == actor.Busy, "client %d is refused: mailbox full", c.no) {
			return
		}
		w.scheduleRetry(c, w.between(reply.Refusal.RetryAfter, reply.Refusal.RetryAfter+3*time.Second))
	}
}

// repeatWithOtherBody sends another request under the key of a client, once in eight times. The
// key belongs to the request that succeeded.
func (w *Simulation) repeatWithOtherBody(c *client) {
	if w.recovering || w.entropy.Int(8) < 7 {
		return
	}
	other := *c
	other.text, other.otherBody, other.tries, other.reply = c.text+" ", true, triesMax, nil
	w.after(w.between(0, time.Second), func() { w.submit(&other) })
}

// refusesBody reports whether a request was refused because its key belongs to another body.
func refusesBody(r *actor.Reply) bool {
	return r.Refusal != nil && r.Refusal.Field == "Idempotency-Key"
}

// judgeBody checks the reply to a request with an idempotency key. A repeat with another body gets
// no outcome; a repeat with the same body is not refused for its body.
func (w *Simulation) judgeBody(c *client, reply *actor.Reply) {
	switch {
	case w.isVolatile(c.to.Agent): // forgets keys
	case c.otherBody && refusesBody(reply):
		w.checker.Premises.KeyBindsBody++
	case c.otherBody && (reply.Refusal == nil || reply.Run == c.run):
		w.fail(specs.KeyBindsBody, fmt.Sprintf("client %d repeats the key of run %s with another body and receives the outcome of run %s", c.no, c.run, reply.Run))
	case refusesBody(reply) && !c.otherBody:
		w.fail(specs.KeyBindsBody, fmt.Sprintf("client %d repeats its request under a key, which is refused: %s", c.no, reply.Refusal.Detail))
	}
}

// isVolatile reports whether an agent of the plan, or a registered one, may have no journal.
func (w *Simulation) isVolatile(agent string) bool {
	for i := range w.plan.Agents {
		if def := &w.plan.Agents[i]; def.Name == agent {
			return def.Durability == actor.Volatile
		}
	}
	for i, a := range registeredAgents {
		if a.name == agent {
			return w.plan.RegisteredVolatile[i] || w.plan.DurabilityChanges
		}
	}
	return false
}

// handleJoined handles the notice that a request repeats a run already in progress.
func (w *Simulation) handleJoined(op runtime.Joined) {
	w.feelStorm(LoadRetryStorm, op.Call)
	if i := slices.IndexFunc(w.pending, func(req *pendingRequest) bool { return req.call == op.Call }); i >= 0 {
		w.maybeReadStream(op.Run, w.pending[i].client)
		w.sockets.maybeFollow(w.pending[i].client)
	}
}

// handlePublished notifies the stream readers that a run has a new event. If the event
// shows that the run waits for a signal, handlePublished usually schedules one.
func (w *Simulation) handlePublished(_ *node, e store.RunEvent) {
	w.notifyStreams(e.Run)
	w.sockets.notify(e.Run)
	if e.Seq == 1 {
		if i := slices.IndexFunc(w.pending, func(req *pendingRequest) bool { return req.call == e.Run }); i >= 0 {
			w.maybeReadStream(e.Run, w.pending[i].client)
			w.sockets.maybeFollow(w.pending[i].client)
		}
	}
	if w.manual || w.plan.Plain || runs.TypeOf(e.Body) != runs.WaitOpened {
		return
	}
	event, err := runs.Decode(e.Body)
	if err != nil {
		return
	}
	owner, ok, err := w.store.Run(namespaces{w}.namespaceOf(e.Run), e.Run)
	if !ok || err != nil || w.entropy.Int(8) == 7 {
		return // the actor of an unjournaled run is unknown, or the signal never comes
	}
	w.after(w.between(time.Millisecond, 8*time.Second), func() { w.sendSignal(owner.Actor, e.Run, event.Name) })
	w.maybeDecideTwice(owner.Actor, e.Run, event.Name)
}

// sendSignal answers a wait for a signal, as a person does.
func (w *Simulation) sendSignal(to actor.ID, run actor.CallID, name string) {
	text := "go on"
	if w.team != nil && w.team.Signal != nil {
		text = w.team.Signal(w.entropy, name)
	}
	w.sendSignalText(to, run, name, text)
}

// sendSignalText sends a signal with the payload text through a random node.
func (w *Simulation) sendSignalText(to actor.ID, run actor.CallID, name, text string) {
	n := w.drawNode()
	if n == nil {
		return
	}
	id := w.newCallID()
	payload := any(text)
	if w.team == nil && w.entropy.Int(4) == 3 {
		payload = [...]any{nil, "", 7, false, map[string]any{"a": []any{1, "b"}}, []string{text}}[w.entropy.Int(6)]
	}
	body := invariant.Must(json.Marshal(map[string]any{"name": name, "payload": payload}))
	signal, refusal := ingress.DecodeSignal(body)
	clear(body)
	if refusal != nil {
		w.fail(CodecRoundTrip, fmt.Sprintf("valid signal %s rejected: %v", name, refusal))
		return
	}
	call := actor.Call{ID: id, Root: id, Parent: run, To: to, Kind: actor.Signal, Operation: signal.Name, Parts: signal.Payload, Lane: actor.Normal, Left: 10 * time.Second,
		Attempt: 1, Principal: "person", Origin: actor.Human}
	w.log.note(w.now, "signal %s for run %s of %s", name, run.Short(), to)
	n.cells[w.entropy.Int(len(n.cells))].enqueue(input{orderGroup: unordered, in: runtime.Deliver{Envelope: actor.Envelope{To: to, Body: actor.Request{Call: call}}}})
}
