// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/store"
)

// Local calls. A call between two volatile actors of one cell, and its reply, are
// delivered within the same Step, without passing the driver's queue. The call is a call
// of a function: the turn of an idle callee runs until it ends or waits, and the caller goes
// on. Only first attempts take this path. A retry is sent like any other message, so it
// cannot overtake the original.

// localPerStepMax is the maximum number of local messages in one step. Further
// messages are sent through the driver. This bound keeps steps short and stacks flat.
const localPerStepMax = 64

// callLocally delivers a call in this step. It returns false if the call must be sent through
// the driver.
func (t *turn) callLocally(c *Cell, a *store.Asked) bool {
	if t.durable() || c.localSent >= localPerStepMax {
		return false
	}
	var epoch actor.Epoch
	to := c.actors.find(a.To)
	if to != nil { // an actor in memory belongs to this cell
		epoch = to.epoch
	} else if o, ok := c.ownerOf(a.To); ok && c.owns(o) {
		epoch = o.Epoch
	} else {
		return false
	}
	c.localSent++
	call := c.localCalls.next()
	t.run.Child(call, a, a.Clock.Remaining(c.now), 1)
	if c.emits(history.Send) {
		c.emit(history.Event{Kind: history.Send, Actor: t.act.id, Peer: a.To, Call: call.ID, What: "request", Attempt: 1,
			Left: call.Left, Chain: call.Chain, Parent: call.Parent})
	}
	if c.emits(history.Deliver) {
		c.emit(history.Event{Kind: history.Deliver, Actor: a.To, Epoch: epoch, Call: call.ID, What: "request"})
	}
	remote := c.remote
	c.remote = false
	to.deliverCallTo(c, call, false)
	c.remote = remote
	*call = actor.Call{}
	c.localCalls = append(c.localCalls, call)
	return true
}

// freeCalls are calls to be filled in. There are at most as many as calls of a chain.
type freeCalls []*actor.Call

func (f *freeCalls) next() *actor.Call {
	n := len(*f)
	if n == 0 {
		return &actor.Call{}
	}
	call := (*f)[n-1]
	*f = (*f)[:n-1]
	return call
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

// replyLocally delivers a reply in this step. The caller's turn continues once the turn that
// called it has made its other calls, or at the end of the step.
func (c *Cell) replyLocally(from actor.ID, to *activation, reply *actor.Reply) {
	c.localSent++
	if c.emits(history.Send) {
		c.emit(history.Event{Kind: history.Send, Actor: from, Peer: to.id, Call: reply.Call, What: "answered"})
	}
	if c.emits(history.Deliver) {
		c.emit(history.Event{Kind: history.Deliver, Actor: to.id, Epoch: to.epoch, Call: reply.Call, What: "answered"})
	}
	to.lastUsed = c.now
	c.markDirty(to)
	own := reply.Clone()
	remote := c.remote
	c.remote = false // no network may have duplicated this call, whatever the step handles
	to.answered(c, &own, false)
	c.remote = remote
}
