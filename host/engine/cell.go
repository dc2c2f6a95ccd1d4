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
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runtime"
)

const (
	// spillMax is how many messages may wait for full rings before a cell begins anew.
	spillMax = 1 << 20
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
	stepper     *stepper
	incarnation uint64
	due         actor.Time // what the timer is set to; 0: nothing
	effects     map[effectKey]*effect
	strikes     []runtime.Strike
	spill       [][][]byte   // by cell: envelopes that found its ring full
	scratch     []byte       // a message being encoded
	taking      *answer      // being stepped
	client      actor.CallID // whose call is being stepped
}

func newCell(e *Engine, n uint16) *cell {
	c := &cell{engine: e, n: n, worker: newWorker(), watch: newWatchdog(n, e.log, e.clock), stopped: make(chan struct{}),
		effects: map[effectKey]*effect{}, spill: make([][][]byte, e.config.Cells)}
	c.mailbox = newMailbox(n, e.config.RingSlots)
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
	case *letter:
		c.deliver(m.envelope)
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
	c.core = runtime.NewCell(runtime.Config{Self: self, Seed: binary.LittleEndian.Uint64(seed[:]), Tools: e.config.Tools})
	c.stepper = newStepper(c.core)
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
			c.stepClient(actor.Envelope{To: call.To, Body: actor.Request{Call: call}}, call.ID)
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
	call := c.core.Blame()
	c.stepper.end()
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
		c.stepper.end()
	}()
	c.step(runtime.Owners{})
}

// ask brings a client's call in; false if there is no room. If the cell is idle
// the client's goroutine steps it, and what comes of it, up to its answer.
func (c *cell) ask(w *waiter, env actor.Envelope) bool {
	m, began := c.mailbox, time.Now()
	held := m.take()
	for i := 0; !held && i < busyLooks && c.tally.quick.Load(); i++ {
		held = m.take()
	}
	switch {
	case held && !m.suspended.Load() && !m.ready():
		m.direct(env)
	case !c.put(env):
		if held {
			m.handOn(began, w)
		}
		return false
	case held || m.take(): // who was at it may not have seen it
		m.drain(began, w)
	default:
		return true
	}
	m.handOn(began, w)
	return true
}

// bring is ask for a message that nobody answers.
func (c *cell) bring(env actor.Envelope) bool {
	ok := c.put(env)
	c.mailbox.schedule()
	return ok
}

// put puts a client's message into the ring. A quarter of that is for cells alone.
func (c *cell) put(env actor.Envelope) bool {
	ring := c.mailbox.ring
	return ring.len() < len(ring.slots)*3/4 && c.spilled.Load() == 0 && ring.put(env)
}

func (c *cell) deliver(env actor.Envelope) {
	if r, ok := env.Body.(actor.Request); ok && env.From.IsZero() {
		c.engine.clients.take(r.Call.ID)
		c.stepClient(env, r.Call.ID)
	} else {
		c.step(runtime.Deliver{Envelope: env})
	}
	c.arm()
}

func (c *cell) stepClient(env actor.Envelope, call actor.CallID) {
	c.client = call
	c.step(runtime.Deliver{Envelope: env})
	c.client = actor.CallID{}
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
	case f == nil:
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
	c.watch.begin(in, now)
	ready := c.stepper.step(now, in)
	took := c.watch.end()
	c.tell(ready.Events)
	c.tally.step(took, c.core.Size())
	end := uint64(0)
	if t := &c.engine.tracing; t.on() {
		end = t.stepped(c.core.Self(), now, ready)
		defer t.order.Unlock()
	}
	c.perform(ready, end)
	c.flush()
}

// perform appends, then hands over. Gated effects wait for the log.
func (c *cell) perform(ready runtime.Ready, end uint64) {
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
		return func() { c.send(op) }
	case runtime.Respond:
		return func() { c.engine.clients.respond(op) }
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
		return c.read(func() runtime.Input { return c.engine.load(op) })
	case runtime.Expiries:
		return c.read(func() runtime.Input { return c.engine.expiries(op.Shards) })
	default:
		panic(fmt.Sprintf("engine: cannot do %T", op))
	}
}

// send carries a message to a cell of this node: always as bytes.
func (c *cell) send(op runtime.Send) {
	e := c.engine
	if op.Node != e.config.Node || int(op.Cell) >= len(e.cells) {
		// An address of an earlier start, when there were other cells: who waited there waits no more.
		e.log.Debug("a message for a cell that is not here", "node", string(op.Node), "cell", op.Cell)
		return
	}
	c.scratch = actor.Append(c.scratch[:0], op.Envelope)
	c.mailbox.note(op.Cell)
	if len(c.spill[op.Cell]) == 0 && e.cells[op.Cell].mailbox.pushFrom(c.n, c.scratch) {
		return
	}
	c.spill[op.Cell] = append(c.spill[op.Cell], slices.Clone(c.scratch))
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
		for len(c.spill[to]) > 0 && c.engine.cells[to].mailbox.pushFrom(c.n, c.spill[to][0]) {
			c.mailbox.note(uint16(to))
			c.spill[to][0] = nil
			c.spill[to] = c.spill[to][1:]
			c.spilled.Add(-1)
		}
	}
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
