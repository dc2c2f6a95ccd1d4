// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	proto "github.com/asynkron/protoactor-go/actor"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runtime"
)

const (
	// overflowMax is the maximum number of messages of a cell that wait for full
	// queues. A cell that exceeds it is restarted.
	overflowMax = 1 << 20
	// timedSteps is the sampling interval of step times: one step in timedSteps
	// is timed, because timing costs a good part of a step. The watchdog
	// detects slow steps among the untimed steps.
	timedSteps = 8
	// failureCountsMax is the maximum number of calls whose cell failures are
	// counted. Beyond it the count of the oldest call is dropped.
	failureCountsMax = 1024
)

// cell runs the successive incarnations of one runtime.Cell. Fields without a
// lock are accessed only by the goroutine that holds the cell.
type cell struct {
	engine        *Engine
	turnover      turnover // of the queue
	n             uint16
	mailbox       *mailbox
	worker        *worker
	watchdog      *watchdog
	timer         *time.Timer
	stopped       chan struct{}
	overflowCount atomic.Int64
	tally         tally
	shrinkage     shrinkage // of the number of actors

	core          *runtime.Cell
	incarnation   uint64
	timerAt       actor.Time // time the timer is set to; 0 means unset
	effects       map[effectKey]*effect
	failureCounts []runtime.Strike
	overflow      [][]actor.Envelope // messages whose queue was full, by destination cell
	stepping      *completion        // effect result being stepped
	clientCall    actor.CallID       // client call being stepped
	waiter        *waiter            // waiter of that call, while it is not in the clients table
	request       runtime.Visit      // buffer for a client call that came through the queue
}

func newCell(e *Engine, n uint16) *cell {
	c := &cell{engine: e, n: n, worker: newWorker(), stopped: make(chan struct{}),
		effects: map[effectKey]*effect{}, overflow: make([][]actor.Envelope, e.config.Cells)}
	c.tally.measures, c.tally.calls.took.bounds = e.labels.newMeasures(), command.DurationBounds
	c.watchdog = newWatchdog(n, e.log, e.clock, &c.tally)
	c.mailbox = newMailbox(n, e.config.QueueSlots, &e.coroutines)
	c.timer = time.AfterFunc(time.Hour, c.mailbox.wake)
	c.timer.Stop()
	return c
}

func (c *cell) name() string { return fmt.Sprintf("cell-%d", c.n) }

// props returns the properties of the cell's protoactor actor. protoactor
// creates a new actor value for each incarnation; all of them share c.
func (c *cell) props() *proto.Props {
	return proto.PropsFromProducer(func() proto.Actor { return proto.ReceiveFunc(c.receive) },
		proto.WithMailbox(func() proto.Mailbox { return c.mailbox }),
		proto.WithDispatcher(c.worker))
}

// awaitStop waits until the cell has stopped or ctx ends. It reports whether
// the cell has stopped.
func (c *cell) awaitStop(ctx context.Context) bool {
	select {
	case <-c.stopped:
	case <-ctx.Done():
	}
	select {
	case <-c.stopped:
		return true
	default:
		return false
	}
}

func (c *cell) receive(ctx proto.Context) {
	switch m := ctx.Message().(type) {
	case *waiter:
		c.waiter = m
		c.stepRequest(&m.request)
		c.armTimer()
	case *runtime.Deliver:
		c.deliver(m)
	case completion:
		c.handleCompletion(m)
	case tickMessage:
		c.flushOverflow()
		c.timerAt = 0
		if at, ok := c.core.NextDeadline(); ok && at <= c.engine.clock.now() {
			c.step(runtime.Tick{})
		}
		c.armTimer()
	case *proto.Started:
		c.startIncarnation()
	case *proto.Restarting:
		c.failIncarnation()
	case *proto.Stopping:
		c.shutdown()
	case *proto.Stopped:
		close(c.stopped)
	}
}

// startIncarnation starts the next incarnation, under an epoch that was never
// used before.
func (c *cell) startIncarnation() {
	e := c.engine
	var seed [8]byte
	crand.Read(seed[:]) //nolint:errcheck // never fails
	c.incarnation++
	self := actor.Address{Node: e.config.Node, Cell: c.n, Incarnation: uint64(epochOf(e.config.Start, c.incarnation))}
	c.core = runtime.NewCell(runtime.Config{Self: self, Cells: e.config.Cells, Seed: binary.LittleEndian.Uint64(seed[:]), Tools: e.config.Tools,
		EventKinds: e.eventKinds(), PublishOnDemand: true, Spending: e.config.Spending, Routing: e.config.Routing})
	c.timerAt = 0
	c.tally.startIncarnation(c.incarnation)
	restarted := c.incarnation > 1
	table := e.claim(self, c.incarnation)
	boot := runtime.Boot{Strikes: slices.Clone(c.failureCounts)}
	for key := range c.effects {
		boot.Running = append(boot.Running, key.id)
	}
	c.step(runtime.Limits{Limits: e.config.Limits})
	c.updateAgents()
	c.step(runtime.Owners{Table: table})
	c.step(boot)
	if restarted {
		e.log.Warn("cell restarted", "cell", c.n, "incarnation", c.incarnation)
		for _, call := range e.clients.deliveredTo(c.n, e.clock.now()) {
			c.request.Call = call
			c.stepRequest(&c.request)
		}
	}
	c.armTimer()
}

// failIncarnation cleans up after an incarnation that failed, and counts the
// failure against the call that caused it. The messages that the incarnation
// had not delivered are dropped. A cell that waits for the answer to such a
// message sends the message again on its next retry.
func (c *cell) failIncarnation() {
	c.watchdog.end()
	for i := range c.overflow {
		c.overflow[i] = nil
	}
	c.overflowCount.Store(0)
	c.registerWaiter()
	c.engine.clients.recordFailure(c.clientCall)
	c.clientCall = actor.CallID{}
	for _, f := range c.effects {
		f.awaited = false
	}
	if c.stepping != nil {
		f := c.effects[c.stepping.key()]
		f.unclaimed = slices.Insert(f.unclaimed, 0, *c.stepping)
		c.stepping = nil
	}
	if c.core == nil {
		return
	}
	call := c.core.FaultingCall()
	runIsolated(c.core.Abandon)
	if call.IsZero() {
		return
	}
	i := slices.IndexFunc(c.failureCounts, func(s runtime.Strike) bool { return s.Call == call })
	if i < 0 {
		if len(c.failureCounts) == failureCountsMax {
			c.failureCounts = slices.Delete(c.failureCounts, 0, 1)
		}
		c.failureCounts = append(c.failureCounts, runtime.Strike{Call: call})
		i = len(c.failureCounts) - 1
	}
	c.failureCounts[i].Times++
	c.engine.log.Error("cell failed while handling a call", "cell", c.n, "call", call.String(), "times", c.failureCounts[i].Times)
}

// shutdown releases all actors, which also ends the coroutines of their turns.
func (c *cell) shutdown() {
	c.timer.Stop()
	defer func() {
		c.watchdog.end()
		if p := recover(); p != nil {
			c.engine.log.Error("cell failed during shutdown", "cell", c.n, "panic", fmt.Sprint(p))
		}
	}()
	c.shrinkage = shrinkage{} // the process may end soon, so its garbage stays
	c.step(runtime.Owners{})
}

// ask delivers a client's call. It reports whether there was room. If the cell
// is idle, the client's goroutine steps it and the cells that it sends to,
// until the answer arrives.
func (c *cell) ask(w *waiter) bool {
	m := c.mailbox
	acquired, _ := m.spinAcquire(&c.tally.quickSteps)
	if acquired && !m.suspended.Load() && !m.hasWork() {
		m.coroutines.run(runner{waiter: w, mailbox: m, task: taskDeliver})
		return true
	}
	call := &w.request.Call
	c.engine.clients.add(w, false)
	queued := c.enqueueClient(&actor.Envelope{To: call.To, Body: actor.Request{Call: *call}})
	switch {
	case !queued && acquired:
		m.coroutines.run(runner{waiter: w, mailbox: m, task: taskHandOff})
	case queued && (acquired || m.tryAcquire()): // the previous holder may have left without seeing the call
		m.coroutines.run(runner{waiter: w, mailbox: m, task: taskDrain})
	}
	return queued
}

// post enqueues a message that needs no answer. It reports whether there was
// room.
func (c *cell) post(env *actor.Envelope) bool {
	ok := c.enqueueClient(env)
	c.mailbox.schedule()
	return ok
}

// enqueueClient puts a client's message into the queue. A quarter of the queue
// is reserved for messages from cells.
func (c *cell) enqueueClient(env *actor.Envelope) bool {
	q := c.mailbox.queue
	return q.len() < len(q.slots)*3/4 && c.overflowCount.Load() == 0 && q.push(env)
}

func (c *cell) deliver(in *runtime.Deliver) {
	if r, ok := in.Envelope.Body.(actor.Request); ok && in.Envelope.From.IsZero() {
		c.engine.clients.markDelivered(r.Call.ID)
		c.request.Call = r.Call
		c.stepRequest(&c.request)
	} else {
		c.step(in)
	}
	c.armTimer()
}

// stepRequest steps the cell with a client's call.
func (c *cell) stepRequest(v *runtime.Visit) {
	v.Subscribed = c.engine.watchers.count.Load() > 0
	c.clientCall = v.Call.ID
	c.step(v)
	c.clientCall = actor.CallID{}
	c.registerWaiter()
}

// registerWaiter adds the current waiter to the clients table. Any goroutine
// may answer the call from then on.
func (c *cell) registerWaiter() {
	if w := c.waiter; w != nil {
		c.waiter = nil
		c.engine.clients.add(w, true)
	}
}

// handleCompletion steps the cell with a completion. Data read from disk for an
// earlier incarnation is dropped. The result of a tool, work, model or external
// agent is kept until the current incarnation awaits it.
func (c *cell) handleCompletion(done completion) {
	switch in := done.input.(type) {
	case nil:
		done.run()
	case runtime.Outcome:
		c.handleEffectResult(done)
	case runtime.Streamed:
		c.handleEffectResult(done)
	default:
		if done.incarnation == c.incarnation || done.incarnation == 0 {
			c.step(in)
		}
	}
	c.armTimer()
}

// handleEffectResult steps the cell with the result of an effect, or keeps the
// result until the effect is awaited. The result of a cancelled effect is
// dropped.
func (c *cell) handleEffectResult(done completion) {
	f := c.effects[done.key()]
	switch {
	case f == nil || f != done.effect:
	case f.awaited:
		c.stepping = &done
		c.step(done.input)
	default:
		f.unclaimed = append(f.unclaimed, done)
	}
}

// updateOwners steps the cell with the current owners of the shards.
func (c *cell) updateOwners() { c.step(runtime.Owners{Table: c.engine.owners()}) }

// updateAgents steps the cell with the current agent definitions.
func (c *cell) updateAgents() {
	latest, version := c.engine.agents.current()
	c.step(latest)
	c.engine.agents.markApplied(c.n, version)
}

// step advances the cell by one input and performs its output.
func (c *cell) step(in runtime.Input) {
	c.engine.awaitLease()
	now := c.engine.clock.now()
	c.mailbox.now = now
	number := c.watchdog.begin(in, now)
	ready := c.core.Step(now, in)
	if number%timedSteps == 1 {
		c.tally.recordStepTime(c.engine.clock.now().Sub(now))
	}
	c.watchdog.end()
	c.recordEvents(ready.Events, ready.Entries)
	size := c.core.Size()
	c.tally.recordStep(size)
	c.shrinkage.observe(size.Actors, c.engine.garbage)
	c.tally.record(ready.Measures)
	end := uint64(0)
	if t := &c.engine.tracing; t.enabled() {
		end = t.recordStep(c.core.Self(), now, ready)
		defer t.order.Unlock()
	}
	c.perform(ready, end)
	c.flushOverflow()
}

// armTimer sets the timer to the cell's next deadline.
func (c *cell) armTimer() {
	at, ok := c.core.NextDeadline()
	switch {
	case !ok:
		c.timerAt = 0
		c.timer.Stop()
	case at != c.timerAt:
		c.timerAt = at
		c.timer.Reset(c.engine.clock.until(at))
	}
}
