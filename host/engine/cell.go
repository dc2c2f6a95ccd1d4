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
	// spillMax is how many messages may wait for full rings before a cell begins anew.
	spillMax = 1 << 20
	// timedSteps is of how many steps one is timed: that costs as much as a good
	// part of it. One that takes long is seen by the watchdog.
	timedSteps = 8
	// strikesKept is how many calls are remembered over which a cell died.
	strikesKept = 1024
)

// cell is the host of one runtime.Cell after the other. What has no lock is
// touched by the cell's thread alone.
type cell struct {
	engine  *Engine
	n       uint16
	mailbox *mailbox
	worker  *worker
	watch   *watchdog
	timer   *time.Timer
	stopped chan struct{}
	spilled atomic.Int64
	tally   tally

	core        *runtime.Cell
	incarnation uint64
	due         actor.Time // what the timer is set to; 0: nothing
	effects     map[effectKey]*effect
	strikes     []runtime.Strike
	spill       [][]actor.Envelope // by cell: what found its ring full
	taking      *answer            // being stepped
	client      actor.CallID       // whose call is being stepped
	asker       *waiter            // who waits for it, if that is on no list yet
	visit       runtime.Visit      // a client's call that came through the ring
}

func newCell(e *Engine, n uint16) *cell {
	c := &cell{engine: e, n: n, worker: newWorker(), stopped: make(chan struct{}),
		effects: map[effectKey]*effect{}, spill: make([][]actor.Envelope, e.config.Cells)}
	c.watch = newWatchdog(n, e.log, e.clock, &c.tally)
	c.mailbox = newMailbox(n, e.config.RingSlots, &e.stacks)
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

// hasStopped waits for the cell's end, as long as ctx lasts.
func (c *cell) hasStopped(ctx context.Context) bool {
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
		c.asker = m
		c.visited(&m.visit)
		c.arm()
	case *runtime.Deliver:
		c.deliver(m)
	case answer:
		c.answered(m)
	case passed:
		c.flush()
		c.due = 0
		if at, ok := c.core.NextDeadline(); ok && at <= c.engine.clock.now() {
			c.step(runtime.Tick{})
		}
		c.arm()
	case *proto.Started:
		c.begin()
	case *proto.Restarting:
		c.fell()
	case *proto.Stopping:
		c.end()
	case *proto.Stopped:
		close(c.stopped)
	}
}

// begin makes the next incarnation, under epochs that nobody has had.
func (c *cell) begin() {
	e := c.engine
	var seed [8]byte
	crand.Read(seed[:]) //nolint:errcheck // never fails
	c.incarnation++
	self := actor.Address{Node: e.config.Node, Cell: c.n, Incarnation: uint64(e.epochOf(c.incarnation))}
	c.core = runtime.NewCell(runtime.Config{Self: self, Seed: binary.LittleEndian.Uint64(seed[:]), Tools: e.config.Tools,
		EventKinds: e.kinds(), PublishOnDemand: true})
	c.due = 0
	c.tally.begin(c.incarnation)
	again := c.incarnation > 1
	table := e.claim(self)
	boot := runtime.Boot{Strikes: slices.Clone(c.strikes)}
	for key := range c.effects {
		boot.Running = append(boot.Running, key.id)
	}
	c.step(runtime.Limits{Limits: e.config.Limits})
	c.define()
	c.step(runtime.Owners{Table: table})
	c.step(boot)
	if again {
		e.log.Warn("a cell began anew", "cell", c.n, "incarnation", c.incarnation)
		for _, call := range e.clients.takenBy(c.n, e.clock.now()) {
			c.visit.Call = call
			c.visited(&c.visit)
		}
	}
	c.arm()
}

// fell counts over which call the incarnation died. What it had not handed over
// is sent again by whoever misses it.
func (c *cell) fell() {
	c.watch.end()
	for i := range c.spill {
		c.spill[i] = nil
	}
	c.spilled.Store(0)
	c.list()
	c.engine.clients.struck(c.client)
	c.client = actor.CallID{}
	for _, f := range c.effects {
		f.awaited = false
	}
	if c.taking != nil {
		f := c.effects[c.taking.key()]
		f.kept = slices.Insert(f.kept, 0, *c.taking)
		c.taking = nil
	}
	if c.core == nil {
		return
	}
	call := c.core.FaultingCall()
	apart(c.core.Abandon)
	if call.IsZero() {
		return
	}
	i := slices.IndexFunc(c.strikes, func(s runtime.Strike) bool { return s.Call == call })
	if i < 0 {
		if len(c.strikes) == strikesKept {
			c.strikes = slices.Delete(c.strikes, 0, 1)
		}
		c.strikes = append(c.strikes, runtime.Strike{Call: call})
		i = len(c.strikes) - 1
	}
	c.strikes[i].Times++
	c.engine.log.Error("a call made its cell fail", "cell", c.n, "call", call.String(), "times", c.strikes[i].Times)
}

// end lets go of every actor, so that turns that are coroutines end too.
func (c *cell) end() {
	c.timer.Stop()
	defer func() {
		c.watch.end()
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
	held, _ := m.takeSoon(&c.tally.quick)
	if held && !m.suspended.Load() && !m.ready() {
		m.stacks.lend(thread{asker: w, cell: m, first: asks})
		return true
	}
	call := &w.visit.Call
	c.engine.clients.add(w, false)
	put := c.put(&actor.Envelope{To: call.To, Body: actor.Request{Call: *call}})
	switch {
	case !put && held:
		m.stacks.lend(thread{asker: w, cell: m, first: handsOn})
	case put && (held || m.take()): // who was at it may not have seen it
		m.stacks.lend(thread{asker: w, cell: m, first: drains})
	}
	return put
}

// bring is ask for a message that nobody answers.
func (c *cell) bring(env *actor.Envelope) bool {
	ok := c.put(env)
	c.mailbox.schedule()
	return ok
}

// put puts a client's message into the ring. A quarter of that is for cells alone.
func (c *cell) put(env *actor.Envelope) bool {
	ring := c.mailbox.ring
	return ring.len() < len(ring.slots)*3/4 && c.spilled.Load() == 0 && ring.put(env)
}

func (c *cell) deliver(in *runtime.Deliver) {
	if r, ok := in.Envelope.Body.(actor.Request); ok && in.Envelope.From.IsZero() {
		c.engine.clients.take(r.Call.ID)
		c.visit.Call = r.Call
		c.visited(&c.visit)
	} else {
		c.step(in)
	}
	c.arm()
}

// visited steps a client's call.
func (c *cell) visited(v *runtime.Visit) {
	v.Subscribed = c.engine.watchers.count.Load() > 0
	c.client = v.Call.ID
	c.step(v)
	c.client = actor.CallID{}
	c.list()
}

// list has a client whose answer was not in the step that took in the call get it
// from wherever it comes.
func (c *cell) list() {
	if w := c.asker; w != nil {
		c.asker = nil
		c.engine.clients.add(w, true)
	}
}

// answered passes on what came of an effect. What an earlier incarnation asked
// the disk is not for this one; what came of a tool, work, model or agent is, as
// soon as it awaits it.
func (c *cell) answered(a answer) {
	switch in := a.input.(type) {
	case nil:
		a.do()
	case runtime.Outcome:
		c.came(a)
	case runtime.Streamed:
		c.came(a)
	default:
		if a.incarnation == c.incarnation || a.incarnation == 0 {
			c.step(in)
		}
	}
	c.arm()
}

// came takes in what came of an effect, unless it was given up meanwhile.
func (c *cell) came(a answer) {
	f := c.effects[a.key()]
	switch {
	case f == nil || f != a.of:
	case f.awaited:
		c.taking = &a
		c.step(a.input)
	default:
		f.kept = append(f.kept, a)
	}
}

// own takes in who owns which shards as it is now.
func (c *cell) own() { c.step(runtime.Owners{Table: c.engine.owners()}) }

// define takes in the agents as they are now.
func (c *cell) define() {
	latest, number := c.engine.agents.now()
	c.step(latest)
	c.engine.agents.take(c.n, number)
}

// step advances the cell by one input and does what comes of it.
func (c *cell) step(in runtime.Input) {
	now := c.engine.clock.now()
	c.mailbox.now = now
	number := c.watch.begin(in, now)
	ready := c.core.Step(now, in)
	if number%timedSteps == 1 {
		c.tally.took(c.engine.clock.now().Sub(now))
	}
	c.watch.end()
	c.tell(ready.Events)
	c.tally.step(c.core.Size(), c.core.Tally())
	end := uint64(0)
	if t := &c.engine.tracing; t.on() {
		end = t.stepped(c.core.Self(), now, ready)
		defer t.order.Unlock()
	}
	c.perform(ready, end)
	c.flush()
}

// arm sets the timer to the cell's next deadline.
func (c *cell) arm() {
	at, ok := c.core.NextDeadline()
	switch {
	case !ok:
		c.due = 0
		c.timer.Stop()
	case at != c.due:
		c.due = at
		c.timer.Reset(c.engine.clock.until(at))
	}
}
