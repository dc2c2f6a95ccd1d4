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
	w       *Simulation
	id      actor.NodeID
	index   int
	up      bool
	process uint64 // counts its starts
	cells   []*cell
	slots   []Slot // of the cells, by their index
	clock   clock

	log           disk
	gated         []gatedEffect    // effects behind the gate, in order
	gatedBuf      []gatedEffect    // where they stand when they begin anew
	running       []*runningEffect // tools and work under way, in order
	ownersVersion uint64           // the version of the claims that its cells were told
	leaseUntil    actor.Time       // by the world's time: until when it believes it owns what it claimed
	pausedUntil   actor.Time       // until when it stands still
	diskFullUntil actor.Time       // until when its disk has no room for new work
	crashInSteps  int              // in how many steps it dies; 0: not
	upstreams     upstreamState
	streams       []*streamConn // that clients read here
	catalog       *catalog      // nil: there is no registry
}

// cell is one production cell and what it has not taken in yet.
type cell struct {
	n                 *node
	index             uint16
	self              actor.Address
	core              *runtime.Cell
	stopped           bool // it panicked, or its node crashed
	inputs            []input
	inputsBuf         []input    // where they stand when they begin anew
	runStepFunc       func()     // goOn
	stepScheduled     bool       // a step is on its way
	tickAt            actor.Time // by the world's time: when it is told the time next; 0: not
	strikes           []runtime.Strike
	panics            int        // how many incarnations before it have panicked
	ownersVersion     uint64     // the version of the claims that it has taken in
	announcementsSeen int        // how many announcements of the registry
	restarted         bool       // it is not the first incarnation since the world began
	slowUntil         actor.Time // until when each step takes long
	overdueTicks      int        // how often it was told the time, one after the other, over what is due still
}

// input is one thing for a cell to take in. Those of one stream keep their order.
type input struct {
	orderGroup    int
	in            runtime.Input
	bytes         []byte // of a message, as it came
	ownersVersion uint64 // of the claims, with Owners
	cause         StreamID
	onStepped     func() // it was stepped with; nil: nobody wants to know
}

const unordered = -1 // the stream of what has no order

// gatedEffect is an effect that waits for the log.
type gatedEffect struct {
	cell         *cell
	effect       runtime.Effect
	bytes        []byte
	pos          store.Pos
	entryCount   int
	readopted    bool // a later incarnation of its cell awaits it
	cause        StreamID
	pieceAttempt uint32 // of which attempt the step took in a piece
}

// runningEffect is a tool or work under way. It outlives its cell, not its node.
type runningEffect struct {
	id      actor.EffectID
	attempt uint32
	cell    uint16
	awaited bool   // by the incarnation that there is
	finish  func() // it is done, and not awaited: gives its outcome to who awaits it
}

// start runs the boot code of a process: a log that goes on where the disk ends,
// and cells that are told what there is, then Boot.
func (n *node) start() {
	w := n.w
	n.process++
	n.up, n.crashInSteps, n.pausedUntil = true, 0, 0
	n.gated, n.running, n.cells = nil, nil, nil
	n.upstreams = upstreamState{backoffs: map[string]*upstream.Backoff{}, health: map[string]*upstream.Health{}}
	n.log.open(n)
	n.checkAllowListValidation()
	n.loadCatalog()
	for i := range w.plan.Cells[n.index] {
		if i == len(n.slots) {
			n.slots = append(n.slots, invariant.Must(w.engine.NewSlot(fmt.Sprintf("%s.%d", n.id, i))))
		}
		n.cells = append(n.cells, n.newCell(uint16(i), n.process<<16))
	}
	if n.process > 1 {
		w.log.note(w.now, "%s starts again", n.id)
		w.emit(history.Event{Kind: history.Restart, At: n.clock.now(w.now), From: actor.Address{Node: n.id}})
	}
	w.join(n)
	n.ownersVersion = w.claims.version
	for _, c := range n.cells {
		c.boot(nil)
	}
	n.pollAgents()
}

func (n *node) newCell(index uint16, incarnation uint64) *cell {
	self := actor.Address{Node: n.id, Cell: index, Incarnation: incarnation}
	c := &cell{n: n, index: index, self: self, restarted: incarnation != 1<<16,
		core: runtime.NewCell(runtime.Config{Self: self, Tools: n.w.tools, Failpoints: n.w.failpointFires,
			Seed: mix(mix(n.w.seed, uint64(n.index)<<16|uint64(index)), incarnation)})}
	c.runStepFunc = c.runStep
	return c
}

// boot tells a cell what there is, as a process does.
func (c *cell) boot(running []actor.EffectID) {
	w := c.n.w
	table, bytes := w.claims.owners()
	for _, in := range [...]input{
		{in: runtime.Limits{Limits: w.plan.Limits}},
		{in: c.n.runtimeAgents()},
		{in: runtime.Owners{Table: table}, bytes: bytes, ownersVersion: w.claims.version},
		{in: runtime.Boot{Running: running, Strikes: c.strikes}},
	} {
		if c.step(in); c.stopped {
			return
		}
	}
}

// enqueue gives a cell something to take in.
func (c *cell) enqueue(in input) {
	if c.stopped {
		return
	}
	if len(c.inputs) == 0 {
		c.inputs = c.inputsBuf
	}
	in.cause = c.n.w.queue.stream.cause()
	c.inputs = append(c.inputs, in)
	if len(c.inputs) == 1 {
		c.inputsBuf = c.inputs[:0]
	}
	c.scheduleStep()
}

// scheduleStep has the cell step soon, if there is something to take in.
func (c *cell) scheduleStep() {
	if c.stepScheduled || c.stopped || len(c.inputs) == 0 {
		return
	}
	c.stepScheduled = true
	w := c.n.w
	defer w.setStream(w.setStream(topicCell + StreamID(c.n.index)<<8 + StreamID(c.index)))
	wait := w.scheduler.stepDelay(c)
	if c.slowUntil > w.now {
		more := w.between(5*time.Millisecond, 100*time.Millisecond)
		w.recordFault(CellSlow, "%s takes %v over a step", c.self, more)
		wait += more
	}
	w.after(wait, c.runStepFunc)
}

func (c *cell) runStep() {
	c.stepScheduled = false
	switch w := c.n.w; {
	case c.stopped:
	case c.n.pausedUntil > w.now:
		w.queue.schedule(c.n.pausedUntil, c.scheduleStep)
	default:
		in := c.dequeue()
		w.setCause(in.cause)
		c.step(in)
		c.scheduleStep()
	}
}

// dequeue takes the input that the schedule says.
func (c *cell) dequeue() input {
	i := c.n.w.scheduler.next(c)
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
	if !n.leaseValid() {
		w.halt(n, "lease")
		return
	}
	now := n.clock.now(w.now)
	w.log.input(c.self, now, in.in, in.bytes)
	if in.ownersVersion > 0 {
		c.ownersVersion = in.ownersVersion
	}
	ready, ok := c.stepCore(now, in.in)
	w.Stats.Steps++
	if w.plan.Steps > 0 && !w.recovering {
		w.Stats.TenthSteps[w.currentTenth()]++
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
	w.Stats.countStep(c, in.in, ready.Events)
	shows := pieceAttempt(in.in)
	w.recordRetracted(c, ready.Effects)
	for _, e := range ready.Effects {
		var bytes []byte
		if send, ok := e.Op.(runtime.Send); ok {
			bytes = actor.Encode(send.Envelope)
		}
		w.log.effect(&e, bytes)
		h := gatedEffect{cell: c, effect: e, bytes: bytes, pos: pos, entryCount: len(ready.Entries), cause: w.queue.stream.cause(), pieceAttempt: shows}
		if e.Gated && n.log.released() < pos {
			if len(n.gated) == 0 {
				n.gated = n.gatedBuf
			}
			if n.gated = append(n.gated, h); len(n.gated) == 1 {
				n.gatedBuf = n.gated[:0]
			}
		} else {
			n.perform(h)
		}
	}
	if _, told := in.in.(runtime.Tick); told {
		c.checkOverdue(now)
	}
	c.armTimer()
	w.afterStep(n)
	if in.onStepped != nil {
		in.onStepped()
	}
}

// stepCore steps the cell; false if it panicked, and is no more.
func (c *cell) stepCore(now actor.Time, in runtime.Input) (ready runtime.Ready, ok bool) {
	ready, fall := c.n.slots[c.index].Step(c.core, now, in)
	if fall == nil {
		return ready, true
	}
	planned, ours := fall.Reason.(injectedPanic)
	if !ours {
		planned.fault = Fault(faultKinds)
		c.n.w.fail(CellNeverPanics, fmt.Sprintf("%s: %v on %T\n%s", c.self, fall.Reason, in, fall.Stack))
	}
	c.handlePanic(planned)
	return runtime.Ready{}, false
}

// panicStack is the frames of ours in the stack of a panic, from where it began.
func panicStack() string {
	return stackUntil(func(name string) bool { return strings.HasPrefix(name, "sim.") })
}

// stackUntil is that of a panic, up to a function, which is called by who recovers.
func stackUntil(end func(name string) bool) string {
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

// overdueTicksMax is how often a cell may leave for the next time what is due.
const overdueTicksMax = 16

// checkOverdue sees to it that what is due happens then: a cell that leaves it for
// the next time, every time, lets no time pass.
func (c *cell) checkOverdue(now actor.Time) {
	due, ok := c.core.NextDeadline()
	if !ok || due > now {
		c.overdueTicks = 0
		return
	}
	if c.overdueTicks++; c.overdueTicks == overdueTicksMax {
		c.n.w.fail(specs.EveryCallEnds, fmt.Sprintf("%s was told the time %d times, one after the other, and has left undone what was due %v before",
			c.self, overdueTicksMax, now.Sub(due)))
	}
}

// armTimer has the cell told the time when it is due.
func (c *cell) armTimer() {
	due, ok := c.core.NextDeadline()
	if !ok {
		return
	}
	w := c.n.w
	at := max(c.n.clock.simTimeAt(due), w.now+1)
	if c.tickAt != 0 && c.tickAt <= at {
		return
	}
	c.tickAt = at
	w.queue.schedule(at, func() {
		if c.stopped || c.tickAt != at {
			return
		}
		c.tickAt = 0
		if due, ok := c.core.NextDeadline(); ok && due > c.n.clock.now(w.now) {
			c.armTimer()
			return
		}
		c.enqueue(input{orderGroup: orderTimer, in: runtime.Tick{}})
	})
}

// The streams of what a cell takes in besides messages.
const (
	orderWorld = 0
	orderTimer = 1
	orderCells = 2 // and up: one for each cell of the node and lane
)

func orderGroupOf(from *cell, env *actor.Envelope) int {
	lane := 0
	if r, ok := env.Body.(actor.Request); ok {
		lane = int(r.Call.Lane)
	}
	return orderCells + int(from.index)*8 + lane
}

// perform does what a cell wants done; the gate is open.
func (n *node) perform(h gatedEffect) {
	w, c, e := n.w, h.cell, &h.effect
	if isWork(e.Op) {
		defer w.setStream(w.setStream(topicUpstream + StreamID(n.index)))
	}
	switch op := e.Op.(type) {
	case runtime.Send:
		if op.Node == n.id {
			env, err := actor.Decode(h.bytes)
			if err != nil {
				w.fail(CodecRoundTrip, fmt.Sprintf("%s sends what it cannot read: %v", c.self, err))
				return
			}
			if int(op.Cell) < len(n.cells) {
				n.cells[op.Cell].enqueue(input{orderGroup: orderGroupOf(c, &env), in: runtime.Deliver{Envelope: env}, bytes: h.bytes})
			}
			return
		}
		status, reason := replyOutcome(op.Envelope.Body)
		w.emitPerform(&h, "send", op.Envelope.Body.Name(), op.Envelope.Body.Subject(), status, reason)
		w.transmit(n, op, h.bytes)
	case runtime.Respond:
		status, reason := replyOutcome(actor.Answered{Reply: op.Reply})
		w.emitPerform(&h, "respond", "", op.Call, status, reason)
		w.deliverReply(n, op)
	case runtime.Joined:
		w.handleJoined(op)
	case runtime.Publish:
		w.emitPerform(&h, "publish", "", op.Event.Run, 0, 0)
		w.Stats.Published[runs.TypeOf(op.Event.Body)]++
		w.recordShown(&h, op.Event)
		w.handlePublished(n, op.Event)
	case runtime.Tool:
		tool, _ := w.tools.Tool(op.Name)
		w.emitPerform(&h, "tool", onceMark(tool.Idempotent), e.ID.Run, 0, 0)
		if op.Name == agents.ToolAnnounce {
			n.performAnnounce(&h, op)
			return
		}
		own := h // it is kept
		n.performTool(&own, op)
	case runtime.Work:
		w.emitPerform(&h, "work", "", e.ID.Run, 0, 0)
		n.startEffect(&h, op.Left, func() actor.Answer {
			out, err := op.Func(context.Background())
			if err != nil {
				return actor.Answer{Refusal: actor.Refuse(actor.Unavailable, "%s: %v", op.Name, err)}
			}
			return actor.Answer{Parts: actor.Text(string(out))}
		})
	case runtime.Model:
		w.emitPerform(&h, "model", "", e.ID.Run, 0, 0)
		n.callModel(&h, op)
	case runtime.Invoke:
		w.emitPerform(&h, "invoke", onceMark(op.Idempotent), e.ID.Run, 0, 0)
		n.invokeAgent(&h, op)
	case runtime.Abort:
		n.abortEffect(e)
		n.cancelExchange(e)
	case runtime.Await:
		n.awaitEffect(e)
		n.awaitExchange(e)
	case runtime.Load:
		n.log.load(c, op)
	case runtime.Expiries:
		n.log.loadDue(c, op.Shards)
	}
}

// startEffect has a tool or work done: its outcome comes some time later, to the cell
// that is there then. If that does not know of it yet it is kept, as long as
// somebody may still wait for it.
func (n *node) startEffect(h *gatedEffect, left actor.Duration, run func() actor.Answer) {
	d := n.trackEffect(h)
	n.after(n.w.between(50*time.Microsecond, 40*time.Millisecond), func() { n.completeEffect(d, left, run) })
}

// completeEffect brings what came of an effect to who awaits it, now or later.
func (n *node) completeEffect(d *runningEffect, left actor.Duration, run func() actor.Answer) {
	end := func() {
		if n.untrackEffect(d) {
			n.cells[d.cell].enqueue(input{orderGroup: unordered, in: runtime.Outcome{ID: d.id, Attempt: d.attempt, Answer: run()}})
		}
	}
	if d.awaited {
		end()
		return
	}
	d.finish = end
	n.after(left, func() { n.untrackEffect(d) })
}

// trackEffect puts an effect on the list of what is under way.
func (n *node) trackEffect(h *gatedEffect) *runningEffect {
	d := &runningEffect{id: h.effect.ID, attempt: h.effect.Attempt, cell: h.cell.index, awaited: !h.cell.stopped || h.readopted}
	n.running = append(n.running, d)
	return d
}

// orphanEffects notes that nobody awaits what a cell wanted done, until its next
// incarnation does.
func (n *node) orphanEffects(cell uint16) {
	for _, d := range n.running {
		d.awaited = d.awaited && d.cell != cell
	}
	for i := range n.gated {
		n.gated[i].readopted = n.gated[i].readopted && n.gated[i].cell.index != cell
	}
}

// awaitEffect gives a cell what came of an effect of its incarnation before, now or later.
func (n *node) awaitEffect(e *runtime.Effect) {
	for _, d := range slices.Clone(n.running) {
		if d.id == e.ID && d.attempt == e.Attempt {
			if d.awaited = true; d.finish != nil {
				d.finish()
			}
		}
	}
	for i := range n.gated {
		if h := &n.gated[i]; isWork(h.effect.Op) && h.effect.ID == e.ID && h.effect.Attempt == e.Attempt {
			h.readopted = true
		}
	}
}

// untrackEffect takes something off the list of what is under way; false if it was not
// on it any more.
func (n *node) untrackEffect(d *runningEffect) bool {
	i := slices.Index(n.running, d)
	if i >= 0 {
		n.running = slices.Delete(n.running, i, i+1)
	}
	return i >= 0
}

// abortEffect gives up an effect under way, or one that has not got through its gate.
func (n *node) abortEffect(e *runtime.Effect) {
	n.running = slices.DeleteFunc(n.running, func(d *runningEffect) bool { return d.id == e.ID && d.attempt == e.Attempt })
	n.gated = slices.DeleteFunc(n.gated, func(h gatedEffect) bool {
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

// after runs something on behalf of this process, if it is still there then, and
// not before it goes on if it stands still.
func (n *node) after(delay time.Duration, do func()) {
	n.w.queue.push(queuedEvent{at: n.w.now.Add(delay), fn: do, node: n, process: n.process})
}

// releaseGated performs what the log lets go.
func (n *node) releaseGated() {
	defer n.w.restoreStream(n.w.queue.stream)
	for n.up && len(n.gated) > 0 && n.gated[0].pos <= n.log.released() {
		if !n.leaseValid() {
			n.w.halt(n, "lease")
			return
		}
		h := n.gated[0]
		n.gated[0] = gatedEffect{}
		n.gated = n.gated[1:]
		n.w.setCause(h.cause)
		n.perform(h)
	}
}

// replyOutcome is how a call ended, if that is what a message tells.
func replyOutcome(m actor.Message) (actor.Status, actor.Reason) {
	a, ok := m.(actor.Answered)
	switch {
	case !ok:
		return 0, 0
	case a.Reply.Refusal != nil:
		return a.Reply.Status, a.Reply.Refusal.Reason
	}
	return a.Reply.Status, 0
}
