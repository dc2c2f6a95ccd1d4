// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/internal/failpoint"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/internal/mutant"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

// Config is what a cell has from birth.
type Config struct {
	Self       actor.Address // node, cell, incarnation
	Seed       uint64        // of the ids it draws; never the same for two incarnations
	Tools      *tools.Registry
	Failpoints failpoint.Points // nil but in the simulator
	// EventKinds is the kinds of events that the world wants to hear of; 0: all.
	EventKinds history.Set
	// PublishOnDemand: a run of an actor that writes nothing down has a stream only if
	// somebody follows it when its call comes.
	PublishOnDemand bool
}

// Cell is a single-threaded share of a node's actors. It is changed by Step
// alone. A cell that panicked in Step must not be stepped again.
type Cell struct {
	self            actor.Address
	tools           *tools.Registry
	failpoints      failpoint.Points
	eventKinds      history.Set
	publishOnDemand bool
	rng             uint64
	lastStamp       actor.Time // the last one given

	now         actor.Time
	booted      bool
	limits      dispatcher.Limits
	table       dispatcher.Table
	agents      map[string]*actor.Definition     // those that exist, by name
	definitions map[actor.Hash]*actor.Definition // those and the ones runs still have
	inherited   map[actor.EffectID]bool          // effects of the incarnation before
	strikes     map[actor.CallID]int

	actors        actorTable
	idleState     *activeState // of actors that have nothing open: never changed
	replyCache    replyCache
	waiters       map[actor.CallID]*waiter
	remote        bool                        // what this step takes in comes from another node
	currentWaiter *waiter                     // came in this step, and is not answered yet
	freeWaiter    *waiter                     // for the next guest
	inFlight      map[actor.EffectID]actor.ID // whose tools and work are out
	timers        timers
	recovery      recoveryQueue
	timerSeq      uint64 // of timers set
	size          Size
	tally         Tally

	localProbes     []localProbe   // for actors of this cell, in this step
	localProbesSent int            // how many there were
	localQueue      []localMessage // messages of this step for actors of this cell
	localSent       int            // how many there were
	faultingCall    actor.CallID   // whose turn is being advanced
	dirty           []*activation
	freeEvents      []runs.Event // is nobody's just now
	ready           Ready

	// What was used before, and nobody has any more. What ended in this step may
	// still be looked at.
	freeStates []*activeState
	freeTurns  []*turn
	endedTurns []*turn
	freeRuns   []*store.Run
	endedRuns  []*store.Run
}

// NewCell returns a cell that knows nothing yet. A world tells it Limits,
// Agents and Owners, then Boot.
func NewCell(cfg Config) *Cell {
	return &Cell{
		self: cfg.Self, tools: cfg.Tools, failpoints: cfg.Failpoints, rng: cfg.Seed, eventKinds: cfg.EventKinds, publishOnDemand: cfg.PublishOnDemand,
		limits:      dispatcher.DefaultLimits(),
		agents:      map[string]*actor.Definition{},
		definitions: map[actor.Hash]*actor.Definition{},
		inherited:   map[actor.EffectID]bool{},
		strikes:     map[actor.CallID]int{},
		actors:      newActorTable(),
		idleState:   &activeState{},
		waiters:     map[actor.CallID]*waiter{},
		inFlight:    map[actor.EffectID]actor.ID{},
	}
}

// Self is the cell's address.
func (c *Cell) Self() actor.Address { return c.self }

// FaultingCall is the call whose turn was being advanced when Step panicked; zero if
// none was. A world counts it as a Strike for the next incarnation.
func (c *Cell) FaultingCall() actor.CallID { return c.faultingCall }

// Step advances the cell by one input. What has run out by now ends first.
func (c *Cell) Step(now actor.Time, in Input) Ready {
	c.now = max(c.now, now)
	clear(c.ready.Effects) // what was asked for is not held on to
	c.ready = Ready{Effects: c.ready.Effects[:0], Events: c.ready.Events[:0]}
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
	case LoadFailed:
		c.loadFailed(in)
	case Due:
		c.recoverActors(in.Actors)
	case Owners:
		c.setOwners(in.Table)
	case Agents:
		c.setAgents(in.Definitions, in.Former)
	case Limits:
		err := in.Limits.Check()
		invariant.Check(err == nil, "limits: %v", err)
		c.limits = in.Limits
	case CellRestarted:
		c.resendToCell(in.Cell.Node, in.Cell.Cell)
	case Tick:
	}
	c.finishStep()
	return c.ready
}

// Abandon gives up the turns of a cell that is not stepped again, because Step
// panicked or its world ends: agents' code that waits in them unwinds. What it
// says on the way, nobody hears.
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

// NextDeadline is when the world must Step the cell at the latest.
func (c *Cell) NextDeadline() (actor.Time, bool) {
	if !c.booted || len(c.timers) == 0 {
		return 0, false
	}
	return c.timers[0].at, true
}

func (c *Cell) boot(in Boot) {
	invariant.Check(!c.booted, "booted twice")
	c.booted = true
	for _, id := range in.Running {
		c.inherited[id] = true
	}
	for _, s := range in.Strikes {
		c.strikes[s.Call] = s.Times
	}
	if !mutant.On("boot-looks-for-nobody") {
		c.requestExpiries(c.table.Shards(c.self.Node, c.self.Cell))
	}
}

// setAgents takes over the agents there are. Of those there were it keeps what runs
// in memory began with, and what the world says that others did.
func (c *Cell) setAgents(definitions, former []actor.Definition) {
	before := c.definitions
	c.definitions = map[actor.Hash]*actor.Definition{}
	know := func(def *actor.Definition) *actor.Definition {
		if old := before[def.Hash]; old != nil {
			def = old
		}
		c.definitions[def.Hash] = def
		return def
	}
	for i := range former {
		know(&former[i])
	}
	clear(c.agents)
	for i := range definitions {
		def := know(&definitions[i])
		c.agents[def.Name] = def
	}
	for _, act := range c.actors.ordered() {
		for _, run := range act.journal.Runs {
			if def := before[run.Definition]; def != nil {
				c.definitions[run.Definition] = def
			}
		}
	}
}

// setOwners takes over a new table: actors of lost shards leave memory at once,
// those with open work in new ones are looked for, and calls whose callee moved
// are sent again.
func (c *Cell) setOwners(table dispatcher.Table) {
	old := c.table
	c.table = table
	for _, act := range c.actors.ordered() {
		if o, ok := c.ownerOf(act.id); !ok || !c.owns(o) || o.Epoch != act.epoch {
			if mutant.On("lost-shard-kept") {
				continue
			}
			c.deactivate(act, "lost")
		}
	}
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
		c.addEffect(Effect{Gated: true, Op: Expiries{Shards: shards}})
	}
}

func (c *Cell) owns(o dispatcher.Owner) bool { return o.Node == c.self.Node && o.Cell == c.self.Cell }

// ownsActor tells whether an actor lives here, as one does that is in memory.
func (c *Cell) ownsActor(id actor.ID) bool {
	o, ok := c.ownerOf(id)
	return ok && c.owns(o)
}

func (c *Cell) owner(shard uint16) dispatcher.Owner { o, _ := c.table.Of(shard); return o }

func (c *Cell) ownerOf(id actor.ID) (dispatcher.Owner, bool) {
	return c.table.Of(dispatcher.ShardOf(id))
}

// finishStep ends a step: actors that were touched take their next message, write a
// snapshot if it is time, and set their timer.
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
		if !act.loaded || c.actors.find(act.id) != act {
			continue
		}
		c.runReady(act)
		c.updateSize(act)
		c.releaseEvents(act)
		c.snapshot(act)
		if act.durable && act.idle() && c.failpoints.On(failpoint.PassivateNow) {
			c.deactivate(act, "idle")
			continue
		}
		c.armTimer(act)
		c.releaseState(act)
	}
	c.dirty, c.localProbesSent, c.localSent = c.dirty[:0], 0, 0
	c.recycle()
	c.parkWaiter()
}

// recycle keeps what has ended in this step for the next that need it, empty.
func (c *Cell) recycle() {
	for _, t := range c.endedTurns {
		clear(t.askBuf)
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

func (c *Cell) addEffect(e Effect) { c.ready.Effects = append(c.ready.Effects, e) }

func (c *Cell) emit(e history.Event) {
	if c.emits(e.Kind) {
		e.At, e.From = c.now, c.self
		c.ready.Events = append(c.ready.Events, e)
	}
}

// emits tells whether the world wants to hear of events of that kind. To say so
// first is worth it where most calls pass.
func (c *Cell) emits(k history.Kind) bool { return c.eventKinds == 0 || c.eventKinds.Has(k) }

// newCallID makes the id of a new call, of now and the cell's stream.
func (c *Cell) newCallID() actor.CallID { return actor.NewCallID(c.now, c.random(), c.random()) }

// random is the next word of the cell's stream (splitmix64).
func (c *Cell) random() uint64 {
	c.rng += 0x9e3779b97f4a7c15
	z := c.rng
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
