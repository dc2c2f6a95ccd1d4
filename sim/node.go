// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"fmt"
	"path"
	goruntime "runtime"
	"slices"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/specs"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/upstream"
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
	seats   []Seat // of the cells, by their index
	clock   clock

	log       disk
	held      []held     // effects behind the gate, in order
	room      []held     // where they stand when they begin anew
	doing     []*doing   // tools and work under way, in order
	view      uint64     // the version of the claims that its cells were told
	lease     actor.Time // by the world's time: until when it believes it owns what it claimed
	paused    actor.Time // until when it stands still
	full      actor.Time // until when its disk has no room for new work
	crashIn   int        // in how many steps it dies; 0: not
	outside   outside
	streams   []*connection // that clients read here
	directory *directory    // nil: there is no registry
}

// cell is one production cell and what it has not taken in yet.
type cell struct {
	n       *node
	index   uint16
	self    actor.Address
	core    *runtime.Cell
	gone    bool // it panicked, or its node crashed
	inputs  []input
	room    []input    // where they stand when they begin anew
	goes    func()     // goOn
	running bool       // a step is on its way
	tick    actor.Time // by the world's time: when it is told the time next; 0: not
	strikes []runtime.Strike
	fell    int        // how many incarnations before it have panicked
	knows   uint64     // the version of the claims that it has taken in
	heard   int        // how many announcements of the registry
	again   bool       // it is not the first incarnation since the world began
	slow    actor.Time // until when each step takes long
	overdue int        // how often it was told the time, one after the other, over what is due still
}

// input is one thing for a cell to take in. Those of one stream keep their order.
type input struct {
	stream  int
	in      runtime.Input
	bytes   []byte // of a message, as it came
	version uint64 // of the claims, with Owners
	account StreamID
	taken   func() // it was stepped with; nil: nobody wants to know
}

const anyOrder = -1 // the stream of what has no order

// held is an effect that waits for the log.
type held struct {
	c       *cell
	effect  runtime.Effect
	bytes   []byte
	pos     store.Pos
	wrote   int
	again   bool // a later incarnation of its cell awaits it
	account StreamID
	shows   uint32 // of which attempt the step took in a piece
}

// doing is a tool or work under way. It outlives its cell, not its node.
type doing struct {
	id      actor.EffectID
	attempt uint32
	cell    uint16
	awaited bool   // by the incarnation that there is
	end     func() // it is done, and not awaited: gives its outcome to who awaits it
}

// start runs the boot code of a process: a log that goes on where the disk ends,
// and cells that are told what there is, then Boot.
func (n *node) start() {
	w := n.w
	n.process++
	n.up, n.crashIn, n.paused = true, 0, 0
	n.held, n.doing, n.cells = nil, nil, nil
	n.outside = outside{paces: map[string]*upstream.Backoff{}, health: map[string]*upstream.Health{}}
	n.log.open(n)
	n.allows()
	n.readDirectory()
	for i := range w.plan.Cells[n.index] {
		if i == len(n.seats) {
			n.seats = append(n.seats, invariant.Must(w.drive.Seat(fmt.Sprintf("%s.%d", n.id, i))))
		}
		n.cells = append(n.cells, n.newCell(uint16(i), n.process<<16))
	}
	if n.process > 1 {
		w.log.world(w.now, "%s starts again", n.id)
		w.tell(history.Event{Kind: history.Restart, At: n.clock.now(w.now), From: actor.Address{Node: n.id}})
	}
	w.join(n)
	n.view = w.claims.version
	for _, c := range n.cells {
		c.boot(nil)
	}
	n.watchAgents()
}

func (n *node) newCell(index uint16, incarnation uint64) *cell {
	self := actor.Address{Node: n.id, Cell: index, Incarnation: incarnation}
	c := &cell{n: n, index: index, self: self, again: incarnation != 1<<16,
		core: runtime.NewCell(runtime.Config{Self: self, Tools: n.w.tools, Failpoints: n.w.rare,
			Seed: mix(mix(n.w.seed, uint64(n.index)<<16|uint64(index)), incarnation)})}
	c.goes = c.goOn
	return c
}

// boot tells a cell what there is, as a process does.
func (c *cell) boot(running []actor.EffectID) {
	w := c.n.w
	table, bytes := w.claims.owners()
	for _, in := range [...]input{
		{in: runtime.Limits{Limits: w.plan.Limits}},
		{in: c.n.agents()},
		{in: runtime.Owners{Table: table}, bytes: bytes, version: w.claims.version},
		{in: runtime.Boot{Running: running, Strikes: c.strikes}},
	} {
		if c.step(in); c.gone {
			return
		}
	}
}

// put gives a cell something to take in.
func (c *cell) put(in input) {
	if c.gone {
		return
	}
	if len(c.inputs) == 0 {
		c.inputs = c.room
	}
	in.account = c.n.w.queue.stream.account()
	c.inputs = append(c.inputs, in)
	if len(c.inputs) == 1 {
		c.room = c.inputs[:0]
	}
	c.wake()
}

// wake has the cell step soon, if there is something to take in.
func (c *cell) wake() {
	if c.running || c.gone || len(c.inputs) == 0 {
		return
	}
	c.running = true
	w := c.n.w
	defer w.turn(w.turn(aboutCell + StreamID(c.n.index)<<8 + StreamID(c.index)))
	wait := w.schedule.wait(c)
	if c.slow > w.now {
		more := w.between(5*time.Millisecond, 100*time.Millisecond)
		w.hit(CellSlow, "%s takes %v over a step", c.self, more)
		wait += more
	}
	w.after(wait, c.goes)
}

func (c *cell) goOn() {
	c.running = false
	switch w := c.n.w; {
	case c.gone:
	case c.n.paused > w.now:
		w.queue.put(c.n.paused, c.wake)
	default:
		in := c.next()
		w.account(in.account)
		c.step(in)
		c.wake()
	}
}

// next takes the input that the schedule says.
func (c *cell) next() input {
	i := c.n.w.schedule.next(c)
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
	if !n.owns() {
		w.halt(n, "lease")
		return
	}
	now := n.clock.now(w.now)
	w.log.input(c.self, now, in.in, in.bytes)
	if in.version > 0 {
		c.knows = in.version
	}
	ready, ok := c.crank(now, in.in)
	w.Stats.Steps++
	if w.plan.Steps > 0 && !w.calm {
		w.Stats.Tenths[w.tenth()]++
	}
	if !ok {
		return
	}
	for i := range ready.Entries {
		w.log.entry(&ready.Entries[i])
	}
	pos := n.log.append(ready.Entries)
	if wrote := len(ready.Entries); wrote > 0 {
		ready.Events = append(ready.Events, history.Event{Kind: history.Append, At: now, From: c.self, Pos: uint64(pos), Wrote: wrote})
	}
	w.observe(ready.Events...)
	w.Stats.step(c, in.in, ready.Events)
	shows := attemptOf(in.in)
	w.tookBack(c, ready.Effects)
	for _, e := range ready.Effects {
		var bytes []byte
		if send, ok := e.Op.(runtime.Send); ok {
			bytes = actor.Encode(send.Envelope)
		}
		w.log.effect(&e, bytes)
		h := held{c: c, effect: e, bytes: bytes, pos: pos, wrote: len(ready.Entries), account: w.queue.stream.account(), shows: shows}
		if e.Gated && n.log.released() < pos {
			if len(n.held) == 0 {
				n.held = n.room
			}
			if n.held = append(n.held, h); len(n.held) == 1 {
				n.room = n.held[:0]
			}
		} else {
			n.perform(h)
		}
	}
	if _, told := in.in.(runtime.Tick); told {
		c.toldTheTime(now)
	}
	c.watch()
	w.stepped(n)
	if in.taken != nil {
		in.taken()
	}
}

// crank steps the cell; false if it panicked, and is no more.
func (c *cell) crank(now actor.Time, in runtime.Input) (ready runtime.Ready, ok bool) {
	ready, fall := c.n.seats[c.index].Step(c.core, now, in)
	if fall == nil {
		return ready, true
	}
	planned, ours := fall.Reason.(plannedPanic)
	if !ours {
		planned.fault = Fault(faultKinds)
		c.n.w.violate(CellNeverPanics, fmt.Sprintf("%s: %v on %T\n%s", c.self, fall.Reason, in, fall.Stack))
	}
	c.panicked(planned)
	return runtime.Ready{}, false
}

// shortStack is the frames of ours in the stack of a panic, from where it began.
func shortStack() string {
	return stackUpTo(func(name string) bool { return strings.HasPrefix(name, "sim.") })
}

// stackUpTo is that of a panic, up to a function, which is called by who recovers.
func stackUpTo(end func(name string) bool) string {
	pcs := make([]uintptr, 64)
	frames := goruntime.CallersFrames(pcs[:goruntime.Callers(4, pcs)])
	var b strings.Builder
	for {
		f, more := frames.Next()
		name, ours := strings.CutPrefix(f.Function, "github.com/troupe-run/troupe/")
		if end(name) || !more {
			return b.String()
		}
		if ours {
			fmt.Fprintf(&b, "    %s %s:%d\n", name, path.Base(f.File), f.Line)
		}
	}
}

// overdueMost is how often a cell may leave for the next time what is due.
const overdueMost = 16

// toldTheTime sees to it that what is due happens then: a cell that leaves it for
// the next time, every time, lets no time pass.
func (c *cell) toldTheTime(now actor.Time) {
	due, ok := c.core.NextDeadline()
	if !ok || due > now {
		c.overdue = 0
		return
	}
	if c.overdue++; c.overdue == overdueMost {
		c.n.w.violate(specs.EveryCallEnds, fmt.Sprintf("%s was told the time %d times, one after the other, and has left undone what was due %v before",
			c.self, overdueMost, now.Sub(due)))
	}
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
	if isWork(e.Op) {
		defer w.turn(w.turn(aboutOutside + StreamID(n.index)))
	}
	switch op := e.Op.(type) {
	case runtime.Send:
		if op.Node == n.id {
			env, err := actor.Decode(h.bytes)
			if err != nil {
				w.violate(CodecRoundTrip, fmt.Sprintf("%s sends what it cannot read: %v", c.self, err))
				return
			}
			if int(op.Cell) < len(n.cells) {
				n.cells[op.Cell].put(input{stream: streamOf(c, &env), in: runtime.Deliver{Envelope: env}, bytes: h.bytes})
			}
			return
		}
		status, reason := outcome(op.Envelope.Body)
		w.performed(&h, "send", op.Envelope.Body.Name(), op.Envelope.Body.Subject(), status, reason)
		w.transmit(n, op, h.bytes)
	case runtime.Respond:
		status, reason := outcome(actor.Answered{Reply: op.Reply})
		w.performed(&h, "respond", "", op.Call, status, reason)
		w.respond(n, op)
	case runtime.Joined:
		w.joined(op)
	case runtime.Publish:
		w.performed(&h, "publish", "", op.Event.Run, 0, 0)
		w.Stats.Told[runs.TypeOf(op.Event.Body)]++
		w.shown(&h, op.Event)
		w.published(n, op.Event)
	case runtime.Tool:
		tool, _ := w.tools.Tool(op.Name)
		w.performed(&h, "tool", once(tool.Idempotent), e.ID.Run, 0, 0)
		if op.Name == agents.ToolAnnounce {
			n.announce(&h, op)
			return
		}
		own := h // it is kept
		n.useTool(&own, op)
	case runtime.Work:
		w.performed(&h, "work", "", e.ID.Run, 0, 0)
		n.do(&h, op.Left, func() actor.Answer {
			out, err := op.Func(context.Background())
			if err != nil {
				return actor.Answer{Refusal: actor.Refuse(actor.Unavailable, "%s: %v", op.Name, err)}
			}
			return actor.Answer{Parts: actor.Text(string(out))}
		})
	case runtime.Model:
		w.performed(&h, "model", "", e.ID.Run, 0, 0)
		n.askModel(&h, op)
	case runtime.Invoke:
		w.performed(&h, "invoke", once(op.Idempotent), e.ID.Run, 0, 0)
		n.invoke(&h, op)
	case runtime.Abort:
		n.abort(e)
		n.abandonExchange(e)
	case runtime.Await:
		n.await(e)
		n.awaitExchange(e)
	case runtime.Load:
		n.log.load(c, op)
	case runtime.Expiries:
		n.log.expiries(c, op.Shards)
	}
}

// do has a tool or work done: its outcome comes some time later, to the cell
// that is there then. If that does not know of it yet it is kept, as long as
// somebody may still wait for it.
func (n *node) do(h *held, left actor.Duration, run func() actor.Answer) {
	d := n.begin(h)
	n.later(n.w.between(50*time.Microsecond, 40*time.Millisecond), func() { n.ended(d, left, run) })
}

// ended brings what came of an effect to who awaits it, now or later.
func (n *node) ended(d *doing, left actor.Duration, run func() actor.Answer) {
	end := func() {
		if n.forget(d) {
			n.cells[d.cell].put(input{stream: anyOrder, in: runtime.Outcome{ID: d.id, Attempt: d.attempt, Answer: run()}})
		}
	}
	if d.awaited {
		end()
		return
	}
	d.end = end
	n.later(left, func() { n.forget(d) })
}

// begin puts an effect on the list of what is under way.
func (n *node) begin(h *held) *doing {
	d := &doing{id: h.effect.ID, attempt: h.effect.Attempt, cell: h.c.index, awaited: !h.c.gone || h.again}
	n.doing = append(n.doing, d)
	return d
}

// orphan notes that nobody awaits what a cell wanted done, until its next
// incarnation does.
func (n *node) orphan(cell uint16) {
	for _, d := range n.doing {
		d.awaited = d.awaited && d.cell != cell
	}
	for i := range n.held {
		n.held[i].again = n.held[i].again && n.held[i].c.index != cell
	}
}

// await gives a cell what came of an effect of its incarnation before, now or later.
func (n *node) await(e *runtime.Effect) {
	for _, d := range slices.Clone(n.doing) {
		if d.id == e.ID && d.attempt == e.Attempt {
			if d.awaited = true; d.end != nil {
				d.end()
			}
		}
	}
	for i := range n.held {
		if h := &n.held[i]; isWork(h.effect.Op) && h.effect.ID == e.ID && h.effect.Attempt == e.Attempt {
			h.again = true
		}
	}
}

// forget takes something off the list of what is under way; false if it was not
// on it any more.
func (n *node) forget(d *doing) bool {
	i := slices.Index(n.doing, d)
	if i >= 0 {
		n.doing = slices.Delete(n.doing, i, i+1)
	}
	return i >= 0
}

// abort gives up an effect under way, or one that has not got through its gate.
func (n *node) abort(e *runtime.Effect) {
	n.doing = slices.DeleteFunc(n.doing, func(d *doing) bool { return d.id == e.ID && d.attempt == e.Attempt })
	n.held = slices.DeleteFunc(n.held, func(h held) bool {
		return isWork(h.effect.Op) && h.effect.ID == e.ID && h.effect.Attempt == e.Attempt
	})
}

func isWork(op runtime.Op) bool {
	switch op.(type) {
	case runtime.Tool, runtime.Work, runtime.Model, runtime.Invoke:
		return true
	}
	return false
}

// later runs something on behalf of this process, if it is still there then, and
// not before it goes on if it stands still.
func (n *node) later(delay time.Duration, do func()) {
	n.w.queue.add(happening{at: n.w.now.Add(delay), do: do, node: n, process: n.process})
}

// release performs what the log lets go.
func (n *node) release() {
	defer n.w.resume(n.w.queue.stream)
	for n.up && len(n.held) > 0 && n.held[0].pos <= n.log.released() {
		if !n.owns() {
			n.w.halt(n, "lease")
			return
		}
		h := n.held[0]
		n.held[0] = held{}
		n.held = n.held[1:]
		n.w.account(h.account)
		n.perform(h)
	}
}

// outcome is how a call ended, if that is what a message tells.
func outcome(m actor.Message) (actor.Status, actor.Reason) {
	a, ok := m.(actor.Answered)
	switch {
	case !ok:
		return 0, 0
	case a.Reply.Refusal != nil:
		return a.Reply.Status, a.Reply.Refusal.Reason
	}
	return a.Reply.Status, 0
}
