// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
)

// deliver routes a message, in this order: a reply to a waiting client, a request
// of a client, a message to an actor. A message to an actor is delivered only if
// the cell owns the actor under the epoch given by the sender. Otherwise the
// message is dropped.
func (c *Cell) deliver(env *actor.Envelope) {
	if c.emits(history.Deliver) {
		c.emit(history.Event{Kind: history.Deliver, Actor: env.To, Epoch: env.Epoch, Call: env.Body.Subject(), What: env.Body.Name(), Durable: env.Durable})
	}
	if !env.ToClient.IsZero() {
		c.deliverToClient(env)
		return
	}
	if env.From.IsZero() {
		c.fromClient(env)
		return
	}
	o, ok := c.ownerOf(env.To)
	if !ok || !c.owns(o) || o.Epoch != env.Epoch {
		c.drop(env, "epoch")
		return
	}
	c.remote = env.From.Node != c.self.Node
	c.deliverToActor(env)
}

// deliverToActor delivers a message to an actor of this cell.
func (c *Cell) deliverToActor(env *actor.Envelope) {
	if m, ok := env.Body.(actor.Request); ok {
		c.deliverCall(&m.Call, env.Durable)
		return
	}
	act := c.actors.find(env.To)
	if _, cancels := env.Body.(actor.Cancel); cancels && act == nil && !c.isClosed(env.To) && c.actors.count < c.limits.ActorsPerCellMax {
		act = c.activate(env.To, journaled(c.definitions.current(env.To.Agent)) || c.definitions.journaled[env.To.Agent]) // a run may outlive its agent, or its durability
	}
	switch {
	case act == nil:
		c.drop(env, "late")
	case act.loaded:
		act.receive(c, env)
	default:
		act.deferMessage(c, env)
	}
}

// deliverCall delivers a call to an actor of this cell. It activates the actor if
// it is not in memory.
func (c *Cell) deliverCall(call *actor.Call, durable bool) {
	c.actors.find(call.To).deliverCallTo(c, call, durable)
}

// deliverCallTo is deliverCall for an actor that was looked up before. The argument
// act is nil if the actor is not in memory.
func (act *activation) deliverCallTo(c *Cell, call *actor.Call, durable bool) {
	if act == nil {
		def := c.definitions.current(call.To.Agent)
		switch {
		case c.isClosed(call.To):
			c.refuseClosed(call)
			return
		case def == nil && call.Attempt <= 1 && call.Kind != actor.Signal: // retries and signals pass: the journal may hold the outcome of a retried call, and a run may outlive its agent
			c.refuse(call, actor.AgentNotFound(call.To.Agent))
			return
		case c.actors.count >= c.limits.ActorsPerCellMax && call.Attempt > 1: // dropped, not refused: the call may have been answered, and its caller retries
			c.emit(history.Event{Kind: history.Drop, Actor: call.To, Call: call.ID, What: "request", Why: "full"})
			return
		case c.actors.count >= c.limits.ActorsPerCellMax:
			c.refuse(call, actor.RefuseBusy(actor.ScopeNode, c.limits.ResendAfter, "this cell already holds %d actors", c.actors.count))
			return
		}
		// The log may hold runs and outcomes from a time when the agent was journaled.
		act = c.activate(call.To, journaled(def) || c.definitions.journaled[call.To.Agent])
	} else if !act.durable && len(act.journal.Runs) == 0 {
		if def := c.definitions.current(call.To.Agent); def != nil && journaled(def) { // the agent was volatile before
			act = act.loadIdle(c, false)
		}
	}
	if !act.loaded {
		act.deferCall(c, call, durable)
		return
	}
	act.ensureActive(c)
	act.lastUsed = c.now
	c.markDirty(act)
	admission{c, act}.request(call, durable)
}

// deferMessage keeps a cancel until its actor is loaded. Replies and clock updates are
// dropped: once loaded, the actor resends its calls, and their callees send these
// messages again. So are probes: the loaded actor sends its own, see restoredCalls.
func (act *activation) deferMessage(c *Cell, env *actor.Envelope) {
	switch _, cancels := env.Body.(actor.Cancel); {
	case !cancels:
		c.drop(env, "loading")
	case len(act.deferred) >= 2*c.limits.MaxPendingPerActor:
		c.drop(env, "full")
	default:
		act.deferred = append(act.deferred, *env)
	}
}

func (act *activation) deferCall(c *Cell, call *actor.Call, durable bool) {
	switch full := len(act.deferred) >= c.limits.MaxPendingPerActor; {
	case full && call.Attempt > 1: // dropped, not refused: the log may hold the run of the call, and its caller retries
		c.emit(history.Event{Kind: history.Drop, Actor: act.id, Call: call.ID, What: "request", Why: "full"})
	case full:
		c.refuse(call, actor.RefuseBusy(actor.ScopeCallee, c.limits.ResendAfter, "%s is being loaded, and %d messages already wait", act.id, len(act.deferred)))
	default:
		act.deferred = append(act.deferred, actor.Envelope{To: act.id, Durable: durable, Body: actor.Request{Call: *call}})
	}
}

// receive handles a message for a loaded actor.
func (act *activation) receive(c *Cell, env *actor.Envelope) {
	act.ensureActive(c)
	act.lastUsed = c.now
	c.markDirty(act)
	switch m := env.Body.(type) {
	case actor.Request:
		admission{c, act}.request(&m.Call, env.Durable)
	case actor.Answered:
		act.answered(c, &m.Reply, env.Durable)
	case actor.Cancel:
		act.cancelled(c, m)
	case actor.Held:
		act.updateHold(c, env, m.Call, m.N, m.Until, m.For)
	case actor.Resumed:
		act.updateHold(c, env, m.Call, m.N, 0, actor.Hold{})
	case actor.Open:
		act.updateHold(c, env, m.Call, m.N, m.Until, m.For)
	case actor.Probe:
		waitCycle{c, act}.handleProbe(m)
	}
}

func (c *Cell) drop(env *actor.Envelope, reason string) {
	c.emit(history.Event{Kind: history.Drop, Actor: env.To, Call: env.Body.Subject(), What: env.Body.Name(), Why: reason})
}

// send sends a message to the cell that owns the actor. Without an owner the
// message is dropped, and its sender retries. Within the node no gate is needed:
// entries that depend on the message follow the sender's entries in the same log.
func (c *Cell) send(id actor.EffectID, attempt uint32, from actor.ID, to actor.ID, gated, durable bool, body actor.Message) {
	o, ok := c.ownerOf(to)
	if !ok {
		return
	}
	env := actor.Envelope{From: c.self, To: to, Epoch: o.Epoch, Durable: durable, Body: body}
	if c.emits(history.Send) {
		e := history.Event{Kind: history.Send, Actor: from, Peer: to, Call: body.Subject(), What: body.Name(), Attempt: attempt, Durable: durable}
		if r, ok := body.(actor.Request); ok {
			e.Left, e.Chain, e.Parent = r.Call.Left, r.Call.Chain, r.Call.Parent
		}
		c.emit(e)
	}
	c.addEffect(Effect{ID: id, Attempt: attempt, Gated: gated && o.Node != c.self.Node,
		Op: Send{Node: o.Node, Cell: o.Cell, Envelope: env}})
}
