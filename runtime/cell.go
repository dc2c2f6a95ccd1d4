// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/contract"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/internal/failpoint"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

// Config holds the parameters of a new cell.
type Config struct {
	Self       actor.Address // node, cell and incarnation
	Seed       uint64        // seed of the id generator; MUST differ between incarnations
	Tools      *tools.Registry
	Failpoints failpoint.Points // nil outside the simulator
	Cells      int              // number of cells of the node; 0 means 1
	// EventKinds is the set of history events to emit; 0 means all.
	EventKinds history.Set
	// PublishOnDemand restricts the run events of volatile actors to runs that have
	// a subscriber when the call arrives.
	PublishOnDemand bool
	Routing         dispatcher.Routing // parts of detached calls that are off
}

// published is the number of the last logged event of a run. Entries of a run that follow
// each other in a step share one effect.
type published struct {
	event store.RunEvent
	gated bool
}

// Cell runs a share of a node's actors on one thread. Only Step changes it. A cell
// whose Step panicked MUST NOT be stepped again.
type Cell struct {
	self            actor.Address
	tools           *tools.Registry
	failpoints      failpoint.Points
	eventKinds      history.Set
	publishOnDemand bool
	cells           int
	routing         routing
	rng             uint64     // state of the id generator
	lastStamp       actor.Time // last stamp given to a call

	now         actor.Time
	published   published    // not yet an effect
	entry       store.Entry  // of the record being applied; reused
	derived     []runs.Event // events of entry; reused
	booted      bool
	limits      dispatcher.Limits
	table       dispatcher.Table // owners of the shards
	definitions definitions
	callable    *tools.Agents                          // current definitions for the targets of calls
	lints       [contract.KeepCodes]*contract.CodeLint // by policy, of their codes; nil: not needed yet
	inherited   map[actor.EffectID]bool                // effects that the previous incarnation left running
	strikes     map[actor.CallID]int                   // panics of Step in previous incarnations

	actors        actorTable
	active        activeTurns
	idleState     *activeState                // shared by all volatile actors without a state of their own; never changed
	replyCache    replyCache                  // outcomes of calls to volatile actors
	waiters       map[actor.CallID]*waiter    // clients that wait here, by call
	remote        bool                        // the message being handled comes from another node
	currentWaiter *waiter                     // client whose call arrived in this step and has no answer yet
	freeWaiter    *waiter                     // reused for the next client
	inFlight      map[actor.EffectID]actor.ID // actor by running effect
	timers        timers
	recovery      recoveryQueue
	closing       closing
	timerSeq      uint64 // sequence number of the last timer set
	size          Size
	residents     residents // journaled actors, by the memory that they use

	localProbes     []localProbe   // probes for actors of this cell, to be handled in this step
	localProbesSent int            // number of them queued in this step
	localQueue      []localMessage // messages for actors of this cell, delivered in this step
	localSent       int            // number of them queued in this step
	faultingCall    actor.CallID   // call whose agent code is running; zero otherwise
	dirty           []*activation  // actors that finishStep must process
	ready           Ready

	// Free lists. Turns and runs that ended in this step may still be referenced
	// until its end. Therefore endedTurns and endedRuns are recycled at the end of
	// the step.
	freeStates []*activeState
	freeTurns  []*turn
	endedTurns []*turn
	freeRuns   []*store.Run
	endedRuns  []*store.Run
}

// NewCell returns an empty cell. The driver MUST step Limits, Agents and Owners
// before Boot.
func NewCell(cfg Config) *Cell {
	return &Cell{
		self: cfg.Self, tools: cfg.Tools, failpoints: cfg.Failpoints, rng: cfg.Seed, eventKinds: cfg.EventKinds, publishOnDemand: cfg.PublishOnDemand, cells: cfg.Cells, routing: routing{cfg.Routing},
		limits:      dispatcher.DefaultLimits(),
		definitions: newDefinitions(),
		inherited:   map[actor.EffectID]bool{},
		strikes:     map[actor.CallID]int{},
		actors:      newActorTable(),
		active:      activeTurns{},
		idleState:   &activeState{},
		waiters:     map[actor.CallID]*waiter{},
		inFlight:    map[actor.EffectID]actor.ID{},
	}
}

// Self returns the cell's address.
func (c *Cell) Self() actor.Address { return c.self }

// FaultingCall returns the call whose agent code was running when Step panicked, or
// zero. The driver passes it to the next incarnation as a Strike.
func (c *Cell) FaultingCall() actor.CallID { return c.faultingCall }

// Step advances the cell by one input. Expired timers fire before the input is
// handled.
func (c *Cell) Step(now actor.Time, in Input) Ready {
	c.now = max(c.now, now)
	clear(c.ready.Effects) // drops references to effects of the previous step
	c.ready = Ready{Effects: c.ready.Effects[:0], Events: c.ready.Events[:0], Measures: c.ready.Measures[:0]}
	c.faultingCall, c.remote = actor.CallID{}, false
	if c.booted {
		c.fireTimers()
	}
	switch in := in.(type) {
	case Boot:
		c.boot(in)
	case *Visit:
		c.visited(in)
	case *Deliver:
		c.deliver(&in.Envelope)
	case Deliver:
		c.deliver(&in.Envelope)
	case Outcome:
		c.outcome(in)
	case Streamed:
		c.streamed(in)
	case Loaded:
		c.loaded(in)
	case Recalled:
		c.recalled(in)
	case PageLoaded:
		transcripts{c}.pageLoaded(in)
	case LoadFailed:
		c.loadFailed(in)
	case Due:
		if in.Last {
			c.recovery.scans--
		}
		c.recoverActors(in.Actors)
	case Owners:
		c.setOwners(in.Table)
	case Agents:
		c.setAgents(in)
	case Limits:
		err := in.Limits.Check()
		invariant.Check(err == nil, "invalid limits: %v", err)
		c.limits = in.Limits
	case Forget:
		c.forget(in)
	case ForgetChecked:
		c.forgetChecked(in)
	case CellRestarted:
		c.resendToCell(in.Cell.Node, in.Cell.Cell)
	case Tick:
	}
	c.finishStep()
	c.flushPublished()
	return c.ready
}

// Abandon stops the turns of a cell that will not be stepped again because Step
// panicked or the driver shuts down. Agent code that waits in a turn unwinds. Its
// output is discarded.
func (c *Cell) Abandon() {
	for _, act := range c.actors.ordered() {
		for _, t := range act.turns {
			func() {
				defer func() { _ = recover() }()
				c.stopAgent(t)
			}()
		}
	}
}

// NextDeadline returns the time by which the driver MUST step the cell next, and
// false if there is none.
func (c *Cell) NextDeadline() (actor.Time, bool) {
	at := c.replyCache.due()
	if len(c.timers) > 0 {
		at = min(at, c.timers[0].at)
	}
	return at, c.booted && at < actor.Forever
}

func (c *Cell) boot(in Boot) {
	invariant.Check(!c.booted, "the cell was booted twice")
	c.booted = true
	for _, id := range in.Running {
		c.inherited[id] = true
	}
	for _, s := range in.Strikes {
		c.strikes[s.Call] = s.Times
	}
	c.requestExpiries(c.table.Shards(c.self.Node, c.self.Cell))
}

// setAgents replaces the agent definitions. It visits no actor.
func (c *Cell) setAgents(in Agents) {
	c.definitions.replace(in.Definitions, in.Former)
	c.callable = tools.NewAgents(in.Definitions)
	clear(c.lints[:])
	if in.Tools != nil {
		c.tools = in.Tools
	}
}

// setOwners replaces the table of shard owners. It drops the actors of lost shards.
// For gained shards it requests the actors with open work. It resends calls whose
// callee has a new owner.
func (c *Cell) setOwners(table dispatcher.Table) {
	old := c.table
	c.table = table
	for _, act := range c.actors.ordered() {
		if o, ok := c.ownerOf(act.id); !ok || !c.owns(o) || o.Epoch != act.epoch {
			c.deactivate(act, "lost")
		}
	}
	c.reopen()
	if !c.booted {
		return
	}
	gained := make([]uint16, 0)
	for _, s := range table.Shards(c.self.Node, c.self.Cell) {
		if o, ok := old.Of(s); !ok || !c.owns(o) || o != c.owner(s) {
			gained = append(gained, s)
		}
	}
	c.requestExpiries(gained)
	moved := func(id actor.ID) bool {
		before, _ := old.Of(dispatcher.ShardOf(id))
		after, ok := c.ownerOf(id)
		return ok && before != after
	}
	c.resendCalls(moved)
}

func (c *Cell) requestExpiries(shards []uint16) {
	if len(shards) > 0 {
		c.recovery.scans++
		c.addEffect(Effect{Gated: true, Op: Expiries{Shards: shards}})
	}
}

func (c *Cell) owns(o dispatcher.Owner) bool { return o.Node == c.self.Node && o.Cell == c.self.Cell }

// ownsActor reports whether the actor belongs to this cell. Every actor in memory
// belongs to this cell.
func (c *Cell) ownsActor(id actor.ID) bool {
	o, ok := c.ownerOf(id)
	return ok && c.owns(o)
}

func (c *Cell) owner(shard uint16) dispatcher.Owner { o, _ := c.table.Of(shard); return o }

func (c *Cell) ownerOf(id actor.ID) (dispatcher.Owner, bool) {
	return c.table.Of(dispatcher.ShardOf(id))
}

// finishStep completes a step. For each changed actor it runs the turns that are
// ready, writes a snapshot if one is due, and sets the timer. Then it handles the
// resulting local messages and probes. It repeats this until no actor, message or
// probe is left.
func (c *Cell) finishStep() {
	for i := 0; i < len(c.dirty) || len(c.localQueue)+len(c.localProbes) > 0; i++ {
		if i == len(c.dirty) {
			if len(c.localQueue) > 0 {
				c.deliverLocal()
			} else {
				c.handleLocalProbe()
			}
			i--
			continue
		}
		act := c.dirty[i]
		act.dirty = false
		if !act.loaded || act.gone {
			continue
		}
		c.runReady(act)
		c.updateSize(act)
		if act.mustLoad && !act.durable && len(act.journal.Runs) == 0 {
			c.loadIdle(act, true)
			continue
		}
		c.snapshot(act)
		if act.durable {
			c.residents.update(act, act.memorySize(), act.idle())
		}
		if act.durable && act.idle() && c.failpoints.On(failpoint.PassivateNow) {
			c.deactivate(act, "idle")
			continue
		}
		c.armTimer(act)
		c.releaseState(act)
	}
	for act := c.residents.excess(c.limits.ActorBytesMax); act != nil; act = c.residents.excess(c.limits.ActorBytesMax) {
		c.deactivate(act, "memory")
	}
	c.dirty, c.localProbesSent, c.localSent = c.dirty[:0], 0, 0
	c.recycle()
	c.parkWaiter()
}

// recycle clears the turns and runs that ended in this step and returns them to the
// free lists.
func (c *Cell) recycle() {
	for _, t := range c.endedTurns {
		clear(t.askBuf)
		if cap(t.sends) > recycledStepsMax {
			t.sends = nil
		}
		if *t = (turn{sends: t.sends[:0], askBuf: t.askBuf[:0]}); len(c.freeTurns) < freeListMax {
			c.freeTurns = append(c.freeTurns, t)
		}
	}
	for _, run := range c.endedRuns {
		steps := run.Steps
		if clear(steps); cap(steps) > recycledStepsMax {
			steps = nil
		}
		if *run = (store.Run{Steps: steps[:0]}); len(c.freeRuns) < freeListMax {
			c.freeRuns = append(c.freeRuns, run)
		}
	}
	c.endedTurns, c.endedRuns = c.endedTurns[:0], c.endedRuns[:0]
}

func (c *Cell) markDirty(act *activation) {
	if !act.dirty {
		act.dirty = true
		c.dirty = append(c.dirty, act)
	}
}

func (c *Cell) addEffect(e Effect) {
	c.flushPublished()
	c.ready.Effects = append(c.ready.Effects, e)
}

// flushPublished adds the effect that publishes the latest logged events.
func (c *Cell) flushPublished() {
	if p := c.published; p.event.Seq > 0 {
		c.published = published{}
		c.ready.Effects = append(c.ready.Effects, Effect{Gated: p.gated, Op: Publish{Event: p.event}})
	}
}

func (c *Cell) emit(e history.Event) {
	if c.emits(e.Kind) {
		e.At, e.From = c.now, c.self
		c.ready.Events = append(c.ready.Events, e)
	}
}

// emits reports whether history events of kind k are emitted. Callers on the hot
// path call emits before they build an event.
func (c *Cell) emits(k history.Kind) bool { return c.eventKinds == 0 || c.eventKinds.Has(k) }

// newCallID returns a new call id, made of the time and two random words.
func (c *Cell) newCallID() actor.CallID { return actor.NewCallID(c.now, c.random(), c.random()) }

// random returns the next word of the cell's random stream (splitmix64).
func (c *Cell) random() uint64 {
	c.rng += 0x9e3779b97f4a7c15
	z := c.rng
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
