// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"fmt"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
)

// Limits are the configuration of a simulation: its agents, and its bounds under the names of
// dispatcher.Limits.
type Limits struct {
	AgentCallDepthMax       int
	AgentCallTimeoutMax     actor.Duration
	AgentConcurrentCallsMax int
	MaxPendingPerActor      int
	MailboxBytesMax         int
	RememberDone            actor.Duration
	// MailboxAgeMax and CallsPerTreeMax are not checked if they are 0.
	MailboxAgeMax   actor.Duration
	CallsPerTreeMax int
	// Agents are the existing agents by name. A simulation may change the map between
	// observations.
	Agents map[string]Agent
	// Skew is the maximum difference between the clocks of two nodes. It is the tolerance for
	// durations that were measured on more than one node.
	Skew actor.Duration
	// Settle is the maximum time that cells may still use a stale table of owners after the last
	// unowned shard was claimed.
	Settle actor.Duration
	// WaitCycleMax is the maximum age of a wait cycle while no message is lost or late.
	// FirstProbeMax is the maximum age of a cycle whose waits all began while no message was lost
	// or late: the first probe must find it. Each of the two checks is disabled by 0.
	WaitCycleMax, FirstProbeMax actor.Duration
	// WaitTimeoutMax is the maximum time for which one message may stop the clock of a call; 0
	// disables the check.
	WaitTimeoutMax actor.Duration
}

// Agent holds the properties that a definition declares.
type Agent struct {
	Volatile    bool // durability = "none"
	Changing    bool // its durability changes: that of an actor is the one of its activation
	Interleaved bool
	ByActor     bool // recursion is checked by actor, not by agent
	System      bool // part of the program itself, and called by no agent
}

// Checker checks one history, event by event. It stops at the first violation.
type Checker struct {
	Premises Premises

	limits           Limits
	now              actor.Time // latest time reported by any node
	globalTime       actor.Time // simulation time; 0 until set
	undisturbedSince actor.Time // simulation time since which no message was lost or late

	actors        map[actor.ID]*actorState
	runs          map[actor.CallID]*run
	asks          map[actor.CallID]*ask
	clients       map[clientKey]*client
	nodes         map[actor.NodeID]*node
	shards        []claim
	unownedShards int        // number of shards that were claimed before and have no owner now
	ownedSince    actor.Time // time at which the last unowned shard was claimed

	expiries []expiry
	expired  int // number of expiries already processed, counted from the first

	observation     uint64         // number of observations
	step            uint64         // step number of the simulation
	event           *history.Event // event being checked
	stepNode        *node          // node to whose log the changes of this step belong
	stepStart       int            // index in stepNode.changes of the first change of this step
	requiredEntries int            // minimum number of entries this step must append
	lastAsk         askPosition    // position of the last ask counted in requiredEntries
	delivered       *history.Event
	pendingHold     *ask          // ask whose Held or Resumed was delivered and not yet applied
	reactivated     []*actorState // actors reactivated from their journal in this step
	tainting        []*run        // runs that received another input in this step before they read durable data
	clockChanged    []*run        // runs for which this step stopped or restarted a clock: their own or that of a call
	expiredCalls    []*ask        // calls that expired in this step and were not cancelled yet
	refusals        []refusal     // refusals of this step whose effects have not left yet

	streamPositions map[clientStream]uint64        // last event received by each client of a stream
	trees           map[actor.CallID]*tree         // by call of the client
	cancelled       map[actor.CallID]*cancellation // calls cancelled before their turn
	waiting         []*run                         // runs whose waits for a person are checked after this step
	clamped         int                            // calls and waits of this step that request more time than the maximum
	lostRuns        map[actor.CallID]*run          // runs lost by volatile actors; their effects may continue
	formerConfirmed map[actor.CallID][]actor.Epoch // confirmed, of runs that a crash undid
	revoked         map[int]bool                   // clients whose key is revoked
	detached        detachedCalls

	seq          uint64        // number of events
	brokenCycles []brokenCycle // most recent broken cycles, oldest first

	violation *Violation
}

type claim struct {
	cell  *cell // nil if unowned
	epoch actor.Epoch
}

// refusal is the refusal of a call that was not admitted. It leaves no entry in the log.
type refusal struct {
	call   actor.CallID
	reason actor.Reason // 0 if unknown
}

type askPosition struct {
	run  actor.CallID
	step uint32
}

// New returns a checker for an empty history.
func New(l Limits) *Checker {
	c := &Checker{limits: l,
		actors:          map[actor.ID]*actorState{},
		runs:            map[actor.CallID]*run{},
		asks:            map[actor.CallID]*ask{},
		clients:         map[clientKey]*client{},
		nodes:           map[actor.NodeID]*node{},
		streamPositions: map[clientStream]uint64{},
		lostRuns:        map[actor.CallID]*run{},
		formerConfirmed: map[actor.CallID][]actor.Epoch{},
		trees:           map[actor.CallID]*tree{},
		cancelled:       map[actor.CallID]*cancellation{},
		revoked:         map[int]bool{},
	}
	c.detached = detachedCalls{c, map[actor.CallID]*detachedCall{}, map[actor.CallID]*detachedCall{}}
	return c
}

// Observe checks the events of one step of a cell or of the environment. It returns the first
// violation of the history, and returns it again on every later call.
func (c *Checker) Observe(step uint64, events []history.Event) *Violation {
	if c.violation != nil {
		return c.violation
	}
	c.observation++
	c.clamped = 0
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
	case history.Confirm:
		c.confirm(e)
	case history.RefuseWaitCycle:
		c.refuseWaitCycle(e)
	case history.Detach, history.Settle, history.Late:
		c.detached.observe(e)
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

// fail records a violation unless there is one already.
func (c *Checker) fail(spec, format string, args ...any) {
	if c.violation != nil {
		return
	}
	c.violation = &Violation{Spec: spec, Detail: fmt.Sprintf(format, args...), Step: c.step}
	if c.event != nil {
		c.violation.Event = *c.event
		c.violation.Event.Chain = slices.Clone(c.event.Chain)
	}
}

// endStep runs the checks that need all events of a step.
func (c *Checker) endStep() {
	c.assignPositions(0, 0)
	if k := c.pendingHold; k != nil && k.open && k.lastHold == 0 && c.violation == nil {
		c.fail(ExpireOnlyWhenDue, "%s received a Held or Resumed for its call %s to %s and did not adjust the clock of the call", k.parent.actor.id, k.id, k.to)
	}
	for _, a := range c.reactivated {
		c.checkResent(a)
	}
	for _, k := range c.expiredCalls {
		c.checkCancelled(k)
	}
	for _, r := range c.clockChanged {
		c.checkTurnOutlivesCalls(r)
	}
	c.expiredCalls = c.expiredCalls[:0]
	for _, r := range c.waiting {
		c.checkWaitsHold(r)
	}
	c.waiting = c.waiting[:0]
	c.reactivated, c.clockChanged, c.delivered, c.pendingHold, c.event = c.reactivated[:0], c.clockChanged[:0], nil, nil, nil
}

// requireEntries records that the current step changes the state of an actor, and that the change
// needs this number of entries in the log.
func (c *Checker) requireEntries(a *actorState, entries int) {
	if a.volatile {
		return
	}
	if c.stepNode == nil {
		c.stepNode, c.stepStart = a.cell.node, len(a.cell.node.changes)
	}
	c.requiredEntries += entries
}

// recordAppend records the end of the log after a step that wrote entries.
func (c *Checker) recordAppend(e *history.Event) {
	n := c.node(e.From.Node)
	n.end = e.Pos
	c.assignPositions(e.Pos, e.Wrote)
}

// assignPositions sets the log position of the changes of the current step. A step that appended
// fewer entries than its changes need violates AckedIsDurable.
func (c *Checker) assignPositions(pos uint64, wrote int) {
	if wrote < c.requiredEntries {
		c.fail(AckedIsDurable, "a step of %s requires at least %d entries and appended %d", c.stepNode.id, c.requiredEntries, wrote)
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

// slack returns the tolerance for a duration that is compared on node n. It is 0 if the duration
// was measured on the clock of n alone and that clock was not set back.
func (c *Checker) slack(w *stopwatch, n *node) actor.Duration {
	if w.mixed || w.node != n || n.clockBehind {
		return c.limits.Skew
	}
	return 0
}

// acting returns the actor that takes the step. The actor must be active at the address and under
// the epoch of the event. Otherwise acting returns nil.
func (c *Checker) acting(e *history.Event) *actorState {
	a := c.actors[e.Actor]
	switch {
	case a == nil:
		c.fail(SingleActivation, "%s acts on %s without ever having been activated", e.Actor, e.From)
		return nil
	case e.Epoch < a.epoch:
		c.fail(SingleActivation, "%s acts on %s under epoch %d after epoch %d on %s", a.id, e.From, e.Epoch, a.epoch, a.at)
		return nil
	case !a.active || a.epoch != e.Epoch || a.at != e.From:
		c.fail(SingleActivation, "%s acts on %s under epoch %d; it is %s", a.id, e.From, e.Epoch, a.location())
		return nil
	}
	if d := c.delivered; d != nil && d.Epoch != 0 && d.Epoch != e.Epoch && d.Call == e.Call && d.Actor == e.Actor {
		c.fail(SingleActivation, "%s accepts the %s of call %s, sent to epoch %d, under epoch %d", a.id, d.What, e.Call, d.Epoch, e.Epoch)
		return nil
	}
	return a
}

func (a *actorState) location() string {
	if !a.active {
		return fmt.Sprintf("inactive, last on %s under epoch %d", a.at, a.epoch)
	}
	return fmt.Sprintf("active on %s under epoch %d", a.at, a.epoch)
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
		c.fail(SingleActivation, "%s is activated on %s under epoch %d after epoch %d on %s", a.id, e.From, e.Epoch, a.epoch, a.at)
		return
	case a.active && e.Epoch == a.epoch:
		c.fail(SingleActivation, "%s is active on both %s and %s under the same epoch %d", a.id, a.at, e.From, a.epoch)
		return
	}
	if a.active { // its former cell has not learned of the loss yet
		a.cell.leave(a)
		c.dropVolatile(a)
	}
	if a.cell != nil && a.cell.node != to.node {
		c.recordMove(a)
	}
	if a.epoch != 0 && a.epoch != e.Epoch {
		c.Premises.SingleActivation++
	}
	a.volatile = !e.Durable
	if def, ok := c.limits.Agents[a.id.Agent]; ok && !def.Changing {
		a.volatile = def.Volatile
	}
	a.active, a.cell, a.at, a.epoch = true, to, e.From, e.Epoch
	a.activations++
	a.activatedAt, a.activatedGlobal = e.At, c.globalNow()
	to.enter(a)
	for _, r := range a.openRuns { // the counts of a mailbox are not durable
		r.overtaken = 0
		if r.started && r.unbegun && !a.volatile {
			r.started, r.startedSeq = false, 0
			a.enqueue(r)
		}
		if len(r.waits) > 0 {
			a.agingFrom = max(a.agingFrom, e.At)
		}
		a.agingFrom = max(a.agingFrom, r.clock.heldUntil) // a crash may have undone the end of the hold
	}
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

// checkResent checks that a reactivated actor resends its open calls in the same step. The check
// is skipped while the shard of a callee may have no known owner.
func (c *Checker) checkResent(a *actorState) {
	if c.unownedShards > 0 || c.ownedSince != 0 && c.now < c.ownedSince.Add(c.limits.Settle) || !a.active {
		return
	}
	c.detached.resent(a)
	for _, r := range a.openRuns {
		if r.started {
			c.Premises.TurnComesBack++
		}
		for _, k := range r.asks {
			if k.open {
				c.Premises.EveryCallEnds++
			}
			if k.open && k.lastSent != c.observation && k.clock.elapsed(a.activatedAt) < k.left-c.slack(&k.clock, a.cell.node) && c.violation == nil {
				c.fail(EveryCallEnds, "%s was reactivated on %s and does not resend its open call %s to %s", a.id, a.at, k.id, k.to)
			}
		}
	}
}

// restart records a new incarnation of a cell, or of a node that has crashed.
func (c *Checker) restart(e *history.Event) {
	n := c.node(e.From.Node)
	n.clockBehind = n.clockBehind || e.At < n.died
	c.stopCell(c.cell(e.From))
}
