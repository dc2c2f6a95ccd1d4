// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/specs"
	"github.com/troupe-run/troupe/specs/linear"
	"github.com/troupe-run/troupe/tools"
)

// Options configure a simulation. The zero Options run seed 0.
type Options struct {
	Seed          uint64
	Entropy       Entropy   // nil: drawn from the seed
	Events        io.Writer // receives the canonical log; nil: not written
	Unhashed      bool      // no hash is computed, and the log is written only if Events is set
	Columns       *Columns  // receives the run as text columns; nil: not shown
	Page          *Page     // receives the run for an HTML diagram; nil: not shown
	Backends      Backends
	Trace         io.Writer           // receives the history as lines of JSON; nil: not written
	Plain         bool                // a small run that tla/Trace.tla can check
	Long          bool                // at least one hour of simulated time; if Plain too, most seeds judge no bytes
	Faultless     bool                // no faults except those in Odds
	Odds          []Odds              // odds of single faults; they override the drawn odds
	Strategy      string              // name of the strategy; "": drawn
	Registry      string              // "on" or "off": whether a client registers agents and keys; "": drawn
	Team          *Team               // replaces the built-in agents of a drawn plan; nil: none
	Plan          *Plan               // overrides the generated plan; the caller submits requests and ends the fault phase
	adjustLimits  func(*specs.Limits) // tests only: makes the specs stricter than the code
	rule          rule                // tests only: an additional spec
	shrink        budget              // tests only: a different shrink budget
	Doses         map[Fault]Dose      // doses of single faults; WholeDose if absent
	lossyRegister bool                // tests only: swap registers lose their value after a while
	startCrashes  *startCrashes       // tests only: crashes of a starting node
	timeMax       actor.Duration      // ends the run after this simulated time, idle or not; 0: no such limit
	OnShrunk      func(steps int)     // called with the number of steps of each smaller failure; nil: not called
	StepsMax      int                 // ends the run after this number of steps, idle or not; 0: no such limit
	NoResampling  bool                // SaveFailure does not search for the choice that made the failure inevitable
}

// rule returns the spec that an event violates, or "". The time of the event is measured
// from the start of the run.
type rule func(at actor.Duration, e *history.Event) (spec string)

// Backends are real implementations that replace simulated ones.
type Backends struct {
	Store  func() (CrashableStore, error) // opens an empty store for each run; nil: in memory
	Engine func() (Engine, error)         // opens an engine for each run; nil: the simulation steps its cells directly
}

// Violation describes a property that did not hold.
type Violation struct {
	Spec   string
	Detail string
	At     actor.Duration // time since the start of the simulation
	Step   int
	Event  string // event that revealed the violation, in full; "": none
	// History is the history that is not linearizable, if that is the violation.
	History *linear.Illegal
}

// Error returns the spec, the time, the step and the details.
func (v *Violation) Error() string {
	return fmt.Sprintf("%s broken at %v, after %d steps: %s", v.Spec, v.At, v.Step, v.Detail)
}

// observer receives the events and faults of a run.
type observer interface {
	begin(w *Simulation)
	event(now actor.Time, e *history.Event)
	fault(now actor.Time, f Fault, what string)
}

// Simulation is one simulated environment: nodes, network, store, clients, upstream
// services and faults. It is single-threaded.
type Simulation struct {
	Stats Stats

	seed             uint64
	stepsMax         int
	endsAt           actor.Time // 0: no such limit
	startCrashes     *startCrashes
	entropy          Entropy
	plan             Plan
	limits           dispatcher.Limits // those of the plan, as nodes have them
	scheduler        scheduler
	now              actor.Time
	queue            eventQueue
	log              *CanonicalLog
	observers        []observer
	checker          *specs.Checker
	rule             rule
	nodes            []*node
	net              network
	store            sharedStore
	engine           Engine
	claims           claims
	tools            *tools.Registry
	clients          []*client
	pending          []*pendingRequest // client requests that wait for a reply, oldest first
	failpoints       uint64            // bit set of the enabled failpoints
	arrivals         StreamID          // number of arrival slots so far, including skipped ones
	faultRounds      StreamID          // number of fault rounds so far
	retriesScheduled int               // number of clients with a scheduled retry
	lastRequestAt    actor.Time        // time of the last client request
	stoodStillAt     actor.Time        // last time in the recovery phase at which a clock stood still
	lastArrivalAt    actor.Time        // time of the last client arrival
	withdrawnAgent   int               // index of the agent that is temporarily unregistered; -1: none
	withdrawalFelt   bool              // a cell has received the agents without it
	doses            [faultKinds]Dose
	enqueued         uint64 // number of inputs that cells have received
	loadJudge        loadJudge
	transcripts      transcriptJudge
	active           activeJudge
	approvals        *approvals
	detached         detachedCalls
	cancels          reminderCancels
	repeated         repeatedCalls
	retention        *retention // nil: the log is not cut, and no session is deleted
	eventJudge       *eventJudge
	durabilityJudge  *durabilityJudge
	storms           map[actor.CallID]*storm // load faults, by the calls of their clients
	callFaults       map[actor.CallID]callFault
	callIDs          uint64
	nodeDraws        uint64 // number of random numbers drawn by nodes
	streamReaders    []*streamReader
	sockets          sockets
	openReaders      int // number of stream readers that have not read to the end
	readerKeyNumber  int // number of the key that currently permits reading streams
	registry         actor.Definition
	announcements    [][]actor.StateItem // announcements of the registry, in order
	registryClient   *registryClient     // nil: no client operates the registry
	judge            *linear.Checker
	team             *Team // nil: the built-in agents
	reporter         *reporter
	groupNames       []string                // names of the shard groups, by index
	keyOfCall        map[actor.CallID]string // idempotency key of each request that has one
	invokingRuns     map[actor.CallID]bool   // runs that invoke an external agent
	treesSubmitted   int                     // number of wide and deep trees of calls
	longWaitCycles   int                     // number of long wait cycles submitted
	latestAttempts   map[attemptKey]uint32   // latest attempt of each effect, as performed by a process
	registerValues   int                     // number of values generated for swap registers
	externalCalls    int                     // number of calls in progress at external agents
	loopingRuns      map[actor.CallID]bool   // runs whose model repeats tool calls endlessly
	recovering       bool                    // the recovery phase has begun: no more faults
	recoveringSince  actor.Time              // start of the recovery phase
	frame            []byte                  // buffer of the message that is decoded
	filler           []byte                  // text of the messages that are too large
	judgesBytes      bool                    // run events, stored transcripts and damaged stores are read and judged
	lastDisturbance  actor.Time              // latest time at which something may have been lost or delayed
	done             bool
	examinations     int // number of examinations of the store after corruption
	corpus           *corpus
	manual           bool // a scenario: no generated workload
	violation        *Violation
	emitBuf          [1]history.Event // argument of observe in emit, reused to avoid an allocation
}

// New creates the simulation of a seed, with all nodes started and the workload
// scheduled.
func New(o Options) *Simulation {
	w := &Simulation{seed: o.Seed, rule: o.rule, stepsMax: o.StepsMax, startCrashes: o.startCrashes, entropy: o.Entropy, now: Origin, log: newCanonicalLog(o),
		engine: directEngine{}, withdrawnAgent: -1, callFaults: map[actor.CallID]callFault{}, loopingRuns: map[actor.CallID]bool{},
		judge: linear.New(), keyOfCall: map[actor.CallID]string{}, latestAttempts: map[attemptKey]uint32{}, invokingRuns: map[actor.CallID]bool{},
		storms: map[actor.CallID]*storm{}}
	w.eventJudge, w.durabilityJudge, w.loadJudge = newEventJudge(w), newDurabilityJudge(w), newLoadJudge(w)
	w.approvals = newApprovals(w)
	w.detached = detachedCalls{calls: map[actor.CallID]bool{}, runs: map[actor.CallID]bool{}}
	w.cancels = reminderCancels{w, map[actor.CallID]bool{}}
	w.repeated = newRepeatedCalls()
	w.transcripts, w.active = newTranscriptJudge(w), activeJudge{w, map[actor.Address]map[actor.CallID]actor.ID{}}
	for f, dose := range o.Doses {
		w.doses[f] = dose
	}
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
	if o.timeMax > 0 {
		w.endsAt = Origin.Add(o.timeMax)
	}
	w.judgesBytes = !o.Plain || !o.Long || w.auditEnabled()
	if o.Plain && !o.Long && w.stepsMax == 0 {
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
	if o.Backends.Engine != nil {
		w.engine = invariant.Must(o.Backends.Engine())
	}
	if o.Plan != nil {
		w.plan, w.manual = o.Plan.withDefaults(o), true
		w.limits = w.plan.Limits
	} else {
		w.plan = drawPlan(w.entropy, o)
		w.limits = w.configureLimits()
	}
	w.detached.on = w.plan.Detached
	w.openStore(o.Backends.Store)
	w.startRetention()
	w.sockets.w = w
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

func (w *Simulation) build(adjustLimits func(*specs.Limits)) {
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
	w.approvals.start()
	limits := w.specLimits()
	if adjustLimits != nil {
		adjustLimits(&limits)
	}
	w.checker = specs.New(limits)
	w.net = newNetwork(len(w.plan.Cells))
	for i := range w.plan.Agents {
		w.plan.Agents[i].Behavior = faultyAgent{w, w.plan.Agents[i].Behavior}
	}
	w.transcripts.start()
	w.registry = w.registryDefinition()
	for i := range w.plan.Cells {
		w.nodes = append(w.nodes, &node{w: w, id: actor.NodeID(fmt.Sprintf("n%d", i+1)), index: i,
			clock: clock{offset: w.plan.Offset[i], since: Origin, drift: w.plan.Drift[i]}})
	}
	for _, o := range w.observers {
		o.begin(w)
	}
	w.claims.groups = make([]claim, w.plan.Groups)
	for g := range w.plan.Groups {
		w.groupNames = append(w.groupNames, shardGroupName(g))
	}
	w.claims.nextCell = -1
	w.claims.table = leaseTable{now: func() actor.Time { return w.now }, logs: make([]tableLog, w.plan.Groups), claimed: w.claimed, pinned: func(member string) bool {
		return slices.ContainsFunc(w.nodes, func(n *node) bool { return string(n.id) == member && n.log.corruption != nil })
	}}
	for _, n := range w.nodes {
		n.start()
	}
	w.shareOut()
}

// specLimits returns the parts of the plan that the specs need.
func (w *Simulation) specLimits() specs.Limits {
	l := &w.plan.Limits
	s := specs.Limits{AgentCallDepthMax: l.AgentCallDepthMax, AgentCallTimeoutMax: l.AgentCallTimeoutMax,
		AgentConcurrentCallsMax: l.AgentConcurrentCallsMax, MaxPendingPerActor: l.MaxPendingPerActor,
		MailboxBytesMax: l.MailboxBytesMax, MailboxAgeMax: l.MailboxAgeMax, CallsPerTreeMax: int(l.CallsPerTreeMax), RememberDone: l.RememberDone,
		Agents: map[string]specs.Agent{}, Skew: w.plan.maxSkew(), Settle: 30 * time.Second,
		WaitCycleMax: waitCycleBrokenWithin, FirstProbeMax: waitCycleFoundWithin, WaitTimeoutMax: l.WaitTimeoutMax}
	for i := range w.plan.Agents {
		def := &w.plan.Agents[i]
		s.Agents[def.Name] = specs.Agent{Volatile: def.Durability == actor.Volatile,
			Interleaved: def.Turns == actor.Interleaved, ByActor: def.Recursion == actor.ByActor}
	}
	w.addRegisteredAgents(s.Agents)
	return s
}

// stepsMax bounds a run that does not become idle.
const stepsMax = 400_000

// Run runs the simulation until it is idle or violates a spec.
func (w *Simulation) Run() *Violation {
	defer func() { w.recordDurations(); w.Stats.Premises = w.checker.Premises }()
	w.runGuarded(func() { w.runLoop(func() bool { return w.done }) })
	return w.violation
}

// runGuarded turns a panic outside the cells into a violation. Such a failure can be
// counted, shrunk and replayed like any other.
func (w *Simulation) runGuarded(f func()) {
	defer func() {
		if p := recover(); p != nil {
			w.fail(WorldNeverPanics, fmt.Sprintf("%v\n%s", p, stackUntil(func(name string) bool { return name == "sim.(*Simulation).runGuarded" })))
		}
	}()
	f()
}

// eventsBetweenStepsMax is the maximum number of events between two steps of cells.
const eventsBetweenStepsMax = 1_000_000

// runLoop processes events until done returns true.
func (w *Simulation) runLoop(done func() bool) *Violation {
	steps, idle := w.Stats.Steps, 0
	for w.violation == nil && !done() {
		e, ok := w.queue.pop()
		if !ok {
			break
		}
		if idle++; w.Stats.Steps != steps {
			steps, idle = w.Stats.Steps, 0
		}
		if idle > eventsBetweenStepsMax {
			w.fail(specs.EveryCallEnds, fmt.Sprintf("%d events without a step of a cell", idle))
		}
		w.now = max(w.now, e.at)
		w.restoreStream(e.stream)
		switch n := e.node; {
		case n == nil:
			w.Stats.Audit.WorldNeverPanics++
			e.fn()
		case !n.up || n.process != e.process:
			continue
		case n.pausedUntil > w.now:
			n.countPause(e.at, n.pausedUntil)
			w.queue.postpone(e, n.pausedUntil)
			continue
		default:
			e.fn()
		}
		if w.stepsMax > 0 && w.Stats.Steps >= w.stepsMax || w.endsAt > 0 && w.now > w.endsAt {
			break
		}
		if w.Stats.Steps > stepsMax {
			w.fail(specs.EveryCallEnds, fmt.Sprintf("the simulation is not idle after %d steps", stepsMax))
		}
	}
	return w.violation
}

// Close releases the resources of the cells and of the backends.
func (w *Simulation) Close() {
	for _, n := range w.nodes {
		for _, c := range n.cells {
			c.core.Abandon()
		}
	}
	w.engine.Close()
	w.store.close()
}

// recordDurations records the duration of the workload and of the recovery phase.
func (w *Simulation) recordDurations() {
	w.Stats.Workload = w.now.Sub(Origin)
	if w.recovering {
		w.Stats.Workload, w.Stats.Recovery = w.recoveringSince.Sub(Origin), w.now.Sub(w.recoveringSince)
	}
}

// Elapsed returns the simulated time since the start.
func (w *Simulation) Elapsed() actor.Duration { return w.now.Sub(Origin) }

// Hash returns the hash of the canonical log, or "" if the run is not hashed.
func (w *Simulation) Hash() string { return w.log.Hash() }

// Choices returns all choices so far, or nil if they are not drawn from the seed.
func (w *Simulation) Choices() Choices {
	if d, ok := w.entropy.(*SeededEntropy); ok {
		return d.Choices()
	}
	return nil
}

// setStream switches to another entropy stream and keeps the current cause. Events
// pushed from now on inherit the stream. It returns the previous stream.
func (w *Simulation) setStream(to StreamID) (from StreamID) {
	return w.restoreStream(to.withCause(w.queue.stream.cause()))
}

// setCause attributes all following choices to another cause.
func (w *Simulation) setCause(of StreamID) (from StreamID) {
	return w.restoreStream(w.queue.stream.withCause(of))
}

// restoreStream restores a stream together with its cause.
func (w *Simulation) restoreStream(to StreamID) (from StreamID) {
	if from = w.queue.stream; from != to {
		w.queue.stream = to
		w.entropy.SetStream(to)
	}
	return from
}

func (w *Simulation) after(d time.Duration, fn func()) { w.queue.schedule(w.now.Add(d), fn) }

// between draws a duration from [least, most). The benign choice is least.
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

// drawNode returns a running node, or nil if there is none.
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

// compareEvery is the number of steps after which the cells' states are compared with
// the state that follows from their events.
const compareEvery = 1000

// startRecovery begins the recovery phase: faults end and the network is restored.
// Every call MUST end in this phase.
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

// recoveryMax is the maximum duration of the recovery phase. It exceeds every time
// limit of a run.
const recoveryMax = 20 * time.Minute

// finishWhenIdle ends the simulation as soon as nothing is in progress.
func (w *Simulation) finishWhenIdle() {
	if work := w.pendingWork(); work != "" {
		if w.now.Sub(w.recoveringSince) < recoveryMax {
			w.after(time.Second, w.finishWhenIdle)
			return
		}
		w.fail(specs.EveryCallEnds, fmt.Sprintf("not idle %v after the last fault: %s", recoveryMax, work))
	}
	w.compareStates()
	if v := w.checker.End(); v != nil {
		w.fail(v.Spec, v.Detail)
	}
	if w.violation == nil {
		w.checkHistories()
	}
	if w.violation == nil {
		w.transcripts.checkStored()
	}
	if w.violation == nil && w.retention != nil {
		w.retention.judge.check(w.nodes[0])
	}
	w.sockets.audit()
	if w.violation == nil {
		pollJudge{w, map[string]string{}, map[string]string{}}.check()
	}
	if w.violation == nil {
		purseJudge{w, map[actor.CallID]int64{}, map[string]int64{}, map[string]int64{}}.check()
	}
	if w.violation == nil && w.auditEnabled() {
		w.audit()
	}
	w.done = true
}

// pendingWork describes the work that is still in progress, or returns "".
func (w *Simulation) pendingWork() string {
	if slices.ContainsFunc(w.nodes, func(n *node) bool { return n.clock.standsStill(w.now) }) {
		w.stoodStillAt = w.now
	}
	switch {
	case len(w.pending) > 0 || w.retriesScheduled > 0 || w.now < max(w.lastRequestAt, w.stoodStillAt).Add(w.timeLeftMax()+5*time.Second): // a cell that has lost a reply waits for the time left of its client
		return fmt.Sprintf("clients: %d pending requests, %d scheduled retries, last request %v ago", len(w.pending), w.retriesScheduled, w.now.Sub(w.lastRequestAt))
	case w.openReaders > 0:
		return "a client has not read a stream to its end"
	case w.externalCalls > 0:
		return "an external agent is processing a call"
	case specs.DetachedPending(w.checker):
		return "a detached call has no outcome"
	case len(w.net.flights) > 0:
		return "a message is in flight"
	}
	for g := range w.claims.groups {
		if !w.claims.owned(g) {
			return "shards have no owner"
		}
	}
	for _, n := range w.nodes {
		if !n.up || n.pausedUntil > w.now || n.lapsed || len(n.gated) > 0 || len(n.running) > 0 || len(n.upstreams.exchanges) > 0 || n.log.released() < n.log.writer.End() {
			return string(n.id) + " is down or has pending work"
		}
		for _, c := range n.cells {
			if c.stopped || len(c.inputs) > 0 || c.ownersVersion != w.claims.version {
				return c.self.String() + " has pending inputs"
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
	return w.sockets.pending()
}

func (w *Simulation) fail(spec, detail string) {
	if w.violation == nil {
		w.violation = &Violation{Spec: spec, Detail: detail, At: w.now.Sub(Origin), Step: w.Stats.Steps}
		w.log.note(w.now, "%s", w.violation.Error())
	}
}
