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
	"github.com/troupe-run/troupe/internal/emitter"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/placement"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/specs"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/upstream"
)

// node is a simulated process. It has cells, a log and a clock of its own. A crash
// discards the same state that a real process loses.
type node struct {
	w       *Simulation
	id      actor.NodeID
	index   int
	up      bool
	process uint64 // process number; incremented at each start
	cells   []*cell
	slots   []Slot // by cell index
	clock   clock

	log           disk
	gated         []gatedEffect     // effects waiting for the log, in log order
	gatedBuf      []gatedEffect     // start of the buffer of gated, for reuse
	running       []*runningEffect  // tools and work in progress, in start order
	ownersVersion uint64            // version of the claims last sent to its cells
	member        *placement.Member // of the cluster, while its process runs
	beating       bool              // a request to the table is not answered yet
	lapsed        bool              // work waits for the renewal of its lease
	unadopted     []placement.Held  // logs of the node that no cell serves yet
	clockFault    *clockFault       // last fault of its clock, until a step has felt it
	pausedUntil   actor.Time        // simulated time until which the process is suspended
	pausedBy      Fault             // fault that suspended it, until it has delayed an event; else noFault
	diskFullUntil actor.Time        // simulated time until which its disk has no space for new work
	crashInSteps  int               // steps until it crashes; 0: no crash is planned
	upstreams     upstreamState
	streams       []*streamConn // client streams open on this node
	catalog       *catalog      // nil: the simulation has no registry
}

// cell is a production cell with the inputs that it has not processed yet.
type cell struct {
	n                 *node
	index             uint16
	self              actor.Address
	core              *runtime.Cell
	stopped           bool // it panicked, or its node crashed
	inputs            []input
	inputsBuf         []input    // start of the buffer of inputs, for reuse
	runStepFunc       func()     // runStep as a method value, made once
	stepScheduled     bool       // a step is scheduled
	tickAt            actor.Time // simulated time of the next tick; 0: none is scheduled
	strikes           []runtime.Strike
	panics            int        // number of earlier incarnations that panicked
	ownersVersion     uint64     // version of the claims last processed
	announcementsSeen int        // number of registry announcements processed
	restarted         bool       // not the first incarnation in this simulation
	slowUntil         actor.Time // simulated time until which each step takes long
	stepDue           actor.Time // simulated time of the scheduled step if a fault delays it; else 0
	overdueTicks      int        // consecutive ticks after which an expired deadline remained
}

// input is an input queued for a cell. Inputs of one order group stay in order.
type input struct {
	orderGroup    int
	in            runtime.Input
	bytes         []byte // encoded form of a message or of Owners; nil for other inputs
	ownersVersion uint64 // version of the claims; only with Owners
	cause         StreamID
	try           int    // attempt of the upstream whose piece the input carries; 0: none
	onStepped     func() // called after the step with this input; nil: no callback
}

const unordered = -1 // order group of the inputs that have no order

// gatedEffect is an effect to perform. If it is gated, it waits until the log has
// released the position pos.
type gatedEffect struct {
	cell         *cell
	effect       runtime.Effect
	bytes        []byte
	pos          store.Pos
	entryCount   int
	readopted    bool // a later incarnation of its cell awaits it
	cause        StreamID
	pieceAttempt uint32 // attempt of the streamed piece that the step processed; 0: none
	pieceTry     int    // attempt of its upstream
}

// runningEffect is a tool or work in progress. It survives a crash of its cell, but
// not of its node.
type runningEffect struct {
	id      actor.EffectID
	attempt uint32
	cell    uint16
	awaited bool   // the current incarnation of the cell awaits it
	finish  func() // delivers the result once an incarnation awaits it; nil: still running
}

// start boots a process. Its log continues at the end of the durable log. Each cell
// first receives its configuration, then Boot.
func (n *node) start() {
	w := n.w
	n.process++
	n.up, n.crashInSteps, n.pausedUntil, n.pausedBy = true, 0, 0, noFault
	n.gated, n.running, n.cells = nil, nil, nil
	n.upstreams = upstreamState{backoffs: map[string]*upstream.Backoff{}, pacings: map[string]*pacingJudge{}, health: map[string]*agentHealth{}, judged: map[string]*judgedHealth{}}
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
		w.log.note(w.now, "%s restarts", n.id)
		w.emit(history.Event{Kind: history.Restart, At: n.clock.now(w.now), From: actor.Address{Node: n.id}})
	}
	n.join()
	n.ownersVersion = w.claims.version
	for _, c := range n.cells {
		c.boot(nil)
	}
	w.startCrashes.boot(n)
	n.pollAgents()
}

func (n *node) newCell(index uint16, incarnation uint64) *cell {
	self := actor.Address{Node: n.id, Cell: index, Incarnation: incarnation}
	c := &cell{n: n, index: index, self: self, restarted: incarnation != 1<<16,
		core: runtime.NewCell(runtime.Config{Self: self, Cells: n.w.plan.Cells[n.index], Tools: n.w.tools, Failpoints: n.w.failpointFires, PublishOnDemand: n.w.plan.OnDemand, Spending: n.w.plan.spending(),
			Seed: mix(mix(n.w.seed, uint64(n.index)<<16|uint64(index)), incarnation)})}
	c.runStepFunc = c.runStep
	return c
}

// boot passes the configuration to a cell in the same order as production, and then
// Boot.
func (c *cell) boot(running []actor.EffectID) {
	w := c.n.w
	table, bytes := w.claims.listed()
	for _, in := range [...]input{
		{in: runtime.Limits{Limits: w.limits}},
		{in: c.n.runtimeAgents()},
		{in: runtime.Owners{Table: table}, bytes: bytes, ownersVersion: w.claims.version},
		{in: runtime.Boot{Running: running, Strikes: c.strikes}},
	} {
		if c.step(in); c.stopped {
			return
		}
	}
}

// enqueue queues an input for the cell.
func (c *cell) enqueue(in input) {
	if c.stopped {
		return
	}
	if len(c.inputs) == 0 {
		c.inputs = c.inputsBuf
	}
	c.n.w.enqueued++
	in.cause = c.n.w.queue.stream.cause()
	c.inputs = append(c.inputs, in)
	if len(c.inputs) == 1 {
		c.inputsBuf = c.inputs[:0]
	}
	c.scheduleStep()
}

// scheduleStep schedules the next step, if an input is queued.
func (c *cell) scheduleStep() {
	if c.stepScheduled || c.stopped || len(c.inputs) == 0 {
		return
	}
	c.stepScheduled = true
	w := c.n.w
	defer w.setStream(w.setStream(topicCell + StreamID(c.n.index)<<8 + StreamID(c.index)))
	wait := w.scheduler.stepDelay(c)
	if c.slowUntil > w.now {
		c.stepDue = w.now.Add(wait)
		wait += w.extraDelay(CellSlow, w.between(5*time.Millisecond, 100*time.Millisecond))
	}
	w.after(wait, c.runStepFunc)
}

func (c *cell) runStep() {
	c.stepScheduled = false
	switch w := c.n.w; {
	case c.stopped:
	case c.n.pausedUntil > w.now:
		c.n.countPause(w.now, c.n.pausedUntil)
		w.queue.schedule(c.n.pausedUntil, c.scheduleStep)
	case !c.n.leaseValid():
		c.n.awaitLease()
	default:
		if c.stepDue != 0 {
			recordChange(w, CellSlow, c.stepDue, w.now, "%s delays a step by %v", c.self, w.now.Sub(c.stepDue))
			c.stepDue = 0
		}
		in := c.dequeue()
		w.setCause(in.cause)
		c.step(in)
		c.scheduleStep()
	}
}

// dequeue removes and returns the input that the schedule selects.
func (c *cell) dequeue() input {
	i := c.n.w.scheduler.next(c)
	in := c.inputs[i]
	copy(c.inputs[1:i+1], c.inputs[:i])
	c.inputs[0] = input{}
	c.inputs = c.inputs[1:]
	return in
}

// step performs one step of the cell. It logs the input and the output, appends the
// entries, and then performs the effects.
func (c *cell) step(in input) {
	w, n := c.n.w, c.n
	now := n.readClock()
	w.log.input(c.self, now, in.in, in.bytes)
	if in.ownersVersion > 0 {
		c.ownersVersion = in.ownersVersion
	}
	w.transcripts.cell, w.transcripts.begun = c, nil
	ready, ok := c.stepCore(now, in.in)
	w.Stats.Steps++
	if w.plan.Steps > 0 && !w.recovering {
		w.Stats.TenthSteps[w.currentTenth()]++
	}
	if !ok {
		return
	}
	w.deriveEvents(&ready)
	w.approvals.step(c, in.in, &ready)
	w.transcripts.stepped(ready.Entries)
	operator{w}.stepped(ready.Events)
	for i := range ready.Entries {
		w.log.entry(&ready.Entries[i])
	}
	pos := n.log.appendEntries(ready.Entries)
	if count := len(ready.Entries); count > 0 {
		ready.Events = append(ready.Events, history.Event{Kind: history.Append, At: now, From: c.self, Pos: uint64(pos), Wrote: count})
	}
	w.observe(ready.Events...)
	w.checkAnsweredBy(n, in.in, ready.Events)
	w.eventJudge.recordSubscriptions(c, in.in, ready.Events)
	w.observeReports(c, &ready)
	if w.judgesBytes {
		w.eventJudge.step(c, in.in, &ready)
	}
	w.durabilityJudge.step(c, in.in, ready.Events)
	w.active.step(c, ready.Events)
	w.Stats.countStep(c, in.in, ready.Events)
	attempt := pieceAttempt(in.in)
	w.recordRetracted(c, ready.Effects)
	for _, e := range ready.Effects {
		var bytes []byte
		if send, ok := e.Op.(runtime.Send); ok {
			bytes = actor.Encode(send.Envelope)
		}
		w.log.effect(&e, bytes)
		g := gatedEffect{cell: c, effect: e, bytes: bytes, pos: pos, entryCount: len(ready.Entries), cause: w.queue.stream.cause(), pieceAttempt: attempt, pieceTry: in.try}
		if e.Gated && n.log.released() < pos {
			if len(n.gated) == 0 {
				n.gated = n.gatedBuf
			}
			if n.gated = append(n.gated, g); len(n.gated) == 1 {
				n.gatedBuf = n.gated[:0]
			}
		} else {
			n.perform(g)
		}
	}
	n.checkAborted(ready.Events)
	if _, isTick := in.in.(runtime.Tick); isTick {
		c.checkOverdue(now)
	}
	c.armTimer()
	w.afterStep(n)
	if in.onStepped != nil {
		in.onStepped()
	}
}

// stepCore steps the production cell. It returns false if the step panicked. The
// cell is then stopped.
func (c *cell) stepCore(now actor.Time, in runtime.Input) (ready runtime.Ready, ok bool) {
	c.n.w.Stats.Audit.CellNeverPanics++
	given := in
	if v, ok := in.(*runtime.Visit); ok { // the cell completes the call; judges read what the client sent
		own := *v
		given = &own
	}
	ready, stepPanic := c.n.slots[c.index].Step(c.core, now, given)
	if stepPanic == nil {
		return ready, true
	}
	injected, isInjected := stepPanic.Reason.(injectedPanic)
	if !isInjected {
		injected.fault = noFault
		c.n.w.fail(CellNeverPanics, fmt.Sprintf("%s: %v on %T\n%s", c.self, stepPanic.Reason, in, stepPanic.Stack))
	}
	c.handlePanic(injected)
	return runtime.Ready{}, false
}

// panicStack returns the frames of a panic that belong to this module, innermost
// first. It stops at the first function of package sim.
func panicStack() string {
	return stackUntil(func(name string) bool { return strings.HasPrefix(name, "sim.") })
}

// stackUntil returns the frames of a panic up to the first function for which the
// callback end returns true. The function that recovers MUST call stackUntil directly, or
// through one other function.
func stackUntil(end func(name string) bool) string {
	pcs := make([]uintptr, 64)
	frames := goruntime.CallersFrames(pcs[:goruntime.Callers(4, pcs)])
	var b strings.Builder
	for {
		f, more := frames.Next()
		name, inModule := strings.CutPrefix(f.Function, "github.com/troupe-run/troupe/")
		if end(name) || !more {
			return b.String()
		}
		if inModule {
			fmt.Fprintf(&b, "    %s %s:%d\n", name, path.Base(f.File), f.Line)
		}
	}
}

// overdueTicksMax is the maximum number of consecutive ticks after which a cell may
// leave an expired deadline unhandled.
const overdueTicksMax = 16

// checkOverdue checks that a cell handles expired deadlines. A cell that postpones
// these deadlines at every tick would stop the simulated time.
func (c *cell) checkOverdue(now actor.Time) {
	due, ok := c.core.NextDeadline()
	if !ok || due > now {
		c.overdueTicks = 0
		return
	}
	if c.overdueTicks++; c.overdueTicks == overdueTicksMax {
		c.n.w.fail(specs.EveryCallEnds, fmt.Sprintf("%s handled %d consecutive ticks and left a deadline unhandled that expired %v ago",
			c.self, overdueTicksMax, now.Sub(due)))
	}
}

// armTimer schedules a tick at the next deadline of the cell.
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

// The order groups of a cell's inputs other than messages between nodes.
const (
	orderWorld = 0
	orderTimer = 1
	orderCells = 2 // first group of messages within the node; each sending cell and lane has its own
)

func orderGroupOf(from *cell, env *actor.Envelope) int {
	lane := 0
	if r, ok := env.Body.(actor.Request); ok {
		lane = int(r.Call.Lane)
	}
	return orderCells + int(from.index)*8 + lane
}

// perform performs an effect whose gate is open.
func (n *node) perform(g gatedEffect) {
	w, c, e := n.w, g.cell, &g.effect
	if isWork(e.Op) {
		defer w.setStream(w.setStream(topicUpstream + StreamID(n.index)))
	}
	switch op := e.Op.(type) {
	case runtime.Send:
		if op.Node == n.id {
			env, err := w.decode(g.bytes)
			if err != nil {
				w.fail(CodecRoundTrip, fmt.Sprintf("%s sent a message that cannot be decoded: %v", c.self, err))
				return
			}
			if int(op.Cell) < len(n.cells) {
				n.cells[op.Cell].enqueue(input{orderGroup: orderGroupOf(c, &env), in: runtime.Deliver{Envelope: env}, bytes: g.bytes})
			}
			return
		}
		status, reason := replyOutcome(op.Envelope.Body)
		w.emitPerform(&g, "send", op.Envelope.Body.Name(), op.Envelope.Body.Subject(), status, reason)
		w.transmit(n, op, g.bytes)
	case runtime.Respond:
		status, reason := replyOutcome(actor.Answered{Reply: op.Reply})
		w.emitPerform(&g, "respond", "", op.Call, status, reason)
		w.deliverReply(n, op)
	case runtime.Joined:
		w.handleJoined(op)
	case runtime.Publish:
		w.emitPerform(&g, "publish", "", op.Event.Run, 0, 0)
		w.Stats.Published[runs.TypeOf(op.Event.Body)]++
		w.recordShown(&g, op.Event)
		w.handlePublished(n, op.Event)
	case runtime.Tool:
		tool, _ := w.tools.Tool(op.Name)
		w.approvals.performed(e.ID, &op)
		w.emitPerform(&g, "tool", onceMark(tool.Idempotent || op.Declared != nil && op.Declared.Idempotent), e.ID.Run, 0, 0)
		if op.Name == agents.ToolAnnounce {
			n.performAnnounce(&g, op)
			return
		}
		own := g // startEffect keeps the pointer
		n.performTool(&own, op)
	case runtime.Work:
		w.emitPerform(&g, "work", "", e.ID.Run, 0, 0)
		n.startEffect(&g, op.Left, func() actor.Answer {
			// Pieces of work are not shown: a team has no clients that stream.
			out, err := op.Func(emitter.With(context.Background(), func(string) {}))
			if err != nil {
				return actor.Answer{Refusal: actor.Refuse(actor.Unavailable, "%s: %v", op.Name, err)}
			}
			return actor.Answer{Parts: actor.Text(string(out))}
		})
	case runtime.Model:
		w.emitPerform(&g, "model", "", e.ID.Run, 0, 0)
		n.callModel(&g, op)
	case runtime.Invoke:
		w.emitPerform(&g, "invoke", onceMark(op.Idempotent), e.ID.Run, 0, 0)
		n.invokeAgent(&g, op)
	case runtime.Adjust:
		n.adjustExchange(e, op.Left)
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
	case runtime.MayForget:
		n.w.retention.check(c, op)
	case runtime.Forgot:
		n.w.retention.forgot(n, op)
	}
}

// startEffect runs a tool or work. The result is delivered after a delay, to the
// incarnation of the cell that exists then. If that incarnation does not await the
// result yet, the result is kept until the time left is over.
func (n *node) startEffect(g *gatedEffect, left actor.Duration, run func() actor.Answer) {
	r := n.trackEffect(g)
	n.after(n.w.between(50*time.Microsecond, 40*time.Millisecond), func() { n.completeEffect(r, left, run) })
}

// completeEffect delivers the result of an effect to the cell that awaits it, now or
// later.
func (n *node) completeEffect(r *runningEffect, left actor.Duration, run func() actor.Answer) {
	finish := func() {
		if n.untrackEffect(r) {
			n.cells[r.cell].enqueue(input{orderGroup: unordered, in: runtime.Outcome{ID: r.id, Attempt: r.attempt, Answer: run()}})
		}
	}
	if r.awaited {
		finish()
		return
	}
	r.finish = finish
	n.after(left, func() { n.untrackEffect(r) })
}

// trackEffect adds an effect to those in progress.
func (n *node) trackEffect(g *gatedEffect) *runningEffect {
	r := &runningEffect{id: g.effect.ID, attempt: g.effect.Attempt, cell: g.cell.index, awaited: !g.cell.stopped || g.readopted}
	n.running = append(n.running, r)
	return r
}

// orphanEffects marks the effects of a cell as not awaited, until its next
// incarnation awaits them.
func (n *node) orphanEffects(cell uint16) {
	for _, r := range n.running {
		r.awaited = r.awaited && r.cell != cell
	}
	for i := range n.gated {
		n.gated[i].readopted = n.gated[i].readopted && n.gated[i].cell.index != cell
	}
}

// awaitEffect delivers the result of an effect of an earlier incarnation, now or when
// it is complete.
func (n *node) awaitEffect(e *runtime.Effect) {
	for _, r := range slices.Clone(n.running) {
		if r.id == e.ID && r.attempt == e.Attempt {
			if r.awaited = true; r.finish != nil {
				r.finish()
			}
		}
	}
	for i := range n.gated {
		if g := &n.gated[i]; isWork(g.effect.Op) && g.effect.ID == e.ID && g.effect.Attempt == e.Attempt {
			g.readopted = true
		}
	}
}

// awaitsOutcome reports whether an effect in progress has no outcome yet.
func (n *node) awaitsOutcome(r *runningEffect) bool {
	return r.finish == nil && slices.Contains(n.running, r)
}

// untrackEffect removes an effect from those in progress. It reports whether the
// effect was still in progress.
func (n *node) untrackEffect(r *runningEffect) bool {
	i := slices.Index(n.running, r)
	if i >= 0 {
		n.running = slices.Delete(n.running, i, i+1)
	}
	return i >= 0
}

// abortEffect cancels an effect that is in progress or waits for its gate.
func (n *node) abortEffect(e *runtime.Effect) {
	n.running = slices.DeleteFunc(n.running, func(r *runningEffect) bool { return r.id == e.ID && r.attempt == e.Attempt })
	n.gated = slices.DeleteFunc(n.gated, func(g gatedEffect) bool {
		return isWork(g.effect.Op) && g.effect.ID == e.ID && g.effect.Attempt == e.Attempt
	})
}

func isWork(op runtime.Op) bool {
	switch op.(type) {
	case runtime.Tool, runtime.Work, runtime.Model, runtime.Invoke:
		return true
	}
	return false
}

// after calls the function do on behalf of this process, once the delay is over. The
// call is dropped if the process has exited, and deferred while the process is paused.
func (n *node) after(delay time.Duration, do func()) {
	n.w.queue.push(queuedEvent{at: n.w.now.Add(delay), fn: do, node: n, process: n.process})
}

// pause has fault f suspend the process.
func (n *node) pause(f Fault, until actor.Time) {
	n.pausedUntil, n.pausedBy = max(n.pausedUntil, until), f
}

// countPause counts the fault that suspends the process when it first delays an event.
func (n *node) countPause(due, at actor.Time) {
	if recordChange(n.w, n.pausedBy, due, at, "%s is paused until %v", n.id, at.Sub(Origin)) {
		n.pausedBy = noFault
	}
}

// releaseGated performs the effects whose log position the log has released.
func (n *node) releaseGated() {
	defer n.w.restoreStream(n.w.queue.stream)
	for n.up && len(n.gated) > 0 && n.gated[0].pos <= n.log.released() {
		if !n.leaseValid() {
			n.awaitLease()
			return
		}
		g := n.gated[0]
		n.gated[0] = gatedEffect{}
		n.gated = n.gated[1:]
		n.w.setCause(g.cause)
		n.perform(g)
	}
}

// replyOutcome returns the status and refusal reason of a reply; zero for other
// messages.
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
