// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/store"
)

// Local calls. A call between two volatile actors of one cell, and its reply, are
// delivered within the same Step, without passing the driver's queue. No other
// input is handled between them. Only first attempts take this path. A retry is
// sent like any other message, so it cannot overtake the original.

// localPerStepMax is the maximum number of local messages in one step. Further
// messages are sent through the driver. This bound keeps steps short.
const localPerStepMax = 64

// localMessage is a message delivered within the step.
type localMessage struct {
	epoch actor.Epoch
	to    *activation // nil: look the actor up on delivery
	call  actor.Call  // the request, if it has an id
	reply actor.Reply // the reply otherwise
}

// enqueueLocal returns space for another local message.
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

// sendLocalRequest queues a call for delivery in this step. It returns false if the
// call must be sent through the driver.
func (t *turn) sendLocalRequest(c *Cell, a *store.Asked) bool {
	if t.durable() || c.localSent >= localPerStepMax {
		return false
	}
	var epoch actor.Epoch
	to := c.actors.find(a.To)
	switch {
	case to != nil: // an actor in memory belongs to this cell
		if epoch = to.epoch; to.durable {
			to = nil // it may be deactivated before the delivery
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

// localCaller returns the caller if it is an actor of this cell that waits for the
// reply to its first attempt. Otherwise it returns nil. A caller that gets the
// reply in this step does not retry.
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

// sendLocalReply queues a reply for delivery in this step.
func (c *Cell) sendLocalReply(from actor.ID, to *activation, reply *actor.Reply) {
	c.enqueueLocal(to, to.epoch).reply = reply.Clone()
	if c.emits(history.Send) {
		c.emit(history.Event{Kind: history.Send, Actor: from, Peer: to.id, Call: reply.Call, What: "answered"})
	}
}

// deliverLocal delivers the queued local messages, including those queued during
// delivery.
func (c *Cell) deliverLocal() {
	c.remote = false
	for i := 0; i < len(c.localQueue); i++ { // deliveries may append
		m := &c.localQueue[i]
		if m.call.ID.IsZero() {
			to := m.to
			if c.emits(history.Deliver) {
				c.emit(history.Event{Kind: history.Deliver, Actor: to.id, Epoch: m.epoch, Call: m.reply.Call, What: "answered"})
			}
			to.lastUsed = c.now
			c.markDirty(to)
			to.answered(c, &m.reply, false)
		} else {
			if c.emits(history.Deliver) {
				c.emit(history.Event{Kind: history.Deliver, Actor: m.call.To, Epoch: m.epoch, Call: m.call.ID, What: "request"})
			}
			if m.to == nil {
				m.to = c.actors.find(m.call.To)
			}
			m.to.deliverCallTo(c, &m.call, false)
		}
		c.localQueue[i] = localMessage{}
	}
	c.localQueue = c.localQueue[:0]
}
