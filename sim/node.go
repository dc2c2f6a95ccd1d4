// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/store"
)

// node is one imagined process: cells, one log, a clock of its own. What it
// loses when it crashes is what a process loses.
type node struct {
	w       *World
	id      actor.NodeID
	index   int
	up      bool
	process uint64 // counts its starts
	cells   []*cell
	clock   clock

	log  disk
	held []held // effects behind the gate, in order
	view uint64 // the version of the claims that its cells know
}

// cell is one production cell and what it has not taken in yet.
type cell struct {
	n       *node
	index   uint16
	self    actor.Address
	core    *runtime.Cell
	gone    bool // it panicked, or its node crashed
	inputs  []input
	running bool       // a step is on its way
	tick    actor.Time // by the world's time: when it is told the time next; 0: not
	doing   []*doing   // tools and work under way, in order
	strikes []runtime.Strike
	again   bool // it is not the first incarnation since the world began
}

// input is one thing for a cell to take in. Those of one stream keep their order.
type input struct {
	stream int
	in     runtime.Input
	bytes  []byte // of a message, as it came
}

const anyOrder = -1 // the stream of what has no order

// held is an effect that waits for the log.
type held struct {
	c      *cell
	effect runtime.Effect
	bytes  []byte
	pos    store.Pos
	wrote  int
}

// doing is a tool or work under way. It outlives its cell, not its node.
type doing struct {
	id      actor.EffectID
	attempt uint32
	index   uint16 // of the cell
	aborted bool
}

// start runs the boot code of a process: a log that goes on where the disk ends,
// and cells that are told what there is, then Boot.
func (n *node) start() {
	n.process++
	n.up = true
	n.held = nil
	n.clock.start(n.w.now)
	n.log.open(n)
	n.cells = nil
	for i := range n.w.plan.Cells[n.index] {
		n.cells = append(n.cells, n.newCell(uint16(i), n.process<<16))
	}
	n.w.takeClaims(n)
	for _, c := range n.cells {
		c.boot(nil)
	}
}

func (n *node) newCell(index uint16, incarnation uint64) *cell {
	self := actor.Address{Node: n.id, Cell: index, Incarnation: incarnation}
	return &cell{n: n, index: index, self: self, again: incarnation != 1<<16,
		core: runtime.NewCell(runtime.Config{Self: self, Tools: n.w.tools,
			Seed: mix(mix(n.w.seed, uint64(n.index)<<16|uint64(index)), incarnation)})}
}

func (c *cell) boot(running []actor.EffectID) {
	w := c.n.w
	c.step(input{in: runtime.Limits{Limits: w.plan.Limits}})
	c.step(input{in: runtime.Agents{Definitions: w.agents()}})
	table, bytes := w.claims.owners()
	c.n.view = w.claims.version
	c.step(input{in: runtime.Owners{Table: table}, bytes: bytes})
	c.step(input{in: runtime.Boot{Running: running, Strikes: c.strikes}})
}

// put gives a cell something to take in.
func (c *cell) put(in input) {
	if c.gone {
		return
	}
	c.inputs = append(c.inputs, in)
	c.wake()
}

// wake has the cell step soon, if there is something to take in.
func (c *cell) wake() {
	if c.running || c.gone || len(c.inputs) == 0 {
		return
	}
	c.running = true
	w := c.n.w
	w.after(time.Duration(1+w.choose.Int(16))*5*time.Microsecond, func() {
		c.running = false
		if c.gone || c.n.stalled() {
			return
		}
		c.step(c.next())
		c.wake()
	})
}

// next takes one of the oldest inputs, never one before another of its stream.
func (c *cell) next() input {
	i := 0
	if n := min(len(c.inputs), 4); n > 1 {
		i = c.n.w.choose.Int(n)
		for j := range i {
			if c.inputs[j].stream == c.inputs[i].stream && c.inputs[i].stream != anyOrder {
				i = j
				break
			}
		}
	}
	in := c.inputs[i]
	copy(c.inputs[1:i+1], c.inputs[:i])
	c.inputs[0] = input{}
	c.inputs = c.inputs[1:]
	return in
}

// step turns the crank once: log and tell what went in and what came out, append,
// then perform.
func (c *cell) step(in input) {
	w, n := c.n.w, c.n
	now := n.clock.now(w.now)
	w.log.input(c.self, now, in.in, in.bytes)
	w.Stats.input(c, in.in)
	ready, ok := c.crank(now, in.in)
	w.Stats.Steps++
	if !ok {
		return
	}
	for i := range ready.Entries {
		w.log.entry(&ready.Entries[i])
	}
	pos := n.log.append(ready.Entries)
	for i := range ready.Events {
		w.observe(&ready.Events[i])
	}
	if len(ready.Entries) > 0 {
		c.appended(now, pos, ready.Entries)
	}
	for _, e := range ready.Effects {
		var bytes []byte
		if send, ok := e.Op.(runtime.Send); ok {
			bytes = actor.Encode(send.Envelope)
		}
		w.log.effect(&e, bytes)
		h := held{c, e, bytes, pos, len(ready.Entries)}
		if e.Gated && n.log.released() < pos {
			n.held = append(n.held, h)
		} else {
			n.perform(h)
		}
		if c.gone {
			return
		}
	}
	c.watch()
	w.stepped(c)
}

// crank steps the cell; false if it panicked, and is no more.
func (c *cell) crank(now actor.Time, in runtime.Input) (ready runtime.Ready, ok bool) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		ready, ok = runtime.Ready{}, false
		if _, planned := p.(plannedPanic); !planned {
			c.n.w.violate("CellNeverPanics", fmt.Sprintf("%s: %v on %T\n%s", c.self, p, in, shortStack()))
		}
		c.panicked()
	}()
	return c.core.Step(now, in), true
}

// shortStack is the frames of ours in the stack, without addresses.
func shortStack() string {
	var b strings.Builder
	for line := range strings.Lines(string(debug.Stack())) {
		if _, at, ok := strings.Cut(line, "/troupe/"); ok && strings.HasPrefix(line, "\t") {
			at, _, _ = strings.Cut(at, " +0x")
			b.WriteString("    " + strings.TrimSpace(at) + "\n")
		}
	}
	return b.String()
}

// appended tells of entries in the log, once for each epoch they were written under.
func (c *cell) appended(now actor.Time, pos store.Pos, entries []store.Entry) {
	e := history.Event{Kind: history.Append, At: now, From: c.self, Pos: uint64(pos), Wrote: len(entries), Epoch: entries[0].Epoch, Actor: entries[0].Actor}
	c.n.w.observe(&e)
}

// watch has the cell told the time when it is due.
func (c *cell) watch() {
	due, ok := c.core.NextDeadline()
	if !ok {
		return
	}
	w := c.n.w
	at := max(c.n.clock.when(due), w.now+1)
	if c.tick != 0 && c.tick <= at {
		return
	}
	c.tick = at
	w.queue.put(at, func() {
		if c.gone || c.tick != at {
			return
		}
		c.tick = 0
		if due, ok := c.core.NextDeadline(); ok && due > c.n.clock.now(w.now) {
			c.watch()
			return
		}
		c.put(input{stream: streamTime, in: runtime.Tick{}})
	})
}

// The streams of what a cell takes in besides messages.
const (
	streamWorld = 0
	streamTime  = 1
	streamCells = 2 // and up: one for each cell of the node and lane
)

func streamOf(from *cell, env *actor.Envelope) int {
	lane := 0
	if r, ok := env.Body.(actor.Request); ok {
		lane = int(r.Call.Lane)
	}
	return streamCells + int(from.index)*8 + lane
}

// perform does what a cell wants done; the gate is open.
func (n *node) perform(h held) {
	w, c, e := n.w, h.c, &h.effect
	switch op := e.Op.(type) {
	case runtime.Send:
		if op.Node == n.id {
			env, err := actor.Decode(h.bytes)
			if err != nil {
				w.violate("CodecRoundTrip", fmt.Sprintf("%s sends what it cannot read: %v", c.self, err))
				return
			}
			if int(op.Cell) < len(n.cells) {
				n.cells[op.Cell].put(input{streamOf(c, &env), runtime.Deliver{Envelope: env}, h.bytes})
			}
			return
		}
		w.performed(&h, "send", messageCall(op.Envelope.Body), 0, 0)
		w.transmit(n, op, h.bytes)
	case runtime.Respond:
		var reason actor.Reason
		if op.Reply.Refusal != nil {
			reason = op.Reply.Refusal.Reason
		}
		w.performed(&h, "respond", op.Call, op.Reply.Status, reason)
		w.respond(n, op)
	case runtime.Publish:
		w.performed(&h, "publish", op.Event.Run, 0, 0)
		w.published(n, op.Event)
	case runtime.Tool:
		w.performed(&h, "tool", e.ID.Run, 0, 0)
		n.do(c, e, func() actor.Answer { return w.tools.Execute(context.Background(), op.Name, op.Input, op.Context) })
	case runtime.Work:
		w.performed(&h, "work", e.ID.Run, 0, 0)
		n.do(c, e, func() actor.Answer {
			out, err := op.Func(context.Background())
			if err != nil {
				return actor.Answer{Refusal: actor.Refuse(actor.Unavailable, "%s: %v", op.Name, err)}
			}
			return actor.Answer{Parts: actor.Text(string(out))}
		})
	case runtime.Abort:
		for _, d := range c.doing {
			if d.id == e.ID && d.attempt == e.Attempt {
				d.aborted = true
			}
		}
	case runtime.Load:
		n.log.load(c, op.Actor)
	case runtime.Expiries:
		n.log.expiries(c, op.Shards)
	}
}

// do has a tool or work done: its outcome comes some time later, to the cell
// that is there then.
func (n *node) do(c *cell, e *runtime.Effect, run func() actor.Answer) {
	w := n.w
	d := &doing{id: e.ID, attempt: e.Attempt, index: c.index}
	c.doing = append(c.doing, d)
	process := n.process
	w.after(w.between(50*time.Microsecond, 40*time.Millisecond), func() {
		if !n.up || n.process != process || d.aborted {
			return
		}
		answer := run()
		now := n.cells[d.index]
		now.done(d)
		now.put(input{anyOrder, runtime.Outcome{ID: d.id, Attempt: d.attempt, Answer: answer}, nil})
	})
}

func (c *cell) done(d *doing) {
	for i := range c.doing {
		if c.doing[i] == d {
			c.doing = append(c.doing[:i:i], c.doing[i+1:]...)
			return
		}
	}
}

// release performs what the log lets go.
func (n *node) release() {
	for len(n.held) > 0 && n.held[0].pos <= n.log.released() {
		h := n.held[0]
		n.held[0] = held{}
		n.held = n.held[1:]
		n.perform(h)
	}
}

// stalled tells whether the process does nothing just now.
func (n *node) stalled() bool { return !n.up }

func messageCall(m actor.Message) actor.CallID {
	switch m := m.(type) {
	case actor.Request:
		return m.Call.ID
	case actor.Answered:
		return m.Reply.Call
	case actor.Cancel:
		return m.Call
	case actor.Held:
		return m.Call
	case actor.Resumed:
		return m.Call
	case actor.Open:
		return m.Call
	}
	return actor.CallID{}
}
