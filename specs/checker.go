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
	limits           Limits
	now              actor.Time // the latest that any node told
	globalTime       actor.Time // the time outside, once it was told
	undisturbedSince actor.Time // since when, outside, nothing was lost or late

	actors        map[actor.ID]*actorState
	runs          map[actor.CallID]*run
	asks          map[actor.CallID]*ask
	clients       map[clientKey]*client
	nodes         map[actor.NodeID]*node
	shards        []claim
	unownedShards int        // shards that were claimed once and are not now
	ownedSince    actor.Time // when the last of them was claimed again

	expiries []expiry
	expired  int // of pasts

	observation     uint64         // counts observations
	step            uint64         // as the world counts
	event           *history.Event // at hand
	stepNode        *node          // whose log this step's changes go to
	stepStart       int            // where they begin in its changes
	requiredEntries int            // entries that they must have made
	lastAsk         askPosition    // the last asking among them
	delivered       *history.Event
	pendingHold     *ask          // was told to stand still or to go on, and has not yet
	reactivated     []*actorState // actors of this step that come back from their journal
	tainting        []*run        // runs that did something before they took in what stands in a log
	clockChanged    []*run        // runs of this step that a clock of was stopped or started
	refusals        []refusal     // refusals of the step of which the world has its effects

	streamPositions map[clientStream]uint64 // the last event that each client has
	lostRuns        map[actor.CallID]*run   // what unjournaled actors have forgotten, and may still go on
	revoked         map[int]bool            // clients who may not listen

	seq          uint64        // counts events
	brokenCycles []brokenCycle // the last ones, in order

	violation *Violation
}

type claim struct {
	cell  *cell // nil: nobody's
	epoch actor.Epoch
}

// refusal is a refusal of a call that was not taken, of which nothing is written down.
type refusal struct {
	call   actor.CallID
	reason actor.Reason // 0: it is not known here
}

type askPosition struct {
	run  actor.CallID
	step uint32
}

// New returns a checker of a world in which nothing has happened.
func New(l Limits) *Checker {
	return &Checker{limits: l,
		actors:          map[actor.ID]*actorState{},
		runs:            map[actor.CallID]*run{},
		asks:            map[actor.CallID]*ask{},
		clients:         map[clientKey]*client{},
		nodes:           map[actor.NodeID]*node{},
		streamPositions: map[clientStream]uint64{},
		lostRuns:        map[actor.CallID]*run{},
		revoked:         map[int]bool{},
	}
}

// Observe takes the events of one step of a cell, or of the world. It returns
// the first violation of the history, now and ever after.
func (c *Checker) Observe(step uint64, events []history.Event) *Violation {
	if c.violation != nil {
		return c.violation
	}
	c.observation++
	c.step = step
	if len(events) > 0 && events[0].Kind != history.Perform {
		for _, r := range c.tainting {
			r.tainted = true
		}
		c.tainting, c.refusals = c.tainting[:0], c.refusals[:0]
	}
	for i := range events {
		c.event = &events[i]
		c.now = max(c.now, c.event.At)
		c.seq++
		if c.observe(c.event); c.violation != nil {
			return c.violation
		}
	}
	c.endStep()
	c.forget()
	return c.violation
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
		c.delivered, c.pendingHold = nil, nil
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
		c.refuseWaitCycle(e)
	case history.Claim:
		c.claim(e)
	case history.Lose:
		c.lose(e)
	case history.Append:
		c.recordAppend(e)
	case history.Sync:
		c.recordSync(c.node(e.From.Node), e.Synced)
	case history.Perform:
		c.perform(e)
	case history.Crash:
		c.recordCrash(c.node(e.From.Node), e.Synced, e.At)
	case history.Restart:
		c.restart(e)
	}
}

// fail records the first violation.
func (c *Checker) fail(spec, format string, args ...any) {
	if c.violation != nil {
		return
	}
	c.violation = &Violation{Spec: spec, Sentence: fmt.Sprintf(format, args...), Step: c.step}
	if c.event != nil {
		c.violation.Event = *c.event
		c.violation.Event.Chain = slices.Clone(c.event.Chain)
	}
}

// endStep judges what only a whole step shows.
func (c *Checker) endStep() {
	c.assignPositions(0, 0)
	if k := c.pendingHold; k != nil && k.open && k.lastHold == 0 && c.violation == nil {
		c.fail(ExpireOnlyWhenDue, "%s was told that its call %s to %s stands still, and lets its clock run", k.parent.actor.id, k.id, k.to)
	}
	for _, a := range c.reactivated {
		c.checkResent(a)
	}
	for _, r := range c.clockChanged {
		c.checkTurnOutlivesCalls(r)
	}
	c.reactivated, c.clockChanged, c.delivered, c.pendingHold, c.event = c.reactivated[:0], c.clockChanged[:0], nil, nil, nil
}

// requireEntries says that the step at hand decides something for an actor, which
// takes so many entries in the log.
func (c *Checker) requireEntries(a *actorState, entries int) {
	if a.volatile {
		return
	}
	if c.stepNode == nil {
		c.stepNode, c.stepStart = a.cell.node, len(a.cell.node.changes)
	}
	c.requiredEntries += entries
}

// recordAppend is the log's end behind a step that wrote something.
func (c *Checker) recordAppend(e *history.Event) {
	n := c.node(e.From.Node)
	n.end = e.Pos
	c.assignPositions(e.Pos, e.Wrote)
}

// assignPositions gives a step's changes their place in the log.
func (c *Checker) assignPositions(pos uint64, wrote int) {
	if wrote < c.requiredEntries {
		c.fail(AckedIsDurable, "a step of %s decided what takes %d entries or more, and appended %d", c.stepNode.id, c.requiredEntries, wrote)
	}
	if n := c.stepNode; n != nil {
		for i := c.stepStart; i < len(n.changes); i++ {
			n.changes[i].pos = max(pos, n.end)
		}
	}
	c.stepNode, c.requiredEntries, c.lastAsk = nil, 0, askPosition{}
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
	if w.mixed || w.node != n || n.clockBehind {
		return c.limits.Skew
	}
	return 0
}

// acting is the actor that takes a step, if it may.
func (c *Checker) acting(e *history.Event) *actorState {
	a := c.actors[e.Actor]
	switch {
	case a == nil:
		c.fail(SingleActivation, "%s acts on %s, and was never activated", e.Actor, e.From)
		return nil
	case e.Epoch < a.epoch:
		c.fail(SingleActivation, "%s acts on %s under epoch %d after epoch %d on %s", a.id, e.From, e.Epoch, a.epoch, a.at)
		return nil
	case !a.active || a.epoch != e.Epoch || a.at != e.From:
		c.fail(SingleActivation, "%s acts on %s under epoch %d; it is %s", a.id, e.From, e.Epoch, a.location())
		return nil
	}
	if d := c.delivered; d != nil && d.Epoch != 0 && d.Epoch != e.Epoch && d.Call == e.Call && d.Actor == e.Actor {
		c.fail(SingleActivation, "%s takes the %s of call %s, sent to its epoch %d, under epoch %d", a.id, d.What, e.Call, d.Epoch, e.Epoch)
		return nil
	}
	return a
}

func (a *actorState) location() string {
	if !a.active {
		return fmt.Sprintf("nowhere, last on %s under epoch %d", a.at, a.epoch)
	}
	return fmt.Sprintf("on %s under epoch %d", a.at, a.epoch)
}

func (c *Checker) activate(e *history.Event) {
	a := c.actors[e.Actor]
	if a == nil {
		a = &actorState{id: e.Actor}
		c.actors[e.Actor] = a
	}
	to := c.cell(e.From)
	switch {
	case e.Epoch < a.epoch:
		c.fail(SingleActivation, "%s becomes active on %s under epoch %d after epoch %d on %s", a.id, e.From, e.Epoch, a.epoch, a.at)
		return
	case a.active && e.Epoch == a.epoch:
		c.fail(SingleActivation, "%s is active on %s and on %s under one epoch %d", a.id, a.at, e.From, a.epoch)
		return
	}
	if a.active { // its old cell does not know yet that it has lost it
		a.cell.leave(a)
		c.dropVolatile(a)
	}
	if a.cell != nil && a.cell.node != to.node {
		c.recordMove(a)
	}
	a.volatile = !e.Durable
	if def, ok := c.limits.Agents[a.id.Agent]; ok {
		a.volatile = def.Volatile
	}
	a.active, a.cell, a.at, a.epoch = true, to, e.From, e.Epoch
	a.activations++
	a.activatedAt, a.activatedGlobal = e.At, c.globalNow()
	to.enter(a)
	if !a.volatile {
		c.reactivated = append(c.reactivated, a)
	}
}

func (c *Checker) deactivate(e *history.Event) {
	if a := c.actors[e.Actor]; a != nil && a.active && a.at == e.From && a.epoch == e.Epoch {
		a.active = false
		a.cell.leave(a)
		c.dropVolatile(a)
	}
}

// checkResent: who comes back with open calls asks them again at once. Without
// an owner of the callee's shard it cannot.
func (c *Checker) checkResent(a *actorState) {
	if c.unownedShards > 0 || c.ownedSince != 0 && c.now < c.ownedSince.Add(c.limits.Settle) || !a.active {
		return
	}
	for _, r := range a.openRuns {
		for _, k := range r.asks {
			if k.open && k.lastSent != c.observation && k.clock.elapsed(a.activatedAt) < k.left-c.slack(&k.clock, a.cell.node) && c.violation == nil {
				c.fail(EveryCallEnds, "%s is back on %s and does not ask its open call %s to %s again", a.id, a.at, k.id, k.to)
			}
		}
	}
}

// restart is the new incarnation of a cell, or of a node that has crashed.
func (c *Checker) restart(e *history.Event) {
	n := c.node(e.From.Node)
	n.clockBehind = n.clockBehind || e.At < n.died
	c.stopCell(c.cell(e.From))
}
