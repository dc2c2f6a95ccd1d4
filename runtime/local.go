// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/internal/failpoint"
	"github.com/troupe-run/troupe/store"
)

// Local calls. A call between two actors of one cell, and its reply, are delivered within the
// same Step, without passing the driver's queue. The call is a call of a function: the turn of an
// idle volatile callee runs until it ends or waits, that of a journaled one begins at the end of the
// step, and the caller goes on. Only first attempts take this path. A retry is sent like any other
// message, so it cannot overtake the original.
//
// The entries of journaled actors that take part are those of one step, and so in one batch: a crash
// leaves all of them or none, and every gated effect of the step waits for all of them.

const (
	// localPerStepMax is the maximum number of local messages in one step. Further
	// messages are sent through the driver. This bound keeps steps short and stacks flat.
	localPerStepMax = 64
	// localBytesMax is the size in bytes of the contents of local messages from which further ones of a step are
	// sent through the driver if they depend on log entries. This bound keeps batches small.
	localBytesMax = 256 << 10
)

// localMessages are the messages that are delivered within a step.
type localMessages struct {
	sent  int       // number of them so far
	bytes int       // size in bytes of the contents of those that depend on log entries
	calls freeCalls // for further ones
}

// fits reports whether one more message fits the step. The argument durable reports whether it depends on log entries.
func (m *localMessages) fits(durable bool) bool {
	return m.sent < localPerStepMax && !(durable && m.bytes >= localBytesMax)
}

// add counts a message.
func (m *localMessages) add(parts []actor.Part, durable bool) {
	m.sent++
	if durable {
		m.bytes += actor.SizeOf(parts)
	}
}

// endStep begins to count anew.
func (m *localMessages) endStep() { m.sent, m.bytes = 0, 0 }

// mayRepeat reports whether a former step may have made the calls that the turn makes, and have panicked in a
// callee: then nothing has recorded the call. Such a turn sends its calls through the driver, so that they are recorded and
// the next panic counts against the same call, until it is poisoned.
func (t *turn) mayRepeat() bool { return t.restored || t.run.Call.Attempt > 1 }

// callLocally delivers a call in this step. It returns false if the call must be sent through
// the driver.
func (t *turn) callLocally(c *Cell, a *store.Asked) bool {
	durable := t.durable()
	if durable && t.mayRepeat() || !c.local.fits(durable) || c.failpoints.On(failpoint.SendNow) {
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
	call := c.local.calls.next()
	t.run.Child(call, a, a.Clock.Remaining(c.now), 1)
	c.local.add(call.Parts, durable)
	if c.emits(history.Send) {
		c.emit(history.Event{Kind: history.Send, Actor: t.act.id, Peer: a.To, Call: call.ID, What: "request", Attempt: 1, Durable: durable,
			Left: call.Left, Chain: call.Chain, Parent: call.Parent})
	}
	if c.emits(history.Deliver) {
		c.emit(history.Event{Kind: history.Deliver, Actor: a.To, Epoch: epoch, Call: call.ID, What: "request", Durable: durable})
	}
	remote := c.remote
	c.remote = false
	to.deliverCallTo(c, call, durable)
	c.remote = remote
	*call = actor.Call{}
	c.local.calls = append(c.local.calls, call)
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
//
// A reply that depends on log entries does not reach a turn that has depended on none so far, because the effects that
// the turn has requested in this step are not gated.
func (c *Cell) localCaller(call *actor.Call, durable bool) *activation {
	caller, ok := call.Caller()
	if !ok || call.Kind != actor.Waiting || !c.local.fits(durable) || c.failpoints.On(failpoint.SendNow) {
		return nil
	}
	act := c.actors.find(caller)
	if act == nil || !act.loaded {
		return nil
	}
	if t, i := act.findAsk(call.ID); t == nil || !t.run.Last()[i].Open() || t.sends[i].attempt != 1 || durable && !t.durable() {
		return nil
	}
	return act
}

// replyLocally delivers a reply in this step. The argument durable reports whether it depends on log
// entries. The caller's turn continues once the turn that called it has made its other calls, or at the end of the step.
func (c *Cell) replyLocally(from actor.ID, to *activation, reply *actor.Reply, durable bool) {
	c.local.add(reply.Parts, durable)
	if c.emits(history.Send) {
		c.emit(history.Event{Kind: history.Send, Actor: from, Peer: to.id, Call: reply.Call, What: "answered", Durable: durable})
	}
	if c.emits(history.Deliver) {
		c.emit(history.Event{Kind: history.Deliver, Actor: to.id, Epoch: to.epoch, Call: reply.Call, What: "answered", Durable: durable})
	}
	to.lastUsed = c.now
	c.markDirty(to)
	own := reply.Clone()
	remote := c.remote
	c.remote = false // no network may have duplicated this call, whatever the step handles
	to.answered(c, &own, durable)
	c.remote = remote
}
