// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/store"
)

// perform appends the entries of a step and then performs its effects. Gated
// effects wait for the log.
func (c *cell) perform(ready runtime.Ready, end uint64) {
	if c.isImmediate(&ready) {
		c.acknowledgeResult()
		for i := range ready.Effects {
			c.performNow(&ready.Effects[i])
		}
		return
	}
	c.registerWaiter() // the answer may come from the log's goroutine
	var gated []func()
	var published []actor.CallID // runs with new events in the log; the sync finds those that are watched
	changed := changedSessionsOf(ready.Entries)
	c.logNotices(ready.Entries)
	trace, self := &c.engine.tracing, c.core.Self()
	now := make([]func(), 0, len(ready.Effects))
	for _, e := range ready.Effects {
		if p, ok := e.Op.(runtime.Publish); ok && e.Gated && !trace.enabled() {
			published = append(published, p.Event.Run)
			continue
		}
		fn := c.prepare(e)
		if trace.enabled() {
			fn = trace.wrapEffect(c, e, end, fn)
		}
		if e.Gated {
			gated = append(gated, fn)
		} else {
			now = append(now, fn)
		}
	}
	if len(ready.Entries) > 0 || len(gated) > 0 || len(published) > 0 {
		c.engine.config.Log.Commit(ready.Entries, func() {
			if trace.enabled() {
				trace.recordSync(self, c.engine.clock.now(), end)
			}
			c.engine.watchers.notify(published...)
			c.engine.watchers.notifySessions(&changed)
			for _, fn := range gated {
				fn()
			}
		})
	}
	c.acknowledgeResult()
	for _, fn := range now {
		fn()
	}
}

// isImmediate reports whether all output of a step can be performed at once and
// in order.
func (c *cell) isImmediate(ready *runtime.Ready) bool {
	if len(ready.Entries) > 0 || c.engine.tracing.enabled() {
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

// performNow performs an effect of an immediate step.
func (c *cell) performNow(e *runtime.Effect) {
	switch op := e.Op.(type) {
	case runtime.Send:
		c.send(&op)
	case runtime.Respond:
		if w := c.waiter; w != nil && w.request.Call.ID == op.Call {
			c.waiter = nil
			w.resolve(Answer{op.Reply, op.HeldUntil, e.Gated})
		} else {
			c.engine.clients.respond(op, e.Gated)
		}
	case runtime.Publish:
		c.engine.watchers.notify(op.Event.Run)
	}
}

// acknowledgeResult marks the effect result being stepped as processed. The
// result will not be stepped again, even if this incarnation fails.
func (c *cell) acknowledgeResult() {
	if c.stepping == nil {
		return
	}
	key := c.stepping.key()
	select {
	case c.effects[key].acknowledged <- struct{}{}:
	default: // the effect's time was over, so its goroutine no longer waits
	}
	if _, whole := c.stepping.input.(runtime.Outcome); whole {
		c.abort(key)
	}
	c.stepping = nil
}

func (c *cell) recordEvents(events []history.Event, entries []store.Entry) {
	for i := range events {
		c.tally.recordEvent(&events[i])
		c.engine.logEvent(&events[i], entries)
	}
}

// prepare returns a function that performs an effect. That function may be
// called at once or on the log's goroutine.
func (c *cell) prepare(e runtime.Effect) func() {
	switch op := e.Op.(type) {
	case runtime.Send:
		return func() { c.send(&op) }
	case runtime.Respond:
		return func() { c.engine.clients.respond(op, e.Gated) }
	case runtime.Joined:
		return func() { c.engine.clients.notifyJoined(op.Call, op.Run) }
	case runtime.Publish:
		return func() { c.engine.watchers.notify(op.Event.Run) }
	case runtime.Tool:
		return c.prepareEffect(e, actor.AskTool, op.Left, c.tool(e.ID, e.Attempt, op))
	case runtime.Work:
		return c.prepareEffect(e, actor.AskWork, op.Left, work(op))
	case runtime.Model:
		return c.prepareEffect(e, actor.AskModel, op.Left, c.model(op))
	case runtime.Invoke:
		return c.prepareInvoke(e, op)
	case runtime.Adjust:
		return func() { c.adjust(effectKey{e.ID, e.Attempt}, op.Left) }
	case runtime.Abort:
		return func() { c.abort(effectKey{e.ID, e.Attempt}) }
	case runtime.Await:
		return func() { c.await(effectKey{e.ID, e.Attempt}) }
	case runtime.Load:
		return c.read(func(found func(runtime.Input)) { c.engine.load(op, found) })
	case runtime.Expiries:
		return c.read(func(found func(runtime.Input)) { c.engine.findDue(op.Shards, found) })
	case runtime.MayForget:
		return c.checkForget(op)
	case runtime.Forgot:
		return func() { c.engine.forgetting.end(op) }
	default:
		panic(fmt.Sprintf("engine: unknown effect %T", op))
	}
}

// send delivers a message to a cell. The envelope has no other reference, so it is not copied.
func (c *cell) send(op *runtime.Send) {
	e := c.engine
	if op.Node != e.config.Node && e.config.Peers != nil {
		e.config.Peers.Send(op.Node, op.Cell, &op.Envelope)
		return
	}
	if op.Node != e.config.Node || int(op.Cell) >= len(e.cells) {
		// The message is addressed to a cell of an earlier start, in which the node had
		// more cells. No cell waits for it now.
		e.log.Debug("dropped a message to an unknown cell", "node", string(op.Node), "cell", op.Cell)
		return
	}
	c.mailbox.markPeer(op.Cell)
	if len(c.overflow[op.Cell]) == 0 && e.cells[op.Cell].mailbox.pushFrom(c.n, &op.Envelope) {
		return
	}
	c.overflow[op.Cell] = append(c.overflow[op.Cell], op.Envelope)
	if c.overflowCount.Add(1) > overflowMax {
		panic(fmt.Sprintf("cell %d has more than %d undelivered messages", c.n, overflowMax))
	}
}

// flushOverflow delivers the messages that found a queue full, in order.
func (c *cell) flushOverflow() {
	if c.overflowCount.Load() == 0 {
		return
	}
	for to := range c.overflow {
		for len(c.overflow[to]) > 0 && c.engine.cells[to].mailbox.pushFrom(c.n, &c.overflow[to][0]) {
			c.mailbox.markPeer(uint16(to))
			c.overflow[to][0] = actor.Envelope{}
			c.overflow[to] = c.overflow[to][1:]
			c.overflowCount.Add(-1)
		}
	}
}
