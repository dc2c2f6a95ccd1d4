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
	Seed          uint64
	Entropy       Entropy   // nil: drawn from the seed
	Events        io.Writer // gets the canonical log; nil: nobody does
	Unhashed      bool      // nobody asks for the hash either: then no log is written
	Columns       *Columns  // is shown what happens; nil: nobody is
	Page          *Page     // likewise
	Backends      Backends
	Trace         io.Writer           // gets the history as lines of JSON; nil: nobody does
	Plain         bool                // a small world such as tla/Trace.tla knows
	Long          bool                // an hour and more
	Faultless     bool                // no fault but those in Odds
	Odds          []Odds              // of faults, set by hand
	Strategy      string              // "": drawn; else the name of one
	Team          *Team               // plays in the world that is drawn; nil: the world's own agents
	Plan          *Plan               // nil: drawn; else who made it asks, and says when there are no more faults
	adjustLimits  func(*specs.Limits) // a test's: specs that ask for more than the code promises
	rule          rule                // a test's: what must not happen besides
	shrink        budget              // a test's: less than a shrink may take
	lossyRegister bool                // a test's: who keeps something forgets it after a while
	OnShrunk      func(steps int)     // is told how many steps a failure has whenever it gets smaller; nil: nobody is
	StepsMax      int                 // 0: as many as it takes; else it ends there, at rest or not
}

// rule names the spec that an event breaks which comes so long after the world
// began; "" is none.
type rule func(at actor.Duration, e *history.Event) (spec string)

// Backends are real parts that stand in for imagined ones.
type Backends struct {
	Store  func() (CrashableStore, error) // an empty one for each world; nil: store.Memory
	Engine func() (Engine, error)         // one for each world; nil: the world steps its cells itself
}

// CrashableStore is a real store. What was applied is there after a crash, which comes
// with each crash of a node.
type CrashableStore interface {
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

// observer is shown what happens.
type observer interface {
	begin(w *Simulation)
	event(now actor.Time, e *history.Event)
	fault(now actor.Time, f Fault, what string)
}

// Simulation is all there is.
type Simulation struct {
	Stats Stats

	seed             uint64
	stepsMax         int
	entropy          Entropy
	plan             Plan
	scheduler        scheduler
	now              actor.Time
	queue            eventQueue
	log              *CanonicalLog
	observers        []observer
	checker          *specs.Checker
	rule             rule
	nodes            []*node
	net              network
	kv               store.KV
	crashable        CrashableStore // kv, if it is a real one
	engine           Engine
	claims           claims
	tools            *tools.Registry
	clients          []*client
	pending          []*pendingRequest // that wait, in order
	failpoints       uint64            // which rare things happen
	arrivals         StreamID          // how often somebody may have come
	faultRounds      StreamID          // how often faults were asked for by the clock
	retriesScheduled int               // clients who are about to ask again
	lastRequestAt    actor.Time        // when the last did
	lastArrivalAt    actor.Time        // when the last client came
	withdrawnAgent   int               // the agent that is not in the registry just now; -1: none
	callFaults       map[actor.CallID]callFault
	callIDs          uint64
	nodeDraws        uint64 // of numbers that nodes draw for themselves
	streamReaders    []*streamReader
	openReaders      int // of them that have not read the end
	readerKeyNumber  int // the number of the one that is good
	registry         actor.Definition
	announcements    [][]actor.StateItem // by it, in order
	registryClient   *registryClient     // nil: nobody has the registry do anything
	judge            *linear.Judge
	team             *Team // nil: the world's own agents
	reporter         *reporter
	groupNames       []string                // of shards, by name
	keyOfCall        map[actor.CallID]string // asks by clients who have a key
	registerValues   int                     // that were left with who keeps them
	externalCalls    int                     // that external agents deal with
	loopingRuns      map[actor.CallID]bool   // runs whose model goes round and round
	recovering       bool                    // no more faults
	recoveringSince  actor.Time              // calm
	lastDisturbance  actor.Time              // when something was lost or late last
	done             bool
	examinations     int // how often the store was, after rot
	corpus           *corpus
	manual           bool // nobody comes by themselves
	violation        *Violation
	emitBuf          [1]history.Event // that tell hands on
}

// New makes the world of a seed: nodes that have just started, and a workload
// that is about to come.
func New(o Options) *Simulation {
	w := &Simulation{seed: o.Seed, rule: o.rule, stepsMax: o.StepsMax, entropy: o.Entropy, now: Origin, log: newCanonicalLog(o), kv: &store.Memory{},
		engine: directEngine{}, withdrawnAgent: -1, callFaults: map[actor.CallID]callFault{}, loopingRuns: map[actor.CallID]bool{},
		judge: linear.New(), keyOfCall: map[actor.CallID]string{}}
	if o.Columns != nil {
		w.observers = append(w.observers, o.Columns)
	}
	if o.Page != nil {
		w.observers = append(w.observers, o.Page)
	}
	if w.team = o.Team; w.team != nil {
		w.reporter = newReporter()
		w.observers = append(w.observers, w.reporter)
	}
	if o.Plain && w.stepsMax == 0 {
		w.stepsMax = plainSteps
	}
	if o.Trace != nil {
		w.observers = append(w.observers, &traceWriter{to: o.Trace})
	} else if w.seed%traceCheckEvery == 0 {
		w.observers = append(w.observers, &traceChecker{w: w})
	}
	if w.entropy == nil {
		w.entropy = NewSeededEntropy(o.Seed)
	}
	if o.Backends.Store != nil {
		w.crashable = invariant.Must(o.Backends.Store())
		w.kv = w.crashable
	}
	if o.Backends.Engine != nil {
		w.engine = invariant.Must(o.Backends.Engine())
	}
	if o.Plan != nil {
		w.plan, w.manual = o.Plan.withDefaults(o), true
	} else {
		w.plan = drawPlan(w.entropy, o)
	}
	w.setStream(topicWorld)
	w.build(o.adjustLimits)
	if !w.manual {
		w.after(10*time.Millisecond, w.nextArrival)
		w.startRegistryClient()
		w.startRunPoller()
	}
	w.after(w.plan.FaultInterval, w.injectAll)
	return w
}

func (w *Simulation) build(strict func(*specs.Limits)) {
	w.scheduler.Schedule = w.plan.Schedule
	for _, p := range w.plan.Failpoints {
		w.failpoints |= 1 << p
	}
	w.Stats.Nodes = len(w.plan.Cells)
	if w.tools = builtinTools(); w.team != nil {
		if w.tools = w.team.Tools; w.tools == nil {
			w.tools = tools.NewRegistry()
		}
	}
	limits := w.specLimits()
	if strict != nil {
		strict(&limits)
	}
	w.checker = specs.New(limits)
	w.net = newNetwork(len(w.plan.Cells))
	for i := range w.plan.Agents {
		w.plan.Agents[i].Behavior = faultyAgent{w, w.plan.Agents[i].Behavior}
	}
	w.registry = w.registryDefinition()
	for i := range w.plan.Cells {
		w.nodes = append(w.nodes, &node{w: w, id: actor.NodeID(fmt.Sprintf("n%d", i+1)), index: i,
			clock: clock{offset: w.plan.Offset[i], since: Origin, drift: w.plan.Drift[i]}})
	}
	for _, watch := range w.observers {
		watch.begin(w)
	}
	w.claims.groups = make([]claim, w.plan.Groups)
	for g := range w.plan.Groups {
		w.groupNames = append(w.groupNames, shardGroupName(g))
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

// specLimits is what the specs have to know of the plan.
func (w *Simulation) specLimits() specs.Limits {
	l := &w.plan.Limits
	s := specs.Limits{AgentCallDepthMax: l.AgentCallDepthMax, AgentCallTimeoutMax: l.AgentCallTimeoutMax,
		AgentConcurrentCallsMax: l.AgentConcurrentCallsMax, MaxPendingPerActor: l.MaxPendingPerActor,
		MailboxBytesMax: l.MailboxBytesMax, RememberDone: l.RememberDone,
		Agents: map[string]specs.Agent{}, Skew: w.plan.maxSkew(), Settle: 30 * time.Second,
		RingBreaksIn: waitCycleBrokenWithin, RingFoundIn: waitCycleFoundWithin}
	for i := range w.plan.Agents {
		def := &w.plan.Agents[i]
		s.Agents[def.Name] = specs.Agent{Volatile: def.Durability == actor.Volatile,
			Interleaved: def.Turns == actor.Interleaved, ByActor: def.Recursion == actor.ByActor}
	}
	w.addRegisteredAgents(s.Agents)
	return s
}

// stepsMax bounds a world that does not come to rest.
const stepsMax = 400_000

// Run lets the world go on until it is at rest, or a spec is broken.
func (w *Simulation) Run() *Violation {
	defer w.recordDurations()
	w.runGuarded(func() { w.runLoop(func() bool { return w.done }) })
	return w.violation
}

// runGuarded has what panics around the cells broken as a rule is: among many
// worlds it is counted, made small, and run again.
func (w *Simulation) runGuarded(f func()) {
	defer func() {
		if p := recover(); p != nil {
			w.fail(WorldNeverPanics, fmt.Sprintf("%v\n%s", p, stackUntil(func(name string) bool { return name == "sim.(*World).guarded" })))
		}
	}()
	f()
}

// eventsBetweenStepsMax is how much may happen with no cell having a part in it.
const eventsBetweenStepsMax = 1_000_000

// runLoop lets the world go on until something is so.
func (w *Simulation) runLoop(done func() bool) *Violation {
	steps, idle := w.Stats.Steps, 0
	for w.violation == nil && !done() {
		h, ok := w.queue.pop()
		if !ok {
			break
		}
		if idle++; w.Stats.Steps != steps {
			steps, idle = w.Stats.Steps, 0
		}
		if idle > eventsBetweenStepsMax {
			w.fail(specs.EveryCallEnds, fmt.Sprintf("%d things happen, and no cell has a part in them", idle))
		}
		w.now = max(w.now, h.at)
		w.restoreStream(h.stream)
		switch n := h.node; {
		case n == nil:
			h.fn()
		case !n.up || n.process != h.process:
			continue
		case n.pausedUntil > w.now:
			h.at = n.pausedUntil
			w.queue.push(h)
			continue
		default:
			h.fn()
		}
		if w.stepsMax > 0 && w.Stats.Steps >= w.stepsMax {
			break
		}
		if w.Stats.Steps > stepsMax {
			w.fail(specs.EveryCallEnds, fmt.Sprintf("the world does not come to rest within %d steps", stepsMax))
		}
	}
	return w.violation
}

// Close lets go of what the world has of the real one.
func (w *Simulation) Close() {
	for _, n := range w.nodes {
		for _, c := range n.cells {
			c.stop()
		}
	}
	w.engine.Close()
	if w.crashable != nil {
		invariant.Must(0, w.crashable.Close())
	}
}

// recordDurations takes note of how long the world was, its last phase apart.
func (w *Simulation) recordDurations() {
	w.Stats.Workload = w.now.Sub(Origin)
	if w.recovering {
		w.Stats.Workload, w.Stats.Recovery = w.recoveringSince.Sub(Origin), w.now.Sub(w.recoveringSince)
	}
}

// Elapsed is how long it has been since the world began.
func (w *Simulation) Elapsed() actor.Duration { return w.now.Sub(Origin) }

// Hash is the hash of all that happened; "" in a world that is not hashed.
func (w *Simulation) Hash() string { return w.log.Hash() }

// Choices is the log of all choices so far, if the world draws its own.
func (w *Simulation) Choices() Choices {
	if d, ok := w.entropy.(*SeededEntropy); ok {
		return d.Choices()
	}
	return nil
}

// setStream has another stream of choices count from now on, here and in what is put
// into the queue, on the same account as before. It returns the one that did.
func (w *Simulation) setStream(to StreamID) (from StreamID) {
	return w.restoreStream(to.withCause(w.queue.stream.cause()))
}

// setCause has whatever is chosen from now on be on somebody's account.
func (w *Simulation) setCause(of StreamID) (from StreamID) {
	return w.restoreStream(w.queue.stream.withCause(of))
}

// restoreStream has a stream count as it once did.
func (w *Simulation) restoreStream(to StreamID) (from StreamID) {
	if from = w.queue.stream; from != to {
		w.queue.stream = to
		w.entropy.SetStream(to)
	}
	return from
}

func (w *Simulation) after(d time.Duration, do func()) { w.queue.schedule(w.now.Add(d), do) }

// between draws a time; the least is benign.
func (w *Simulation) between(least, most time.Duration) time.Duration {
	return least + (most-least)*time.Duration(w.entropy.Int(1<<12))/(1<<12)
}

func (w *Simulation) nodeByID(id actor.NodeID) *node {
	for _, n := range w.nodes {
		if n.id == id {
			return n
		}
	}
	return nil
}

// drawNode is one of those that are up; nil if none is.
func (w *Simulation) drawNode() *node {
	at := w.entropy.Int(len(w.nodes))
	for i := range w.nodes {
		if n := w.nodes[(at+i)%len(w.nodes)]; n.up {
			return n
		}
	}
	return nil
}

func (w *Simulation) newCallID() actor.CallID {
	w.callIDs++
	return actor.NewCallID(w.now, mix(w.seed, 2*w.callIDs), mix(w.seed, 2*w.callIDs+1))
}

// observe takes note of events: those of one step together.
func (w *Simulation) observe(events ...history.Event) {
	for i := range events {
		e := &events[i]
		w.log.event(e)
		w.Stats.countEvent(e)
		if e.Kind == history.Start {
			w.recordTurnStart(e)
		}
		if w.rule != nil {
			if spec := w.rule(w.now.Sub(Origin), e); spec != "" {
				w.fail(spec, e.String())
			}
		}
		for _, watch := range w.observers {
			watch.event(w.now, e)
		}
	}
	w.checker.World(w.now, w.undisturbedSince())
	if v := w.checker.Observe(uint64(w.Stats.Steps), events); v != nil {
		w.fail(v.Spec, v.Sentence+"\n  "+v.Event.String())
	}
}

// emit takes note of an event that stands for itself.
func (w *Simulation) emit(e history.Event) {
	w.emitBuf[0] = e
	w.observe(w.emitBuf[:]...)
}

// emitPerform tells of an effect that reaches the world outside the node.
func (w *Simulation) emitPerform(h *gatedEffect, what, why string, call actor.CallID, status actor.Status, reason actor.Reason) {
	n := h.cell.n
	w.recordExternalEffect(what, call)
	e := history.Event{Kind: history.Perform, At: n.clock.now(w.now), From: h.cell.self, Call: call, What: what, Why: why,
		Step: h.effect.ID.Step, Index: h.effect.ID.Index, Attempt: h.effect.Attempt, Status: status, Reason: reason,
		Pos: uint64(h.pos), Synced: uint64(n.log.durable()), Wrote: h.entryCount}
	if op, ok := h.effect.Op.(runtime.Respond); ok {
		e.Said = history.SaidIn(op.Reply.Parts, op.Reply.Warnings)
	}
	w.emit(e)
}

// compareEvery is after how many steps the cells' states are compared with what
// their events told.
const compareEvery = 1000

// afterStep is what a world does after each step of a cell.
func (w *Simulation) afterStep(n *node) {
	if w.Stats.Steps%compareEvery == 0 {
		w.compareStates()
	}
	if n.crashInSteps > 0 {
		if n.crashInSteps--; n.crashInSteps == 0 && n.up {
			w.recordFault(NodeCrash, "%s dies", n.id)
			w.crash(n, "crash")
		}
	}
}

func (w *Simulation) compareStates() {
	for _, n := range w.nodes {
		if !n.up || !n.leaseValid() { // who has lost its lease unknowingly holds what is another's
			continue
		}
		for _, c := range n.cells {
			if c.stopped {
				continue
			}
			state := c.core.State()
			if v := w.checker.Compare(state); v != nil {
				w.fail(v.Spec, v.Sentence)
				return
			}
			says, size := c.core.Size(), stateSize(&state)
			if size.Remembered = says.Remembered; says != size { // no state lists that
				w.fail(specs.EventsTellTruth, fmt.Sprintf("%s says that it has %+v, and has %+v", c.self, says, size))
			}
		}
	}
}

// stateSize is how much there is in a cell, as its state lists it.
func stateSize(s *history.State) runtime.Size {
	size := runtime.Size{Actors: len(s.Actors)}
	for i := range s.Actors {
		size.Queued += len(s.Actors[i].Queue)
		for _, t := range s.Actors[i].Turns {
			size.Outstanding += len(t.Open)
		}
	}
	return size
}

// startRecovery begins the last phase: no more faults, what is cut is whole again. Every
// call has to end now.
func (w *Simulation) startRecovery() {
	w.log.note(w.now, "no more faults")
	w.recovering, w.recoveringSince = true, w.now
	w.net.heal()
	for _, n := range w.nodes {
		n.crashInSteps, n.diskFullUntil = 0, 0
		for _, c := range n.cells {
			c.slowUntil = 0
		}
	}
	w.restoreAgent()
	w.after(time.Second, w.finishWhenIdle)
}

// recoveryMax is how long the last phase may take: longer than any clock of a run.
const recoveryMax = 20 * time.Minute

// finishWhenIdle ends the world once nothing is under way any more.
func (w *Simulation) finishWhenIdle() {
	if why := w.pendingWork(); why != "" {
		if w.now.Sub(w.recoveringSince) < recoveryMax {
			w.after(time.Second, w.finishWhenIdle)
			return
		}
		w.fail(specs.EveryCallEnds, fmt.Sprintf("%v after the last fault %s", recoveryMax, why))
	}
	w.compareStates()
	if v := w.checker.End(); v != nil {
		w.fail(v.Spec, v.Sentence)
	}
	if w.violation == nil {
		w.checkHistories()
	}
	if w.violation == nil && w.auditEnabled() {
		w.audit()
	}
	w.done = true
}

// pendingWork says what is under way; "" is nothing.
func (w *Simulation) pendingWork() string {
	switch {
	case len(w.pending) > 0 || w.retriesScheduled > 0 || w.now < w.lastRequestAt.Add(w.timeLeftMax()+5*time.Second):
		return fmt.Sprintf("a client waits: %d lines, %d who are about to ask, the last asked %v ago", len(w.pending), w.retriesScheduled, w.now.Sub(w.lastRequestAt))
	case w.openReaders > 0:
		return "somebody has not read a stream to its end"
	case w.externalCalls > 0:
		return "an external agent is at work"
	case w.net.inFlight > 0:
		return "a message is on its way"
	}
	for g := range w.claims.groups {
		if !w.claims.groups[g].owned() {
			return "shards are nobody's"
		}
	}
	for _, n := range w.nodes {
		if !n.up || n.pausedUntil > w.now || len(n.gated) > 0 || len(n.running) > 0 || len(n.upstreams.exchanges) > 0 || n.log.released() < n.log.writer.End() {
			return string(n.id) + " is not up, or has something to do"
		}
		for _, c := range n.cells {
			if c.stopped || len(c.inputs) > 0 || c.ownersVersion != w.claims.version {
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

func (w *Simulation) fail(spec, detail string) {
	if w.violation == nil {
		w.violation = &Violation{Spec: spec, Detail: detail, At: w.now.Sub(Origin), Step: w.Stats.Steps}
		w.log.note(w.now, "%s", w.violation.Error())
	}
}
