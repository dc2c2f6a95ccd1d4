// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"fmt"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
)

// Limits are what a world was drawn with: the bounds under the names that
// dispatcher.Limits gives them, and its agents.
type Limits struct {
	AgentCallDepthMax       int
	AgentCallTimeoutMax     actor.Duration
	AgentConcurrentCallsMax int
	MaxPendingPerActor      int
	MailboxBytesMax         int
	RememberDone            actor.Duration
	// Agents are those that exist, by name. A world may change the map between observations.
	Agents map[string]Agent
	// Skew is how far two nodes' clocks are apart at most, for clocks that moved
	// from one to the other.
	Skew actor.Duration
	// Settle is how long after a time of unowned shards cells may still hold an
	// old table of owners.
	Settle actor.Duration
	// RingBreaksIn is how long a ring of waits may stand while nothing is lost or
	// late, RingFoundIn how long if all of it is from such a time; 0: that is not judged.
	RingBreaksIn, RingFoundIn actor.Duration
}

// Agent is what a definition promises.
type Agent struct {
	Volatile    bool // durability = "none"
	Interleaved bool
	ByActor     bool // recursion
}

// Checker judges one history, event by event. It stops at the first violation.
type Checker struct {
	limits Limits
	now    actor.Time // the latest that any node told
	world  actor.Time // the time outside, once it was told
	calm   actor.Time // since when, outside, nothing was lost or late

	actors  map[actor.ID]*life
	runs    map[actor.CallID]*run
	asks    map[actor.CallID]*ask
	clients map[clientKey]*client
	nodes   map[actor.NodeID]*node
	shards  []claim
	unowned int        // shards that were claimed once and are not now
	settled actor.Time // when the last of them was claimed again

	pasts     []past
	forgotten int // of pasts

	number    uint64         // counts observations
	step      uint64         // as the world counts
	event     *history.Event // at hand
	fresh     *node          // whose log this step's changes go to
	mark      int            // where they begin in its changes
	owed      int            // entries that they must have made
	asking    place          // the last asking among them
	delivered *history.Event
	told      *ask    // was told to stand still or to go on, and has not yet
	restored  []*life // actors of this step that come back from their journal
	tainting  []*run  // runs that did something before they took in what stands in a log
	stilled   []*run  // runs of this step that a clock of was stopped or started
	declined  []no    // refusals of the step of which the world has its effects

	hearings map[hearing]uint64    // the last event that each client has
	ghosts   map[actor.CallID]*run // what unjournaled actors have forgotten, and may still go on
	revoked  map[int]bool          // clients who may not listen

	order   uint64 // counts events
	refused []ring // the last ones, in order

	broken *Violation
}

type claim struct {
	cell  *cell // nil: nobody's
	epoch actor.Epoch
}

// no is a refusal of a call that was not taken, of which nothing is written down.
type no struct {
	call   actor.CallID
	reason actor.Reason // 0: it is not known here
}

type place struct {
	run  actor.CallID
	step uint32
}

// New returns a checker of a world in which nothing has happened.
func New(l Limits) *Checker {
	return &Checker{limits: l,
		actors:   map[actor.ID]*life{},
		runs:     map[actor.CallID]*run{},
		asks:     map[actor.CallID]*ask{},
		clients:  map[clientKey]*client{},
		nodes:    map[actor.NodeID]*node{},
		hearings: map[hearing]uint64{},
		ghosts:   map[actor.CallID]*run{},
		revoked:  map[int]bool{},
	}
}

// Observe takes the events of one step of a cell, or of the world. It returns
// the first violation of the history, now and ever after.
func (c *Checker) Observe(step uint64, events []history.Event) *Violation {
	if c.broken != nil {
		return c.broken
	}
	c.number++
	c.step = step
	if len(events) > 0 && events[0].Kind != history.Perform {
		for _, r := range c.tainting {
			r.tainted = true
		}
		c.tainting, c.declined = c.tainting[:0], c.declined[:0]
	}
	for i := range events {
		c.event = &events[i]
		c.now = max(c.now, c.event.At)
		c.order++
		if c.observe(c.event); c.broken != nil {
			return c.broken
		}
	}
	c.endStep()
	c.forget()
	return c.broken
}

func (c *Checker) observe(e *history.Event) {
	switch e.Kind {
	case history.Activate:
		c.activate(e)
	case history.Deactivate:
		c.deactivate(e)
	case history.Send:
		c.send(e)
	case history.Deliver:
		c.deliver(e)
	case history.Drop:
		c.delivered, c.told = nil, nil
	case history.Admit:
		c.admit(e)
	case history.Refuse:
		c.refuse(e)
	case history.Start:
		c.start(e)
	case history.Ask:
		if e.What == "client" {
			c.askClient(e)
		} else {
			c.ask(e)
		}
	case history.Answer:
		c.answer(e)
	case history.Reply:
		c.reply(e)
	case history.Expire:
		c.expire(e)
	case history.Cancel:
		c.cancel(e)
	case history.Hold:
		c.hold(e, e.Until)
	case history.Resume:
		c.hold(e, 0)
	case history.RefuseWaitCycle:
		c.refuseRing(e)
	case history.Claim:
		c.claim(e)
	case history.Lose:
		c.lose(e)
	case history.Append:
		c.append(e)
	case history.Sync:
		c.synced(c.node(e.From.Node), e.Synced)
	case history.Perform:
		c.perform(e)
	case history.Crash:
		c.crashed(c.node(e.From.Node), e.Synced, e.At)
	case history.Restart:
		c.restart(e)
	}
}

// breaks records the first violation.
func (c *Checker) breaks(spec, format string, args ...any) {
	if c.broken != nil {
		return
	}
	c.broken = &Violation{Spec: spec, Sentence: fmt.Sprintf(format, args...), Step: c.step}
	if c.event != nil {
		c.broken.Event = *c.event
		c.broken.Event.Chain = slices.Clone(c.event.Chain)
	}
}

// endStep judges what only a whole step shows.
func (c *Checker) endStep() {
	c.appended(0, 0)
	if k := c.told; k != nil && k.open && k.heard == 0 && c.broken == nil {
		c.breaks(ExpireOnlyWhenDue, "%s was told that its call %s to %s stands still, and lets its clock run", k.parent.actor.id, k.id, k.to)
	}
	for _, a := range c.restored {
		c.askedAgain(a)
	}
	for _, r := range c.stilled {
		c.outlived(r)
	}
	c.restored, c.stilled, c.delivered, c.told, c.event = c.restored[:0], c.stilled[:0], nil, nil, nil
}

// changes says that the step at hand decides something for an actor, which
// takes so many entries in the log.
func (c *Checker) changes(a *life, entries int) {
	if a.volatile {
		return
	}
	if c.fresh == nil {
		c.fresh, c.mark = a.cell.node, len(a.cell.node.changes)
	}
	c.owed += entries
}

// append is the log's end behind a step that wrote something.
func (c *Checker) append(e *history.Event) {
	n := c.node(e.From.Node)
	n.end = e.Pos
	c.appended(e.Pos, e.Wrote)
}

// appended gives a step's changes their place in the log.
func (c *Checker) appended(pos uint64, wrote int) {
	if wrote < c.owed {
		c.breaks(AckedIsDurable, "a step of %s decided what takes %d entries or more, and appended %d", c.fresh.id, c.owed, wrote)
	}
	if n := c.fresh; n != nil {
		for i := c.mark; i < len(n.changes); i++ {
			n.changes[i].pos = max(pos, n.end)
		}
	}
	c.fresh, c.owed, c.asking = nil, 0, place{}
}

func (c *Checker) node(id actor.NodeID) *node {
	n := c.nodes[id]
	if n == nil {
		n = &node{id: id}
		c.nodes[id] = n
	}
	return n
}

func (c *Checker) cell(at actor.Address) *cell {
	n := c.node(at.Node)
	for _, cl := range n.cells {
		if cl.index == at.Cell {
			return cl
		}
	}
	cl := &cell{node: n, index: at.Cell}
	n.cells = append(n.cells, cl)
	return cl
}

// slack is by how much a clock may differ from what this node takes it for.
func (c *Checker) slack(w *stopwatch, n *node) actor.Duration {
	if w.moved || w.node != n || n.setBack {
		return c.limits.Skew
	}
	return 0
}

// acting is the actor that takes a step, if it may.
func (c *Checker) acting(e *history.Event) *life {
	a := c.actors[e.Actor]
	switch {
	case a == nil:
		c.breaks(SingleActivation, "%s acts on %s, and was never activated", e.Actor, e.From)
		return nil
	case e.Epoch < a.epoch:
		c.breaks(SingleActivation, "%s acts on %s under epoch %d after epoch %d on %s", a.id, e.From, e.Epoch, a.epoch, a.at)
		return nil
	case !a.live || a.epoch != e.Epoch || a.at != e.From:
		c.breaks(SingleActivation, "%s acts on %s under epoch %d; it is %s", a.id, e.From, e.Epoch, a.place())
		return nil
	}
	if d := c.delivered; d != nil && d.Epoch != 0 && d.Epoch != e.Epoch && d.Call == e.Call && d.Actor == e.Actor {
		c.breaks(SingleActivation, "%s takes the %s of call %s, sent to its epoch %d, under epoch %d", a.id, d.What, e.Call, d.Epoch, e.Epoch)
		return nil
	}
	return a
}

func (a *life) place() string {
	if !a.live {
		return fmt.Sprintf("nowhere, last on %s under epoch %d", a.at, a.epoch)
	}
	return fmt.Sprintf("on %s under epoch %d", a.at, a.epoch)
}

func (c *Checker) activate(e *history.Event) {
	a := c.actors[e.Actor]
	if a == nil {
		a = &life{id: e.Actor}
		c.actors[e.Actor] = a
	}
	to := c.cell(e.From)
	switch {
	case e.Epoch < a.epoch:
		c.breaks(SingleActivation, "%s becomes active on %s under epoch %d after epoch %d on %s", a.id, e.From, e.Epoch, a.epoch, a.at)
		return
	case a.live && e.Epoch == a.epoch:
		c.breaks(SingleActivation, "%s is active on %s and on %s under one epoch %d", a.id, a.at, e.From, a.epoch)
		return
	}
	if a.live { // its old cell does not know yet that it has lost it
		a.cell.leave(a)
		c.lost(a)
	}
	if a.cell != nil && a.cell.node != to.node {
		c.moved(a)
	}
	a.volatile = !e.Durable
	if def, ok := c.limits.Agents[a.id.Agent]; ok {
		a.volatile = def.Volatile
	}
	a.live, a.cell, a.at, a.epoch = true, to, e.From, e.Epoch
	a.number++
	a.back, a.there = e.At, c.outside()
	to.enter(a)
	if !a.volatile {
		c.restored = append(c.restored, a)
	}
}

func (c *Checker) deactivate(e *history.Event) {
	if a := c.actors[e.Actor]; a != nil && a.live && a.at == e.From && a.epoch == e.Epoch {
		a.live = false
		a.cell.leave(a)
		c.lost(a)
	}
}

// askedAgain: who comes back with open calls asks them again at once. Without
// an owner of the callee's shard it cannot.
func (c *Checker) askedAgain(a *life) {
	if c.unowned > 0 || c.settled != 0 && c.now < c.settled.Add(c.limits.Settle) || !a.live {
		return
	}
	for _, r := range a.runs {
		for _, k := range r.asks {
			if k.open && k.sent != c.number && k.clock.at(a.back) < k.left-c.slack(&k.clock, a.cell.node) && c.broken == nil {
				c.breaks(EveryCallEnds, "%s is back on %s and does not ask its open call %s to %s again", a.id, a.at, k.id, k.to)
			}
		}
	}
}

// restart is the new incarnation of a cell, or of a node that has crashed.
func (c *Checker) restart(e *history.Event) {
	n := c.node(e.From.Node)
	n.setBack = n.setBack || e.At < n.died
	c.stopped(c.cell(e.From))
}
