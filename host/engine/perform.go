// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runtime"
)

// perform appends, then hands over. Gated effects wait for the log.
func (c *cell) perform(ready runtime.Ready, end uint64) {
	if c.light(&ready) {
		c.taken()
		for i := range ready.Effects {
			c.hand(&ready.Effects[i])
		}
		return
	}
	c.list() // the answer may come from the log's goroutine
	var gated []func()
	trace, self := &c.engine.tracing, c.core.Self()
	now := make([]func(), 0, len(ready.Effects))
	for _, e := range ready.Effects {
		do := c.prepare(e)
		if trace.on() {
			do = trace.left(c, e, end, do)
		}
		if e.Gated {
			gated = append(gated, do)
		} else {
			now = append(now, do)
		}
	}
	if len(ready.Entries) > 0 || len(gated) > 0 {
		c.engine.config.Log.Commit(ready.Entries, func() {
			if trace.on() {
				trace.durable(self, c.engine.clock.now(), end)
			}
			for _, do := range gated {
				do()
			}
		})
	}
	c.taken()
	for _, do := range now {
		do()
	}
}

// light tells whether all that a step wants can be done at once, in its order.
func (c *cell) light(ready *runtime.Ready) bool {
	if len(ready.Entries) > 0 || c.engine.tracing.on() {
		return false
	}
	for i := range ready.Effects {
		e := &ready.Effects[i]
		if e.Gated {
			return false
		}
		switch e.Op.(type) {
		case runtime.Send, runtime.Respond, runtime.Publish:
		default:
			return false
		}
	}
	return true
}

// hand does what is light.
func (c *cell) hand(e *runtime.Effect) {
	switch op := e.Op.(type) {
	case runtime.Send:
		c.send(&op)
	case runtime.Respond:
		if w := c.asker; w != nil && w.visit.Call.ID == op.Call {
			c.asker = nil
			w.give(Answer{op.Reply, op.HeldUntil, e.Gated})
		} else {
			c.engine.clients.respond(op, e.Gated)
		}
	case runtime.Publish:
		c.engine.watchers.publish(op.Event.Run)
	}
}

// taken notes that what came of an effect was taken in: it is not, once more,
// whatever becomes of this incarnation.
func (c *cell) taken() {
	if c.taking == nil {
		return
	}
	key := c.taking.key()
	select {
	case c.effects[key].taken <- struct{}{}:
	default: // its time was over before: nobody waits to hear it
	}
	if _, whole := c.taking.input.(runtime.Outcome); whole {
		c.abort(key)
	}
	c.taking = nil
}

func (c *cell) tell(events []history.Event) {
	for i := range events {
		c.tally.event(&events[i])
		c.engine.tell(&events[i])
	}
}

// prepare is an effect as something to do: now, or on the log's goroutine.
func (c *cell) prepare(e runtime.Effect) func() {
	switch op := e.Op.(type) {
	case runtime.Send:
		return func() { c.send(&op) }
	case runtime.Respond:
		return func() { c.engine.clients.respond(op, e.Gated) }
	case runtime.Joined:
		return func() { c.engine.clients.join(op.Call, op.Run) }
	case runtime.Publish:
		return func() { c.engine.watchers.publish(op.Event.Run) }
	case runtime.Tool:
		return c.effect(e, actor.AskTool, op.Left, c.tool(op))
	case runtime.Work:
		return c.effect(e, actor.AskWork, op.Left, work(op))
	case runtime.Model:
		return c.effect(e, actor.AskModel, op.Left, c.model(op))
	case runtime.Invoke:
		return c.effect(e, actor.AskInvoke, op.Left, c.invoke(op))
	case runtime.Abort:
		return func() { c.abort(effectKey{e.ID, e.Attempt}) }
	case runtime.Await:
		return func() { c.await(effectKey{e.ID, e.Attempt}) }
	case runtime.Load:
		return c.read(func(found func(runtime.Input)) { c.engine.load(op, found) })
	case runtime.Expiries:
		return c.read(func(found func(runtime.Input)) { c.engine.expiries(op.Shards, found) })
	default:
		panic(fmt.Sprintf("engine: cannot do %T", op))
	}
}

// send carries a message to a cell of this node. Nobody else holds any of it, so
// it goes as it is.
func (c *cell) send(op *runtime.Send) {
	e := c.engine
	if op.Node != e.config.Node || int(op.Cell) >= len(e.cells) {
		// An address of an earlier start, when there were other cells: who waited there waits no more.
		e.log.Debug("a message for a cell that is not here", "node", string(op.Node), "cell", op.Cell)
		return
	}
	c.mailbox.note(op.Cell)
	if len(c.spill[op.Cell]) == 0 && e.cells[op.Cell].mailbox.pushFrom(c.n, &op.Envelope) {
		return
	}
	c.spill[op.Cell] = append(c.spill[op.Cell], op.Envelope)
	if c.spilled.Add(1) > spillMax {
		panic(fmt.Sprintf("cell %d has %d messages that find no room", c.n, spillMax))
	}
}

// flush hands over what found no room before, in order.
func (c *cell) flush() {
	if c.spilled.Load() == 0 {
		return
	}
	for to := range c.spill {
		for len(c.spill[to]) > 0 && c.engine.cells[to].mailbox.pushFrom(c.n, &c.spill[to][0]) {
			c.mailbox.note(uint16(to))
			c.spill[to][0] = actor.Envelope{}
			c.spill[to] = c.spill[to][1:]
			c.spilled.Add(-1)
		}
	}
}
