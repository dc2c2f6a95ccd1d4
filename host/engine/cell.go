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
	"github.com/troupe-run/troupe/runtime"
)

const (
	// overflowMax is how many messages may wait for full rings before a cell begins anew.
	overflowMax = 1 << 20
	// timedSteps is of how many steps one is timed: that costs as much as a good
	// part of it. One that takes long is seen by the watchdog.
	timedSteps = 8
	// failureCountsMax is how many calls are remembered over which a cell died.
	failureCountsMax = 1024
)

// cell is the host of one runtime.Cell after the other. What has no lock is
// touched by the cell's thread alone.
type cell struct {
	engine        *Engine
	n             uint16
	mailbox       *mailbox
	worker        *worker
	watchdog      *watchdog
	timer         *time.Timer
	stopped       chan struct{}
	overflowCount atomic.Int64
	tally         tally

	core          *runtime.Cell
	incarnation   uint64
	timerAt       actor.Time // what the timer is set to; 0: nothing
	effects       map[effectKey]*effect
	failureCounts []runtime.Strike
	overflow      [][]actor.Envelope // by cell: what found its ring full
	stepping      *completion        // being stepped
	clientCall    actor.CallID       // whose call is being stepped
	waiter        *waiter            // who waits for it, if that is on no list yet
	request       runtime.Visit      // a client's call that came through the ring
}

func newCell(e *Engine, n uint16) *cell {
	c := &cell{engine: e, n: n, worker: newWorker(), stopped: make(chan struct{}),
		effects: map[effectKey]*effect{}, overflow: make([][]actor.Envelope, e.config.Cells)}
	c.watchdog = newWatchdog(n, e.log, e.clock, &c.tally)
	c.mailbox = newMailbox(n, e.config.QueueSlots, &e.coroutines)
	c.timer = time.AfterFunc(time.Hour, c.mailbox.wake)
	c.timer.Stop()
	return c
}

func (c *cell) name() string { return fmt.Sprintf("cell-%d", c.n) }

// props makes the cell's protoactor actor: one Go value per incarnation.
func (c *cell) props() *proto.Props {
	return proto.PropsFromProducer(func() proto.Actor { return proto.ReceiveFunc(c.receive) },
		proto.WithMailbox(func() proto.Mailbox { return c.mailbox }),
		proto.WithDispatcher(c.worker))
}

// awaitStop waits for the cell's end, as long as ctx lasts.
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

// startIncarnation makes the next incarnation, under epochs that nobody has had.
func (c *cell) startIncarnation() {
	e := c.engine
	var seed [8]byte
	crand.Read(seed[:]) //nolint:errcheck // never fails
	c.incarnation++
	self := actor.Address{Node: e.config.Node, Cell: c.n, Incarnation: uint64(e.epochOf(c.incarnation))}
	c.core = runtime.NewCell(runtime.Config{Self: self, Seed: binary.LittleEndian.Uint64(seed[:]), Tools: e.config.Tools,
		EventKinds: e.eventKinds(), PublishOnDemand: true})
	c.timerAt = 0
	c.tally.startIncarnation(c.incarnation)
	again := c.incarnation > 1
	table := e.claim(self)
	boot := runtime.Boot{Strikes: slices.Clone(c.failureCounts)}
	for key := range c.effects {
		boot.Running = append(boot.Running, key.id)
	}
	c.step(runtime.Limits{Limits: e.config.Limits})
	c.updateAgents()
	c.step(runtime.Owners{Table: table})
	c.step(boot)
	if again {
		e.log.Warn("a cell began anew", "cell", c.n, "incarnation", c.incarnation)
		for _, call := range e.clients.deliveredTo(c.n, e.clock.now()) {
			c.request.Call = call
			c.stepRequest(&c.request)
		}
	}
	c.armTimer()
}

// failIncarnation counts over which call the incarnation died. What it had not handed over
// is sent again by whoever misses it.
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
	c.engine.log.Error("a call made its cell fail", "cell", c.n, "call", call.String(), "times", c.failureCounts[i].Times)
}

// shutdown lets go of every actor, so that turns that are coroutines end too.
func (c *cell) shutdown() {
	c.timer.Stop()
	defer func() {
		c.watchdog.end()
		if p := recover(); p != nil {
			c.engine.log.Error("a cell failed while it stopped", "cell", c.n, "panic", fmt.Sprint(p))
		}
	}()
	c.step(runtime.Owners{})
}

// ask brings a client's call in; false if there is no room. If the cell is idle
// the client's goroutine steps it, and what comes of it, up to its answer.
func (c *cell) ask(w *waiter) bool {
	m := c.mailbox
	held, _ := m.spinAcquire(&c.tally.quickSteps)
	if held && !m.suspended.Load() && !m.hasWork() {
		m.coroutines.run(runner{waiter: w, mailbox: m, task: taskDeliver})
		return true
	}
	call := &w.request.Call
	c.engine.clients.add(w, false)
	put := c.enqueueClient(&actor.Envelope{To: call.To, Body: actor.Request{Call: *call}})
	switch {
	case !put && held:
		m.coroutines.run(runner{waiter: w, mailbox: m, task: taskHandOff})
	case put && (held || m.tryAcquire()): // who was at it may not have seen it
		m.coroutines.run(runner{waiter: w, mailbox: m, task: taskDrain})
	}
	return put
}

// post is ask for a message that nobody answers.
func (c *cell) post(env *actor.Envelope) bool {
	ok := c.enqueueClient(env)
	c.mailbox.schedule()
	return ok
}

// enqueueClient puts a client's message into the ring. A quarter of that is for cells alone.
func (c *cell) enqueueClient(env *actor.Envelope) bool {
	ring := c.mailbox.queue
	return ring.len() < len(ring.slots)*3/4 && c.overflowCount.Load() == 0 && ring.push(env)
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

// stepRequest steps a client's call.
func (c *cell) stepRequest(v *runtime.Visit) {
	v.Subscribed = c.engine.watchers.count.Load() > 0
	c.clientCall = v.Call.ID
	c.step(v)
	c.clientCall = actor.CallID{}
	c.registerWaiter()
}

// registerWaiter has a client whose answer was not in the step that took in the call get it
// from wherever it comes.
func (c *cell) registerWaiter() {
	if w := c.waiter; w != nil {
		c.waiter = nil
		c.engine.clients.add(w, true)
	}
}

// handleCompletion passes on what came of an effect. What an earlier incarnation asked
// the disk is not for this one; what came of a tool, work, model or agent is, as
// soon as it awaits it.
func (c *cell) handleCompletion(a completion) {
	switch in := a.input.(type) {
	case nil:
		a.run()
	case runtime.Outcome:
		c.handleEffectResult(a)
	case runtime.Streamed:
		c.handleEffectResult(a)
	default:
		if a.incarnation == c.incarnation || a.incarnation == 0 {
			c.step(in)
		}
	}
	c.armTimer()
}

// handleEffectResult takes in what came of an effect, unless it was given up meanwhile.
func (c *cell) handleEffectResult(a completion) {
	f := c.effects[a.key()]
	switch {
	case f == nil || f != a.effect:
	case f.awaited:
		c.stepping = &a
		c.step(a.input)
	default:
		f.unclaimed = append(f.unclaimed, a)
	}
}

// updateOwners takes in who owns which shards as it is now.
func (c *cell) updateOwners() { c.step(runtime.Owners{Table: c.engine.owners()}) }

// updateAgents takes in the agents as they are now.
func (c *cell) updateAgents() {
	latest, number := c.engine.agents.current()
	c.step(latest)
	c.engine.agents.markApplied(c.n, number)
}

// step advances the cell by one input and does what comes of it.
func (c *cell) step(in runtime.Input) {
	now := c.engine.clock.now()
	c.mailbox.now = now
	number := c.watchdog.begin(in, now)
	ready := c.core.Step(now, in)
	if number%timedSteps == 1 {
		c.tally.recordStepTime(c.engine.clock.now().Sub(now))
	}
	c.watchdog.end()
	c.recordEvents(ready.Events)
	c.tally.recordStep(c.core.Size(), c.core.Tally())
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
