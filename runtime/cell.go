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
	Spending        Spending           // of the runs on models
	Routing         dispatcher.Routing // parts of detached calls that are off
}

// Cell runs a share of a node's actors on one thread. Only Step changes it. A cell
// whose Step panicked MUST NOT be stepped again.
type Cell struct {
	env
	publishOnDemand bool
	routing         routing
	entry           store.Entry  // of the record being applied; reused
	derived         []runs.Event // events of entry; reused
	booted          bool
	table           dispatcher.Table                       // owners of the shards
	lints           [contract.KeepCodes]*contract.CodeLint // by policy, of their codes; nil: not needed yet
	inherited       map[actor.EffectID]bool                // effects that the previous incarnation left running
	strikes         map[actor.CallID]int                   // panics of Step in previous incarnations

	actors     actorTable
	active     activeTurns
	idleState  *activeState                // shared by all volatile actors without a state of their own; never changed
	replyCache replyCache                  // outcomes of calls to volatile actors
	waiters    waiters                     // clients that wait here
	remote     bool                        // the message being handled comes from another node
	inFlight   map[actor.EffectID]actor.ID // actor by running effect
	timers     timers
	recovery   recoveryQueue
	closing    closing
	timerSeq   uint64 // sequence number of the last timer set
	size       Size
	residents  residents // journaled actors, by the memory that they use

	localProbes     []localProbe // probes for actors of this cell, to be handled in this step
	localProbesSent int          // number of them queued in this step
	local           localMessages
	faultingCall    actor.CallID  // call whose agent code is running; zero otherwise
	dirty           []*activation // actors that finishStep must process

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
		env:             newEnv(cfg),
		publishOnDemand: cfg.PublishOnDemand, routing: routing{cfg.Routing},
		inherited: map[actor.EffectID]bool{},
		strikes:   map[actor.CallID]int{},
		actors:    newActorTable(),
		active:    activeTurns{},
		idleState: &activeState{},
		waiters:   waiters{byCall: map[actor.CallID]*waiter{}},
		inFlight:  map[actor.EffectID]actor.ID{},
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
		c.pageLoaded(in)
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
				t.stopAgent(c)
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
			act.deactivate(c, "lost")
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
// resulting local probes. It repeats this until no actor and no probe is left.
func (c *Cell) finishStep() {
	for i := 0; i < len(c.dirty) || len(c.localProbes) > 0; i++ {
		if i == len(c.dirty) {
			c.handleLocalProbe()
			i--
			continue
		}
		act := c.dirty[i]
		act.dirty = false
		if !act.loaded || act.gone {
			continue
		}
		if c.rests(act) {
			act.releaseState(c)
			continue
		}
		act.runReady(c)
		act.updateSize(c)
		if act.mustLoad && !act.durable && len(act.journal.Runs) == 0 {
			act.loadIdle(c, true)
			continue
		}
		act.snapshot(c)
		if act.durable {
			c.residents.update(act, act.memorySize(), act.idle())
		}
		if act.durable && act.idle() && c.failpoints.On(failpoint.PassivateNow) {
			act.deactivate(c, "idle")
			continue
		}
		act.armTimer(c)
		act.releaseState(c)
	}
	for act := c.residents.excess(c.limits.ActorBytesMax); act != nil; act = c.residents.excess(c.limits.ActorBytesMax) {
		act.deactivate(c, "memory")
	}
	c.dirty, c.localProbesSent = c.dirty[:0], 0
	c.local.endStep()
	c.recycle()
	c.waiters.park(c)
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
