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
	Self  actor.Address // node, cell, incarnation
	Seed  uint64        // of the ids it draws; never the same for two incarnations
	Tools *tools.Registry
	Rare  failpoint.Points // nil but in the simulator
	// Tells is the kinds of events that the world wants to hear of; 0: all.
	Tells history.Set
	// Quiet: a run of an actor that writes nothing down has a stream only if
	// somebody follows it when its call comes.
	Quiet bool
}

// Cell is a single-threaded share of a node's actors. It is changed by Step
// alone. A cell that panicked in Step must not be stepped again.
type Cell struct {
	self   actor.Address
	tools  *tools.Registry
	rare   failpoint.Points
	kinds  history.Set
	quiet  bool
	stream uint64
	stamp  actor.Time // the last one given

	now     actor.Time
	booted  bool
	limits  dispatcher.Limits
	table   dispatcher.Table
	agents  map[string]*actor.Definition     // those that exist, by name
	known   map[actor.Hash]*actor.Definition // those and the ones runs still have
	running map[actor.EffectID]bool          // effects of the incarnation before
	strikes map[actor.CallID]int

	actors     roster
	rest       *life // of actors that have nothing open: never changed
	recall     recall
	clients    map[actor.CallID]*client
	far        bool                        // what this step takes in comes from another node
	guest      *client                     // came in this step, and is not answered yet
	spare      *client                     // for the next guest
	performing map[actor.EffectID]actor.ID // whose tools and work are out
	timers     timers
	asleep     asleep
	order      uint64 // of timers set
	size       Size
	tally      Tally

	probes  []probe      // for actors of this cell, in this step
	passed  int          // how many there were
	inside  []inside     // messages of this step for actors of this cell
	stayed  int          // how many there were
	blame   actor.CallID // whose turn is being advanced
	touched []*activation
	told    []runs.Event // is nobody's just now
	ready   Ready

	// What was used before, and nobody has any more. What ended in this step may
	// still be looked at.
	lives  []*life
	turns  []*turn
	ended  []*turn
	opened []*store.Run
	closed []*store.Run
}

// NewCell returns a cell that knows nothing yet. A world tells it Limits,
// Agents and Owners, then Boot.
func NewCell(cfg Config) *Cell {
	return &Cell{
		self: cfg.Self, tools: cfg.Tools, rare: cfg.Rare, stream: cfg.Seed, kinds: cfg.Tells, quiet: cfg.Quiet,
		limits:     dispatcher.DefaultLimits(),
		agents:     map[string]*actor.Definition{},
		known:      map[actor.Hash]*actor.Definition{},
		running:    map[actor.EffectID]bool{},
		strikes:    map[actor.CallID]int{},
		actors:     newRoster(),
		rest:       &life{},
		clients:    map[actor.CallID]*client{},
		performing: map[actor.EffectID]actor.ID{},
	}
}

// Self is the cell's address.
func (c *Cell) Self() actor.Address { return c.self }

// Blame is the call whose turn was being advanced when Step panicked; zero if
// none was. A world counts it as a Strike for the next incarnation.
func (c *Cell) Blame() actor.CallID { return c.blame }

// Step advances the cell by one input. What has run out by now ends first.
func (c *Cell) Step(now actor.Time, in Input) Ready {
	c.now = max(c.now, now)
	clear(c.ready.Effects) // what was asked for is not held on to
	c.ready = Ready{Effects: c.ready.Effects[:0], Events: c.ready.Events[:0]}
	c.blame, c.far = actor.CallID{}, false
	if c.booted {
		c.ring()
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
		c.wake(in.Actors)
	case Owners:
		c.owners(in.Table)
	case Agents:
		c.define(in.Definitions, in.Former)
	case Limits:
		err := in.Limits.Check()
		invariant.Check(err == nil, "limits: %v", err)
		c.limits = in.Limits
	case CellRestarted:
		c.resendTo(in.Cell.Node, in.Cell.Cell)
	case Tick:
	}
	c.settle()
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
				c.stop(t)
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
		c.running[id] = true
	}
	for _, s := range in.Strikes {
		c.strikes[s.Call] = s.Times
	}
	if !mutant.On("boot-looks-for-nobody") {
		c.expiries(c.table.Shards(c.self.Node, c.self.Cell))
	}
}

// define takes over the agents there are. Of those there were it keeps what runs
// in memory began with, and what the world says that others did.
func (c *Cell) define(definitions, former []actor.Definition) {
	before := c.known
	c.known = map[actor.Hash]*actor.Definition{}
	know := func(def *actor.Definition) *actor.Definition {
		if old := before[def.Hash]; old != nil {
			def = old
		}
		c.known[def.Hash] = def
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
				c.known[run.Definition] = def
			}
		}
	}
}

// owners takes over a new table: actors of lost shards leave memory at once,
// those with open work in new ones are looked for, and calls whose callee moved
// are sent again.
func (c *Cell) owners(table dispatcher.Table) {
	old := c.table
	c.table = table
	for _, act := range c.actors.ordered() {
		if o, ok := c.ownerOf(act.id); !ok || !c.mine(o) || o.Epoch != act.epoch {
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
		if o, ok := old.Of(s); !ok || !c.mine(o) || o != c.owner(s) {
			gained = append(gained, s)
		}
	}
	c.expiries(gained)
	moved := func(id actor.ID) bool {
		before, _ := old.Of(dispatcher.ShardOf(id))
		after, ok := c.ownerOf(id)
		return ok && before != after
	}
	c.resend(moved)
}

func (c *Cell) expiries(shards []uint16) {
	if len(shards) > 0 {
		c.effect(Effect{Gated: true, Op: Expiries{Shards: shards}})
	}
}

func (c *Cell) mine(o dispatcher.Owner) bool { return o.Node == c.self.Node && o.Cell == c.self.Cell }

// isMine tells whether an actor lives here, as one does that is in memory.
func (c *Cell) isMine(id actor.ID) bool {
	o, ok := c.ownerOf(id)
	return ok && c.mine(o)
}

func (c *Cell) owner(shard uint16) dispatcher.Owner { o, _ := c.table.Of(shard); return o }

func (c *Cell) ownerOf(id actor.ID) (dispatcher.Owner, bool) {
	return c.table.Of(dispatcher.ShardOf(id))
}

// settle ends a step: actors that were touched take their next message, write a
// snapshot if it is time, and set their timer.
func (c *Cell) settle() {
	for i := 0; i < len(c.touched) || len(c.inside)+len(c.probes) > 0; i++ {
		if i == len(c.touched) {
			if len(c.inside) > 0 {
				c.takeInside()
			} else {
				c.probeOn()
			}
			i--
			continue
		}
		act := c.touched[i]
		act.touched = false
		if !act.loaded || c.actors.find(act.id) != act {
			continue
		}
		c.pump(act)
		c.count(act)
		c.said(act)
		c.snapshot(act)
		if act.durable && act.idle() && c.rare.On(failpoint.PassivateNow) {
			c.deactivate(act, "idle")
			continue
		}
		c.arm(act)
		c.retire(act)
	}
	c.touched, c.passed, c.stayed = c.touched[:0], 0, 0
	c.tidy()
	c.stay()
}

// tidy keeps what has ended in this step for the next that need it, empty.
func (c *Cell) tidy() {
	for _, t := range c.ended {
		clear(t.first)
		if *t = (turn{sent: t.sent[:0], first: t.first[:0]}); len(c.turns) < sparesMax {
			c.turns = append(c.turns, t)
		}
	}
	for _, run := range c.closed {
		steps := run.Steps
		if clear(steps); cap(steps) > stepsKept {
			steps = nil
		}
		if *run = (store.Run{Steps: steps[:0]}); len(c.opened) < sparesMax {
			c.opened = append(c.opened, run)
		}
	}
	c.ended, c.closed = c.ended[:0], c.closed[:0]
}

func (c *Cell) touch(act *activation) {
	if !act.touched {
		act.touched = true
		c.touched = append(c.touched, act)
	}
}

func (c *Cell) effect(e Effect) { c.ready.Effects = append(c.ready.Effects, e) }

func (c *Cell) event(e history.Event) {
	if c.hears(e.Kind) {
		e.At, e.From = c.now, c.self
		c.ready.Events = append(c.ready.Events, e)
	}
}

// hears tells whether the world wants to hear of events of that kind. To say so
// first is worth it where most calls pass.
func (c *Cell) hears(k history.Kind) bool { return c.kinds == 0 || c.kinds.Has(k) }

// draw makes the id of a new call, of now and the cell's stream.
func (c *Cell) draw() actor.CallID { return actor.NewCallID(c.now, c.random(), c.random()) }

// random is the next word of the cell's stream (splitmix64).
func (c *Cell) random() uint64 {
	c.stream += 0x9e3779b97f4a7c15
	z := c.stream
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
