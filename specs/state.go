// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"slices"

	"github.com/troupe-run/troupe/actor"
)

// actorState is the state of an actor as derived from events: its journal and its activation.
type actorState struct {
	id              actor.ID
	volatile        bool
	active          bool
	cell            *cell         // current cell, or the last one
	at              actor.Address // address of that cell, including the incarnation
	epoch           actor.Epoch   // highest epoch of any activation
	activations     int           // number of activations
	activatedAt     actor.Time    // time of the last activation, on the clock of its node
	activatedGlobal actor.Time    // time of the last activation in simulation time
	openRuns        []*run        // admitted and not completed
	queued          int           // number of openRuns that wait for their turn in the mailbox
	outcomes        int           // number of openRuns that wait outside of it: their messages are outcomes of detached calls
	queuedBytes     int           // total size of the queued runs in bytes
	agingFrom       actor.Time    // end of the last hold of a turn; the age of queued messages counts from then
	pending         int           // number of open calls made by the started runs
}

func (a *actorState) turns() int { return len(a.openRuns) - a.queued - a.outcomes }

// run is a call admitted by its callee.
type run struct {
	id         actor.CallID
	actor      *actorState
	activation int // activation of a volatile actor in which it was admitted
	chain      []actor.ID
	left       actor.Duration
	clock      stopwatch
	bytes      int
	started    bool
	unbegun    bool // its turn was parked before it had recorded anything: the log has it as queued
	ended      bool
	status     actor.Status
	reason     actor.Reason
	outcome    uint32
	forgetAt   actor.Time // time from which a repeat may be admitted as a new call
	volatile   bool       // admitted by a volatile actor
	tainted    bool       // a volatile run that has read durable data
	lastActed  uint64     // observation in which its turn last received an input
	asks       []*ask
	performed  []effect
	externals  []*externalEffect
	lane       actor.Lane
	context    uint32
	overtaken  int // number of calls of higher lanes that started while it was the first of its lane
	waits      []*wait
	confirmed  []actor.Epoch // epochs under which a probe confirmed that it waits
	victim     bool          // refused to break a wait cycle
	delivered  bool          // its message is the outcome of a detached call
	outcomeOf  *detachedCall // that call
	former     []uint32      // outcomes of this call that a volatile actor has forgotten
	readmitted bool          // the volatile actor had admitted it before and lost it; effects of that run may continue
	// Sequence numbers of the events that admitted, started and completed the run; 0 if not yet.
	admittedSeq, startedSeq, endedSeq uint64
	admittedAt, startedAt             actor.Time // simulation time
}

// ask is a call as seen by its caller.
type ask struct {
	id          actor.CallID
	parent      *run
	to          actor.ID
	root        actor.CallID
	lane        actor.Lane // requested; 0 for that of the caller
	left        actor.Duration
	clock       stopwatch
	open        bool
	lastHold    uint64 // highest number of a Held or Resumed received
	lastSent    uint64 // observation in which it was made or last sent
	forwards    int    // cancellations of clients that a cell forwards to the callee, and that depend on no log entry
	sentUngated bool   // the last message sent for it depends on no log entry
	// Sequence numbers of the events that made and closed the call, as in run.
	madeSeq, closedSeq uint64
	madeAt             actor.Time
}

// effect is one attempt of an effect requested by a run.
type effect struct {
	step, attempt uint32
	index         uint16
	activation    int // activation of the actor that performed it
}

func (e effect) sameAsk(o effect) bool { return e.step == o.step && e.index == o.index }

// client is a client call at the node that will respond to it.
type client struct {
	call       actor.CallID
	to         actor.ID
	cell       *cell
	generation int // generation of the cell
	expected   int // number of responses expected
	stale      int // number of responses of earlier generations that may still arrive
	askedAt    actor.Time
}

func (c *client) waiting() bool { return c.expected > 0 && c.generation == c.cell.generation }

// clientKey identifies a client call. A call may wait at several cells of a node: one that does
// not own the actor passes a request on as its client.
type clientKey struct {
	call actor.CallID
	node actor.NodeID
	cell uint16
}

// cell is one cell of a node, across its incarnations.
type cell struct {
	node       *node
	index      uint16
	generation int // number of restarts and crashes
	active     []*actorState
}

func (c *cell) enter(a *actorState) { c.active = append(c.active, a) }

func (c *cell) leave(a *actorState) {
	if i := slices.Index(c.active, a); i >= 0 {
		last := len(c.active) - 1
		c.active[i] = c.active[last]
		c.active[last] = nil
		c.active = c.active[:last]
	}
}

// node is a process with its log.
type node struct {
	id          actor.NodeID
	cells       []*cell
	end         uint64 // end of the log
	synced      uint64
	changes     []change // not synced yet, oldest first
	died        actor.Time
	clockBehind bool // its clock was set back across a crash
}

// stopwatch measures the time during which a call is not held.
type stopwatch struct {
	node             *node
	began            actor.Time
	mixed            bool // other nodes' clocks have contributed
	ran              actor.Duration
	since, heldUntil actor.Time
}

func startStopwatch(n *node, now actor.Time) stopwatch {
	return stopwatch{node: n, began: now, since: now}
}

func (w *stopwatch) elapsed(now actor.Time) actor.Duration {
	return w.ran + max(0, now.Sub(max(w.since, w.heldUntil)))
}

// due returns the time at which the measured duration will equal the parameter left.
func (w *stopwatch) due(left actor.Duration) actor.Time {
	return max(w.since, w.heldUntil).Add(left - w.ran)
}

// hold stops the stopwatch until the given time; 0 restarts it.
func (w *stopwatch) hold(n *node, now, until actor.Time) {
	w.mixed = w.mixed || n != w.node
	w.ran, w.since, w.heldUntil = w.elapsed(now), now, until
}

func containsAgent(chain []actor.ID, id actor.ID, byActor bool) bool {
	for i := range chain {
		if chain[i].Agent == id.Agent && chain[i].Tenant == id.Tenant && (!byActor || chain[i].Key == id.Key) {
			return true
		}
	}
	return false
}

// isCallChain reports whether chain is the chain of a call made by r.
func isCallChain(chain []actor.ID, r *run) bool {
	n := len(chain) - 1
	return n >= 0 && chain[n] == r.actor.id && slices.Equal(chain[:n], r.chain)
}
