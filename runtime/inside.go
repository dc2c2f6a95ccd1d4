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

// insidePerStep bounds how many messages a step takes in that it sent itself. What
// is over that goes by the world, so that a step stays short.
const insidePerStep = 64

// inside is a message that stays inside the cell.
type inside struct {
	epoch actor.Epoch
	to    *activation // nil: it is to be looked for
	call  actor.Call  // a request, if it has an id
	reply actor.Reply // else an answer
}

// keepInside is a place for one more message that stays inside.
func (c *Cell) keepInside(to *activation, epoch actor.Epoch) *inside {
	c.stayed++
	if n := len(c.inside); n < cap(c.inside) {
		c.inside = c.inside[:n+1]
	} else {
		c.inside = append(c.inside, inside{})
	}
	m := &c.inside[len(c.inside)-1]
	m.to, m.epoch = to, epoch
	return m
}

// askInside has a call taken in by this step; false if it must go by the world.
func (c *Cell) askInside(t *turn, a *store.Asked) bool {
	if t.durable() || c.stayed >= insidePerStep {
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
		if !ok || !c.mine(o) {
			return false
		}
		epoch = o.Epoch
	}
	m := c.keepInside(to, epoch)
	t.run.Child(&m.call, a, a.Clock.Remaining(c.now), 1)
	if call := &m.call; c.hears(history.Send) {
		c.event(history.Event{Kind: history.Send, Actor: t.act.id, Peer: a.To, Call: call.ID, What: "request", Attempt: 1,
			Left: call.Left, Chain: call.Chain, Parent: call.Parent})
	}
	return true
}

// waits is the actor of this cell that made a call and waits for its answer, having
// asked once: who gets it from this step does not ask again. nil if it is not so.
func (c *Cell) waits(call *actor.Call, durable bool) *activation {
	caller, ok := call.Caller()
	if !ok || durable || call.Kind != actor.Waiting || c.stayed >= insidePerStep {
		return nil
	}
	act := c.actors.find(caller)
	if act == nil || !act.loaded {
		return nil
	}
	if t, i := act.asked(call.ID); t == nil || !t.run.Last()[i].Open() || t.sent[i].attempt != 1 {
		return nil
	}
	return act
}

// answerInside has an answer taken in by this step.
func (c *Cell) answerInside(from actor.ID, to *activation, reply *actor.Reply) {
	c.keepInside(to, to.epoch).reply = reply.Clone()
	if c.hears(history.Send) {
		c.event(history.Event{Kind: history.Send, Actor: from, Peer: to.id, Call: reply.Call, What: "answered"})
	}
}

// takeInside takes in the messages that have stayed inside, and those which that
// brings about, once the actors that it touched have had their turns.
func (c *Cell) takeInside() {
	for i := 0; i < len(c.inside); i++ { // more may come
		m := &c.inside[i]
		if m.call.ID.IsZero() {
			to := m.to
			if c.hears(history.Deliver) {
				c.event(history.Event{Kind: history.Deliver, Actor: to.id, Epoch: m.epoch, Call: m.reply.Call, What: "answered"})
			}
			to.used = c.now
			c.touch(to)
			c.answered(to, &m.reply, false)
		} else {
			if c.hears(history.Deliver) {
				c.event(history.Event{Kind: history.Deliver, Actor: m.call.To, Epoch: m.epoch, Call: m.call.ID, What: "request"})
			}
			if m.to == nil {
				m.to = c.actors.find(m.call.To)
			}
			c.callOf(m.to, &m.call, false)
		}
		c.inside[i] = inside{}
	}
	c.inside = c.inside[:0]
}
