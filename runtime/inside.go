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
	call  actor.Call  // a request
	to    *activation // of an answer: who waits for it
	reply actor.Reply // an answer
}

// stays tells whether a message to an actor may stay inside, and under which epoch.
func (c *Cell) stays(to actor.ID) (actor.Epoch, bool) {
	if c.stayed >= insidePerStep {
		return 0, false
	}
	o, ok := c.ownerOf(to)
	return o.Epoch, ok && c.mine(o)
}

// keepInside is a place for one more message that stays inside.
func (c *Cell) keepInside(epoch actor.Epoch) *inside {
	c.stayed++
	if n := len(c.inside); n < cap(c.inside) {
		c.inside = c.inside[:n+1]
	} else {
		c.inside = append(c.inside, inside{})
	}
	m := &c.inside[len(c.inside)-1]
	m.epoch = epoch
	return m
}

// askInside has a call taken in by this step; false if it must go by the world.
func (c *Cell) askInside(t *turn, a *store.Asked) bool {
	if t.durable() {
		return false
	}
	epoch, ok := c.stays(a.To)
	if !ok {
		return false
	}
	m := c.keepInside(epoch)
	t.run.Child(&m.call, a, a.Clock.Now(c.now), 1)
	if call := &m.call; c.hears(history.Send) {
		c.event(history.Event{Kind: history.Send, Actor: t.act.id, Peer: a.To, Call: call.ID, What: "request", Attempt: 1,
			Left: call.Left, Chain: call.Chain, Parent: call.Parent})
	}
	return true
}

// waits is the actor of this cell that made a call and waits for its answer, having
// asked once: who gets it from this step does not ask again. nil if it is not so.
func (c *Cell) waits(call *actor.Call, durable bool) (*activation, actor.Epoch) {
	caller, ok := call.Caller()
	if !ok || durable || call.Kind != actor.Waiting {
		return nil, 0
	}
	epoch, ok := c.stays(caller)
	if !ok {
		return nil, 0
	}
	act := c.actors.find(caller)
	if act == nil || !act.loaded {
		return nil, 0
	}
	if t, i := act.asked(call.ID); t == nil || !t.run.Last()[i].Open() || t.sent[i].attempt != 1 {
		return nil, 0
	}
	return act, epoch
}

// answerInside has an answer taken in by this step.
func (c *Cell) answerInside(from actor.ID, to *activation, epoch actor.Epoch, reply *actor.Reply) {
	m := c.keepInside(epoch)
	m.to, m.reply = to, reply.Clone()
	if c.hears(history.Send) {
		c.event(history.Event{Kind: history.Send, Actor: from, Peer: to.id, Call: reply.Call, What: "answered"})
	}
}

// takeInside takes in the messages that have stayed inside, and those which that
// brings about, once the actors that it touched have had their turns.
func (c *Cell) takeInside() {
	for i := 0; i < len(c.inside); i++ { // more may come
		m := &c.inside[i]
		if to := m.to; to != nil {
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
			c.localCall(&m.call, false)
		}
		c.inside[i] = inside{}
	}
	c.inside = c.inside[:0]
}
