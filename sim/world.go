// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"io"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/specs"
	"github.com/troupe-run/troupe/specs/linear"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

// Options say how a world is run. The zero Options run the seed 0.
type Options struct {
	Seed      uint64
	Chooser   Chooser   // nil: drawn from the seed
	Events    io.Writer // gets the canonical log; nil: nobody does
	Unhashed  bool      // nobody asks for the hash either: then no log is written
	Columns   *Columns  // is shown what happens; nil: nobody is
	Page      *Page     // likewise
	Parts     Parts
	Trace     io.Writer           // gets the history as lines of JSON; nil: nobody does
	Plain     bool                // a small world such as tla/Trace.tla knows
	Long      bool                // an hour and more
	Faultless bool                // no fault but those in Odds
	Odds      []Odds              // of faults, set by hand
	Strategy  string              // "": drawn; else the name of one
	Team      *Team               // plays in the world that is drawn; nil: the world's own agents
	Plan      *Plan               // nil: drawn; else who made it asks, and says when there are no more faults
	strict    func(*specs.Limits) // a test's: specs that ask for more than the code promises
	rule      rule                // a test's: what must not happen besides
	shrink    budget              // a test's: less than a shrink may take
	forgetful bool                // a test's: who keeps something forgets it after a while
	Shrunk    func(steps int)     // is told how many steps a failure has whenever it gets smaller; nil: nobody is
	StepsMax  int                 // 0: as many as it takes; else it ends there, at rest or not
}

// rule names the spec that an event breaks which comes so long after the world
// began; "" is none.
type rule func(at actor.Duration, e *history.Event) (spec string)

// Parts are real parts that stand in for imagined ones.
type Parts struct {
	Disk  func() (Disk, error)  // an empty one for each world; nil: store.Memory
	Drive func() (Drive, error) // one for each world; nil: the world steps its cells itself
}

// Disk is a real store. What was applied is there after a crash, which comes
// with each crash of a node.
type Disk interface {
	store.KV
	Crash() error
	Close() error
}

// Violation is a property that did not hold.
type Violation struct {
	Spec   string
	Detail string
	At     actor.Duration // since the world began
	Step   int
	// History is the one that no single machine has, if that is what is wrong.
	History *linear.Illegal
}

// Error names the spec, and says who and when.
func (v *Violation) Error() string {
	return fmt.Sprintf("%s broken at %v, after %d steps: %s", v.Spec, v.At, v.Step, v.Detail)
}

// watcher is shown what happens.
type watcher interface {
	begin(w *World)
	event(now actor.Time, e *history.Event)
	fault(now actor.Time, f Fault, what string)
}

// World is all there is.
type World struct {
	Stats Stats

	seed      uint64
	stepsMax  int
	choose    Chooser
	plan      Plan
	schedule  scheduler
	now       actor.Time
	queue     queue
	log       *Log
	watch     []watcher
	checker   *specs.Checker
	rule      rule
	nodes     []*node
	net       network
	kv        store.KV
	disk      Disk // kv, if it is a real one
	drive     Drive
	claims    claims
	tools     *tools.Registry
	clients   []*client
	lines     []*line    // that wait, in order
	rares     uint64     // which rare things happen
	arrivals  StreamID   // how often somebody may have come
	strikes   StreamID   // how often faults were asked for by the clock
	asking    int        // clients who are about to ask again
	asked     actor.Time // when the last did
	lastCame  actor.Time // when the last client came
	absent    int        // the agent that is not in the registry just now; -1: none
	fates     map[actor.CallID]fate
	ids       uint64
	draws     uint64 // of numbers that nodes draw for themselves
	listeners []*listener
	listening int // of them that have not read the end
	keys      int // the number of the one that is good
	registry  actor.Definition
	announced [][]actor.StateItem // by it, in order
	clerk     *clerk              // nil: nobody has the registry do anything
	judge     *linear.Judge
	team      *Team // nil: the world's own agents
	reporter  *reporter
	groups    []string                // of shards, by name
	keyed     map[actor.CallID]string // asks by clients who have a key
	values    int                     // that were left with who keeps them
	jobs      int                     // that external agents deal with
	looping   map[actor.CallID]bool   // runs whose model goes round and round
	calm      bool                    // no more faults
	since     actor.Time              // calm
	trouble   actor.Time              // when something was lost or late last
	over      bool
	examined  int // how often the store was, after rot
	wrote     *specimens
	story     bool // nobody comes by themselves
	broken    *Violation
	single    [1]history.Event // that tell hands on
}

// New makes the world of a seed: nodes that have just started, and a workload
// that is about to come.
func New(o Options) *World {
	w := &World{seed: o.Seed, rule: o.rule, stepsMax: o.StepsMax, choose: o.Chooser, now: Origin, log: newLog(o), kv: &store.Memory{},
		drive: direct{}, absent: -1, fates: map[actor.CallID]fate{}, looping: map[actor.CallID]bool{},
		judge: linear.New(), keyed: map[actor.CallID]string{}}
	if o.Columns != nil {
		w.watch = append(w.watch, o.Columns)
	}
	if o.Page != nil {
		w.watch = append(w.watch, o.Page)
	}
	if w.team = o.Team; w.team != nil {
		w.reporter = newReporter()
		w.watch = append(w.watch, w.reporter)
	}
	if o.Plain && w.stepsMax == 0 {
		w.stepsMax = plainSteps
	}
	if o.Trace != nil {
		w.watch = append(w.watch, &tracer{to: o.Trace})
	} else if w.seed%tracedEvery == 0 {
		w.watch = append(w.watch, &traceReader{w: w})
	}
	if w.choose == nil {
		w.choose = NewDrawn(o.Seed)
	}
	if o.Parts.Disk != nil {
		w.disk = invariant.Must(o.Parts.Disk())
		w.kv = w.disk
	}
	if o.Parts.Drive != nil {
		w.drive = invariant.Must(o.Parts.Drive())
	}
	if o.Plan != nil {
		w.plan, w.story = o.Plan.complete(o), true
	} else {
		w.plan = drawPlan(w.choose, o)
	}
	w.turn(aboutWorld)
	w.build(o.strict)
	if !w.story {
		w.after(10*time.Millisecond, w.come)
		w.hireClerk()
		w.watchRuns()
	}
	w.after(w.plan.Strike, w.strike)
	return w
}

func (w *World) build(strict func(*specs.Limits)) {
	w.schedule.Schedule = w.plan.Schedule
	for _, p := range w.plan.Rare {
		w.rares |= 1 << p
	}
	w.Stats.Nodes = len(w.plan.Cells)
	if w.tools = worldTools(); w.team != nil {
		if w.tools = w.team.Tools; w.tools == nil {
			w.tools = tools.NewRegistry()
		}
	}
	limits := w.limits()
	if strict != nil {
		strict(&limits)
	}
	w.checker = specs.New(limits)
	w.net = newNetwork(len(w.plan.Cells))
	for i := range w.plan.Agents {
		w.plan.Agents[i].Behavior = wild{w, w.plan.Agents[i].Behavior}
	}
	w.registry = w.registryAgent()
	for i := range w.plan.Cells {
		w.nodes = append(w.nodes, &node{w: w, id: actor.NodeID(fmt.Sprintf("n%d", i+1)), index: i,
			clock: clock{offset: w.plan.Offset[i], since: Origin, drift: w.plan.Drift[i]}})
	}
	for _, watch := range w.watch {
		watch.begin(w)
	}
	w.claims.groups = make([]claim, w.plan.Groups)
	for g := range w.plan.Groups {
		w.groups = append(w.groups, groupName(g))
	}
	w.claims.leases = make([]actor.Time, len(w.nodes))
	for g := range w.claims.groups {
		n := w.nodes[g%len(w.nodes)]
		w.claims.groups[g] = claim{node: n, cell: uint16(g / len(w.nodes) % w.plan.Cells[n.index])}
	}
	for _, n := range w.nodes {
		n.start()
	}
}

// limits is what the specs have to know of the plan.
func (w *World) limits() specs.Limits {
	l := &w.plan.Limits
	s := specs.Limits{AgentCallDepthMax: l.AgentCallDepthMax, AgentCallTimeoutMax: l.AgentCallTimeoutMax,
		AgentConcurrentCallsMax: l.AgentConcurrentCallsMax, MaxPendingPerActor: l.MaxPendingPerActor,
		MailboxBytesMax: l.MailboxBytesMax, RememberDone: l.RememberDone,
		Agents: map[string]specs.Agent{}, Skew: w.plan.skew(), Settle: 30 * time.Second,
		RingBreaksIn: ringBreaksIn, RingFoundIn: ringFoundIn}
	for i := range w.plan.Agents {
		def := &w.plan.Agents[i]
		s.Agents[def.Name] = specs.Agent{Volatile: def.Durability == actor.Volatile,
			Interleaved: def.Turns == actor.Interleaved, ByActor: def.Recursion == actor.ByActor}
	}
	w.enlist(s.Agents)
	return s
}

// stepsMax bounds a world that does not come to rest.
const stepsMax = 400_000

// Run lets the world go on until it is at rest, or a spec is broken.
func (w *World) Run() *Violation {
	defer w.lasted()
	w.guarded(func() { w.until(func() bool { return w.over }) })
	return w.broken
}

// guarded has what panics around the cells broken as a rule is: among many
// worlds it is counted, made small, and run again.
func (w *World) guarded(f func()) {
	defer func() {
		if p := recover(); p != nil {
			w.violate(WorldNeverPanics, fmt.Sprintf("%v\n%s", p, stackUpTo(func(name string) bool { return name == "sim.(*World).guarded" })))
		}
	}()
	f()
}

// idleMax is how much may happen with no cell having a part in it.
const idleMax = 1_000_000

// until lets the world go on until something is so.
func (w *World) until(done func() bool) *Violation {
	steps, idle := w.Stats.Steps, 0
	for w.broken == nil && !done() {
		h, ok := w.queue.take()
		if !ok {
			break
		}
		if idle++; w.Stats.Steps != steps {
			steps, idle = w.Stats.Steps, 0
		}
		if idle > idleMax {
			w.violate(specs.EveryCallEnds, fmt.Sprintf("%d things happen, and no cell has a part in them", idle))
		}
		w.now = max(w.now, h.at)
		w.resume(h.stream)
		switch n := h.node; {
		case n == nil:
			h.do()
		case !n.up || n.process != h.process:
			continue
		case n.paused > w.now:
			h.at = n.paused
			w.queue.add(h)
			continue
		default:
			h.do()
		}
		if w.stepsMax > 0 && w.Stats.Steps >= w.stepsMax {
			break
		}
		if w.Stats.Steps > stepsMax {
			w.violate(specs.EveryCallEnds, fmt.Sprintf("the world does not come to rest within %d steps", stepsMax))
		}
	}
	return w.broken
}

// Close lets go of what the world has of the real one.
func (w *World) Close() {
	for _, n := range w.nodes {
		for _, c := range n.cells {
			c.end()
		}
	}
	w.drive.Close()
	if w.disk != nil {
		invariant.Must(0, w.disk.Close())
	}
}

// lasted takes note of how long the world was, its last phase apart.
func (w *World) lasted() {
	w.Stats.Workload = w.now.Sub(Origin)
	if w.calm {
		w.Stats.Workload, w.Stats.Calm = w.since.Sub(Origin), w.now.Sub(w.since)
	}
}

// Elapsed is how long it has been since the world began.
func (w *World) Elapsed() actor.Duration { return w.now.Sub(Origin) }

// Hash is the hash of all that happened; "" in a world that is not hashed.
func (w *World) Hash() string { return w.log.Hash() }

// Choices is the log of all choices so far, if the world draws its own.
func (w *World) Choices() Choices {
	if d, ok := w.choose.(*Drawn); ok {
		return d.Choices()
	}
	return nil
}

// turn has another stream of choices count from now on, here and in what is put
// into the queue, on the same account as before. It returns the one that did.
func (w *World) turn(to StreamID) (from StreamID) { return w.resume(to.on(w.queue.stream.account())) }

// account has whatever is chosen from now on be on somebody's account.
func (w *World) account(of StreamID) (from StreamID) { return w.resume(w.queue.stream.on(of)) }

// resume has a stream count as it once did.
func (w *World) resume(to StreamID) (from StreamID) {
	if from = w.queue.stream; from != to {
		w.queue.stream = to
		w.choose.Turn(to)
	}
	return from
}

func (w *World) after(d time.Duration, do func()) { w.queue.put(w.now.Add(d), do) }

// between draws a time; the least is benign.
func (w *World) between(least, most time.Duration) time.Duration {
	return least + (most-least)*time.Duration(w.choose.Int(1<<12))/(1<<12)
}

func (w *World) node(id actor.NodeID) *node {
	for _, n := range w.nodes {
		if n.id == id {
			return n
		}
	}
	return nil
}

// someNode is one of those that are up; nil if none is.
func (w *World) someNode() *node {
	at := w.choose.Int(len(w.nodes))
	for i := range w.nodes {
		if n := w.nodes[(at+i)%len(w.nodes)]; n.up {
			return n
		}
	}
	return nil
}

func (w *World) newCallID() actor.CallID {
	w.ids++
	return actor.NewCallID(w.now, mix(w.seed, 2*w.ids), mix(w.seed, 2*w.ids+1))
}

// observe takes note of events: those of one step together.
func (w *World) observe(events ...history.Event) {
	for i := range events {
		e := &events[i]
		w.log.event(e)
		w.Stats.event(e)
		if e.Kind == history.Start {
			w.serves(e)
		}
		if w.rule != nil {
			if spec := w.rule(w.now.Sub(Origin), e); spec != "" {
				w.violate(spec, e.String())
			}
		}
		for _, watch := range w.watch {
			watch.event(w.now, e)
		}
	}
	w.checker.World(w.now, w.calmSince())
	if v := w.checker.Observe(uint64(w.Stats.Steps), events); v != nil {
		w.violate(v.Spec, v.Sentence+"\n  "+v.Event.String())
	}
}

// tell takes note of an event that stands for itself.
func (w *World) tell(e history.Event) {
	w.single[0] = e
	w.observe(w.single[:]...)
}

// performed tells of an effect that reaches the world outside the node.
func (w *World) performed(h *held, what, why string, call actor.CallID, status actor.Status, reason actor.Reason) {
	n := h.c.n
	w.acts(what, call)
	e := history.Event{Kind: history.Perform, At: n.clock.now(w.now), From: h.c.self, Call: call, What: what, Why: why,
		Step: h.effect.ID.Step, Index: h.effect.ID.Index, Attempt: h.effect.Attempt, Status: status, Reason: reason,
		Pos: uint64(h.pos), Synced: uint64(n.log.durable()), Wrote: h.wrote}
	if op, ok := h.effect.Op.(runtime.Respond); ok {
		e.Said = history.SaidIn(op.Reply.Parts, op.Reply.Warnings)
	}
	w.tell(e)
}

// compareEvery is after how many steps the cells' states are compared with what
// their events told.
const compareEvery = 1000

// stepped is what a world does after each step of a cell.
func (w *World) stepped(n *node) {
	if w.Stats.Steps%compareEvery == 0 {
		w.compare()
	}
	if n.crashIn > 0 {
		if n.crashIn--; n.crashIn == 0 && n.up {
			w.hit(NodeCrash, "%s dies", n.id)
			w.crash(n, "crash")
		}
	}
}

func (w *World) compare() {
	for _, n := range w.nodes {
		if !n.up || !n.owns() { // who has lost its lease unknowingly holds what is another's
			continue
		}
		for _, c := range n.cells {
			if c.gone {
				continue
			}
			state := c.core.State()
			if v := w.checker.Compare(state); v != nil {
				w.violate(v.Spec, v.Sentence)
				return
			}
			says, size := c.core.Size(), sizeIn(&state)
			if size.Remembered = says.Remembered; says != size { // no state lists that
				w.violate(specs.EventsTellTruth, fmt.Sprintf("%s says that it has %+v, and has %+v", c.self, says, size))
			}
		}
	}
}

// sizeIn is how much there is in a cell, as its state lists it.
func sizeIn(s *history.State) runtime.Size {
	size := runtime.Size{Actors: len(s.Actors)}
	for i := range s.Actors {
		size.Queued += len(s.Actors[i].Queue)
		for _, t := range s.Actors[i].Turns {
			size.Outstanding += len(t.Open)
		}
	}
	return size
}

// heal begins the last phase: no more faults, what is cut is whole again. Every
// call has to end now.
func (w *World) heal() {
	w.log.world(w.now, "no more faults")
	w.calm, w.since = true, w.now
	w.net.heal()
	for _, n := range w.nodes {
		n.crashIn, n.full = 0, 0
		for _, c := range n.cells {
			c.slow = 0
		}
	}
	w.reinstate()
	w.after(time.Second, w.rest)
}

// restBound is how long the last phase may take: longer than any clock of a run.
const restBound = 20 * time.Minute

// rest ends the world once nothing is under way any more.
func (w *World) rest() {
	if why := w.busy(); why != "" {
		if w.now.Sub(w.since) < restBound {
			w.after(time.Second, w.rest)
			return
		}
		w.violate(specs.EveryCallEnds, fmt.Sprintf("%v after the last fault %s", restBound, why))
	}
	w.compare()
	if v := w.checker.End(); v != nil {
		w.violate(v.Spec, v.Sentence)
	}
	if w.broken == nil {
		w.judgeHistories()
	}
	if w.broken == nil && w.audited() {
		w.audit()
	}
	w.over = true
}

// busy says what is under way; "" is nothing.
func (w *World) busy() string {
	switch {
	case len(w.lines) > 0 || w.asking > 0 || w.now < w.asked.Add(w.leftMax()+5*time.Second):
		return fmt.Sprintf("a client waits: %d lines, %d who are about to ask, the last asked %v ago", len(w.lines), w.asking, w.now.Sub(w.asked))
	case w.listening > 0:
		return "somebody has not read a stream to its end"
	case w.jobs > 0:
		return "an external agent is at work"
	case w.net.onWay > 0:
		return "a message is on its way"
	}
	for g := range w.claims.groups {
		if !w.claims.groups[g].owned() {
			return "shards are nobody's"
		}
	}
	for _, n := range w.nodes {
		if !n.up || n.paused > w.now || len(n.held) > 0 || len(n.doing) > 0 || len(n.outside.exchanges) > 0 || n.log.released() < n.log.writer.End() {
			return string(n.id) + " is not up, or has something to do"
		}
		for _, c := range n.cells {
			if c.gone || len(c.inputs) > 0 || c.knows != w.claims.version {
				return c.self.String() + " has something to take in"
			}
		}
	}
	for _, n := range w.nodes {
		for _, c := range n.cells {
			for _, a := range c.core.State().Actors {
				if !a.Loaded || len(a.Queue) > 0 || len(a.Turns) > 0 {
					return a.ID.String() + " has open work"
				}
			}
		}
	}
	return ""
}

func (w *World) violate(spec, detail string) {
	if w.broken == nil {
		w.broken = &Violation{Spec: spec, Detail: detail, At: w.now.Sub(Origin), Step: w.Stats.Steps}
		w.log.world(w.now, "%s", w.broken.Error())
	}
}
