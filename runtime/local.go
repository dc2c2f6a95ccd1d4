// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/store"
)

// Calls that stay inside. What an actor that writes nothing down asks another of
// its cell, and what it hears from there, is taken in by the very step that said
// it: it goes by no ring, and no other input comes between. That is so for first
// attempts alone. One that is sent again goes by the world, as all else does, and
// so never overtakes the first.

// localPerStepMax bounds how many messages a step takes in that it sent itself. What
// is over that goes by the world, so that a step stays short.
const localPerStepMax = 64

// localMessage is a message that stays inside the cell.
type localMessage struct {
	epoch actor.Epoch
	to    *activation // nil: it is to be looked for
	call  actor.Call  // a request, if it has an id
	reply actor.Reply // else an answer
}

// enqueueLocal is a place for one more message that stays inside.
func (c *Cell) enqueueLocal(to *activation, epoch actor.Epoch) *localMessage {
	c.localSent++
	if n := len(c.localQueue); n < cap(c.localQueue) {
		c.localQueue = c.localQueue[:n+1]
	} else {
		c.localQueue = append(c.localQueue, localMessage{})
	}
	m := &c.localQueue[len(c.localQueue)-1]
	m.to, m.epoch = to, epoch
	return m
}

// sendLocalRequest has a call taken in by this step; false if it must go by the world.
func (c *Cell) sendLocalRequest(t *turn, a *store.Asked) bool {
	if t.durable() || c.localSent >= localPerStepMax {
		return false
	}
	var epoch actor.Epoch
	to := c.actors.find(a.To)
	switch {
	case to != nil: // so it lives here
		if epoch = to.epoch; to.durable {
			to = nil // it may leave before the message is taken in
		}
	default:
		o, ok := c.ownerOf(a.To)
		if !ok || !c.owns(o) {
			return false
		}
		epoch = o.Epoch
	}
	m := c.enqueueLocal(to, epoch)
	t.run.Child(&m.call, a, a.Clock.Remaining(c.now), 1)
	if call := &m.call; c.emits(history.Send) {
		c.emit(history.Event{Kind: history.Send, Actor: t.act.id, Peer: a.To, Call: call.ID, What: "request", Attempt: 1,
			Left: call.Left, Chain: call.Chain, Parent: call.Parent})
	}
	return true
}

// localCaller is the actor of this cell that made a call and waits for its answer, having
// asked once: who gets it from this step does not ask again. nil if it is not so.
func (c *Cell) localCaller(call *actor.Call, durable bool) *activation {
	caller, ok := call.Caller()
	if !ok || durable || call.Kind != actor.Waiting || c.localSent >= localPerStepMax {
		return nil
	}
	act := c.actors.find(caller)
	if act == nil || !act.loaded {
		return nil
	}
	if t, i := act.findAsk(call.ID); t == nil || !t.run.Last()[i].Open() || t.sends[i].attempt != 1 {
		return nil
	}
	return act
}

// sendLocalReply has an answer taken in by this step.
func (c *Cell) sendLocalReply(from actor.ID, to *activation, reply *actor.Reply) {
	c.enqueueLocal(to, to.epoch).reply = reply.Clone()
	if c.emits(history.Send) {
		c.emit(history.Event{Kind: history.Send, Actor: from, Peer: to.id, Call: reply.Call, What: "answered"})
	}
}

// deliverLocal takes in the messages that have stayed inside, and those which that
// brings about, once the actors that it touched have had their turns.
func (c *Cell) deliverLocal() {
	for i := 0; i < len(c.localQueue); i++ { // more may come
		m := &c.localQueue[i]
		if m.call.ID.IsZero() {
			to := m.to
			if c.emits(history.Deliver) {
				c.emit(history.Event{Kind: history.Deliver, Actor: to.id, Epoch: m.epoch, Call: m.reply.Call, What: "answered"})
			}
			to.lastUsed = c.now
			c.markDirty(to)
			c.answered(to, &m.reply, false)
		} else {
			if c.emits(history.Deliver) {
				c.emit(history.Event{Kind: history.Deliver, Actor: m.call.To, Epoch: m.epoch, Call: m.call.ID, What: "request"})
			}
			if m.to == nil {
				m.to = c.actors.find(m.call.To)
			}
			c.deliverCallTo(m.to, &m.call, false)
		}
		c.localQueue[i] = localMessage{}
	}
	c.localQueue = c.localQueue[:0]
}
