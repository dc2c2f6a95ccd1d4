// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"maps"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
)

// ClientsMax is the maximum number of clients that wait at one cell.
const ClientsMax = 1 << 16

// waiter is a client that waits at this cell for its call. Waiters are not
// persisted: a client whose node has crashed retries, by idempotency key or by run
// id.
type waiter struct {
	call    *actor.Call // of the input until the end of its step, then &kept
	kept    actor.Call
	clock   actor.Clock
	retryAt actor.Time
	backoff actor.Duration

	subscribed bool
}

// waiters are the clients that wait at this cell.
type waiters struct {
	byCall  map[actor.CallID]*waiter
	current *waiter // whose call arrived in this step and has no answer yet; not in byCall
	free    *waiter // reused for the next client
}

// fromClient handles a message from a client of this node: a call, or the
// cancellation of a call.
func (c *Cell) fromClient(env *actor.Envelope) {
	switch m := env.Body.(type) {
	case actor.Request:
		cl := c.waiters.next()
		cl.kept = m.Call
		c.waiters.call(c, &cl.kept, false)
	case actor.Cancel:
		c.send(actor.EffectID{}, 0, actor.ID{}, env.To, false, false, m)
	default:
		c.drop(env, "stranger")
	}
}

// visited handles a client's call without an envelope; see Visit.
func (c *Cell) visited(v *Visit) {
	if c.emits(history.Deliver) {
		c.emit(history.Event{Kind: history.Deliver, Actor: v.Call.To, Call: v.Call.ID, What: "request"})
	}
	c.waiters.call(c, &v.Call, v.Subscribed)
}

// next returns the waiter of the next client.
func (w *waiters) next() *waiter {
	if w.free == nil {
		w.free = &waiter{}
	}
	return w.free
}

// call takes the call of a client.
func (w *waiters) call(c *Cell, call *actor.Call, subscribed bool) {
	cl := w.next()
	cl.call = call
	if r := w.check(c, call); r != nil {
		c.addJitter(r)
		c.emit(history.Event{Kind: history.Refuse, Actor: call.To, Call: call.ID, Reason: r.Reason, Scope: r.Scope, Detail: r.Detail, Why: "client"})
		c.addEffect(Effect{ID: actor.EffectID{Run: call.ID}, Op: Respond{Call: call.ID, Reply: actor.Fail(call.ID, r)}})
		return
	}
	call.Via = c.self
	cl.clock, cl.backoff, cl.subscribed = actor.NewClock(c.now, cl.call.Left), c.limits.ResendAfter, subscribed
	w.current = cl
	if c.emits(history.Ask) {
		c.emit(history.Event{Kind: history.Ask, Call: call.ID, Root: call.ID, Peer: call.To, What: "client", Left: cl.call.Left})
	}
	w.send(c, cl)
}

// park keeps the client whose call arrived in this step if the call is still open. Most calls are answered in their first step and leave
// no state.
func (w *waiters) park(c *Cell) {
	cl := w.current
	if cl == nil {
		return
	}
	w.current, w.free = nil, nil
	if cl.call != &cl.kept {
		cl.kept = *cl.call
		cl.call = &cl.kept
	}
	w.byCall[cl.kept.ID] = cl
	c.setTimer(timer{at: min(cl.retryAt, cl.clock.Due()), call: cl.kept.ID})
}

// find returns the client that waits for the call, or nil.
func (w *waiters) find(id actor.CallID) *waiter {
	if cl := w.current; cl != nil && cl.call.ID == id {
		return cl
	}
	return w.byCall[id]
}

// check returns the reason to refuse a client's call, or nil. It fills in
// the defaults of fields left empty.
func (w *waiters) check(c *Cell, call *actor.Call) *actor.Refusal {
	switch {
	case !call.IsRoot():
		return actor.Refuse(actor.Invalid, "the call of a client must not have a chain")
	case call.Kind != actor.Waiting && call.Kind != actor.Signal:
		return actor.Refuse(actor.Invalid, "calls of kind %s are not supported", call.Kind)
	case actor.SizeOf(call.Parts) > c.limits.MessageBytesMax:
		return actor.Refuse(actor.Invalid, "the message has %d bytes, at most %d allowed", actor.SizeOf(call.Parts), c.limits.MessageBytesMax)
	case len(w.byCall) >= ClientsMax:
		return actor.RefuseBusy(actor.ScopeNode, c.limits.ResendAfter, "%d clients wait at this node", len(w.byCall))
	case len(w.byCall) > 0 && w.byCall[call.ID] != nil:
		return actor.Refuse(actor.Invalid, "call %s is already in progress", call.ID)
	case c.definitions.current(call.To.Agent) == nil && call.Kind != actor.Signal: // a run may outlive its agent
		return actor.AgentNotFound(call.To.Agent)
	}
	if call.Left <= 0 {
		call.Left = c.limits.RunTimeoutDefault
	}
	call.Left = min(call.Left, c.limits.RunTimeoutMax)
	call.Budget, call.Purse = c.limits.CallsPerTreeMax, c.rootPurse(c.definitions.current(call.To.Agent))
	call.Stamp, call.Attempt = c.now, max(call.Attempt, 1)
	if call.Operation == "" {
		call.Operation = actor.HandleMessageFull
	}
	if call.Lane == 0 {
		call.Lane = c.defaultLane(call)
	}
	return nil
}

// defaultLane returns the lane of a client's call that names none. A signal does not
// lower the priority of the call that it adds to its run.
func (v *env) defaultLane(call *actor.Call) actor.Lane {
	def := v.definitions.current(call.To.Agent)
	switch {
	case call.Kind == actor.Signal:
		return actor.High
	case def != nil && def.Lane != 0:
		return def.Lane
	}
	return actor.Normal
}

// send sends a client's call to its actor: within this step if the actor
// belongs to this cell, else as a message that is resent until it is answered.
func (w *waiters) send(c *Cell, cl *waiter) {
	cl.retryAt = actor.Forever
	act := c.actors.find(cl.call.To)
	if act != nil || c.ownsActor(cl.call.To) {
		call := cl.call
		if cl != w.current {
			attempt := *cl.call
			attempt.Left = cl.clock.Remaining(c.now)
			call = &attempt
			c.setTimer(timer{at: cl.clock.Due(), call: call.ID})
		}
		act.deliverCallTo(c, call, false)
		cl.call.Attempt++
		return
	}
	call := *cl.call
	call.Left = cl.clock.Remaining(c.now)
	c.send(actor.EffectID{}, call.Attempt, actor.ID{}, call.To, false, false, actor.Request{Call: call})
	cl.retryAt = c.now.Add(cl.backoff)
	cl.backoff = min(2*cl.backoff, resendBackoffMax)
	cl.call.Attempt++
	if cl != w.current {
		c.setTimer(timer{at: min(cl.retryAt, cl.clock.Due()), call: call.ID})
	}
}

// retryLater schedules another attempt of a client's call that was
// dropped. A call is dropped if its actor or outcome cannot be read, or if too many
// duplicates wait for outcomes.
func (w *waiters) retryLater(c *Cell, id actor.CallID) {
	if cl := w.find(id); cl != nil {
		cl.retryAt = c.now.Add(cl.backoff)
		cl.backoff = min(2*cl.backoff, resendBackoffMax)
		c.setTimer(timer{at: cl.retryAt, call: id})
	}
}

func (w *waiters) resend(c *Cell, to func(actor.ID) bool) {
	for _, id := range slices.SortedFunc(maps.Keys(w.byCall), actor.CallID.Compare) {
		if cl := w.byCall[id]; to(cl.call.To) {
			w.send(c, cl)
		}
	}
}

// fireTimer resends a client's call or, if its deadline has passed, answers
// the call with a refusal. The run itself ends by its own clock.
func (w *waiters) fireTimer(c *Cell, id actor.CallID) {
	cl := w.byCall[id]
	switch {
	case c.now >= cl.clock.Due():
		c.respond(id, actor.Fail(id, actor.RefuseDeadline(cl.call.To, cl.call.Operation, cl.call.Left)), 0, false)
	case c.now >= cl.retryAt:
		w.send(c, cl)
	default:
		c.setTimer(timer{at: min(cl.retryAt, cl.clock.Due()), call: id})
	}
}

// deliverToClient delivers a reply to a client of this cell, unless the client has
// left.
func (c *Cell) deliverToClient(env *actor.Envelope) {
	switch m := env.Body.(type) {
	case actor.Answered:
		if c.waiters.find(m.Reply.Call) != nil {
			c.respond(m.Reply.Call, m.Reply, 0, env.Durable)
			return
		}
	case actor.Held:
		if c.waiters.find(m.Call) != nil {
			c.respond(m.Call, actor.Reply{Call: m.Call, Run: m.Call}, m.Until, env.Durable)
			return
		}
	}
	c.drop(env, "late")
}

// notifyHeld notifies the waiting clients of a run that it is held, for instance
// for an approval, so that their requests can return early.
func (t *turn) notifyHeld(c *Cell, until actor.Time) {
	call := t.run.Call
	notify := func(id actor.CallID, via actor.Address) {
		if via.Node == c.self.Node && via.Cell == c.self.Cell {
			c.respond(id, actor.Reply{Call: id, Run: call.ID}, until, t.durable())
		} else if id == call.ID { // a duplicate from another node keeps waiting, because the message Held does not carry the run's id
			env := actor.Envelope{From: c.self, ToClient: via, Durable: t.durable(), Body: actor.Held{Call: id, N: t.run.Holds, Until: until, For: t.run.HeldFor(c.now)}}
			c.addEffect(Effect{Gated: t.durable() && via.Node != c.self.Node, Op: Send{Node: via.Node, Cell: via.Cell, Envelope: env}})
		}
	}
	notify(call.ID, call.Via)
	for _, a := range t.act.joined {
		if a.run == call.ID {
			notify(a.call, a.via)
		}
	}
}

// respond answers a waiting client and removes it. It does nothing if the client
// has left.
func (c *Cell) respond(id actor.CallID, reply actor.Reply, heldUntil actor.Time, durable bool) {
	switch cl := c.waiters.find(id); {
	case cl == nil:
		return
	case cl == c.waiters.current:
		c.waiters.current = nil
	default:
		delete(c.waiters.byCall, id)
	}
	c.addEffect(Effect{ID: actor.EffectID{Run: id}, Gated: durable, Op: Respond{Call: id, Reply: reply, HeldUntil: heldUntil}})
}
