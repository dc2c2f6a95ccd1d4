// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"slices"

	"github.com/troupe-run/troupe/actor"
)

// actorState is an actor as events tell of it: its journal, and where it is in memory.
type actorState struct {
	id              actor.ID
	volatile        bool
	active          bool
	cell            *cell         // where it is, or was last
	at              actor.Address // the same, with the incarnation
	epoch           actor.Epoch   // of the last activation: the highest there was
	activations     int           // counts activations
	activatedAt     actor.Time    // when the last was
	activatedGlobal actor.Time    // the same, outside
	openRuns        []*run        // open
	queued          int           // of them that wait for their turn
	queuedBytes     int           // what those weigh
	pending         int           // open calls of the others
}

func (a *actorState) turns() int { return len(a.openRuns) - a.queued }

// run is an accepted call at its callee.
type run struct {
	id         actor.CallID
	actor      *actorState
	activation int // of the actor, for one that forgets
	chain      []actor.ID
	left       actor.Duration
	clock      stopwatch
	bytes      int
	started    bool
	ended      bool
	status     actor.Status
	reason     actor.Reason
	outcome    uint32
	forgetAt   actor.Time // when a repeat may be taken for a new call
	tainted    bool       // an unjournaled run that took in what stands in a log
	lastActed  uint64     // the observation in which its turn last did something
	asks       []*ask
	performed  []effect
	externals  []*externalEffect
	victim     bool // of a ring of waits
	readmitted bool // its actor had it before, writes nothing down, and forgot: what that began may go on
	// When it was taken in, had its turn and ended, in the order of all events;
	// 0: not yet.
	admittedSeq, startedSeq, endedSeq uint64
	admittedAt, startedAt             actor.Time // outside
}

// ask is a call at its caller.
type ask struct {
	id          actor.CallID
	parent      *run
	to          actor.ID
	left        actor.Duration
	clock       stopwatch
	open        bool
	lastHold    uint64 // the highest number of a Held or Resumed
	lastSent    uint64 // the observation in which it was made, or last sent
	sentUngated bool   // what was sent of it last told of no log
	// When it was made and closed, as in run.
	madeSeq, closedSeq uint64
	madeAt             actor.Time
}

// effect is one attempt at what a run wants of the world.
type effect struct {
	step, attempt uint32
	index         uint16
}

// client is a client's call where it waits.
type client struct {
	call       actor.CallID
	to         actor.ID
	cell       *cell
	generation int // of the cell
	expected   int // responses
	stale      int // those of incarnations before: they may still come
	askedAt    actor.Time
}

func (c *client) waiting() bool { return c.expected > 0 && c.generation == c.cell.generation }

type clientKey struct {
	call actor.CallID
	node actor.NodeID
}

// cell is one cell of a node, whatever its incarnation.
type cell struct {
	node       *node
	index      uint16
	generation int // counts what ended it
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
	end         uint64 // of the log
	synced      uint64
	changes     []change // that a crash may take back, in order
	died        actor.Time
	clockBehind bool // its clock is behind the one with which it died
}

// stopwatch counts the time that is not held.
type stopwatch struct {
	node             *node
	mixed            bool // other nodes' clocks had their say too
	ran              actor.Duration
	since, heldUntil actor.Time
}

func startStopwatch(n *node, now actor.Time) stopwatch { return stopwatch{node: n, since: now} }

func (w *stopwatch) elapsed(now actor.Time) actor.Duration {
	return w.ran + max(0, now.Sub(max(w.since, w.heldUntil)))
}

// due is when so much time will have run.
func (w *stopwatch) due(left actor.Duration) actor.Time {
	return max(w.since, w.heldUntil).Add(left - w.ran)
}

// hold makes it stand still until an instant; 0 lets it run.
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

// isCallChain tells whether a chain is that of the calls a run makes.
func isCallChain(chain []actor.ID, r *run) bool {
	n := len(chain) - 1
	return n >= 0 && chain[n] == r.actor.id && slices.Equal(chain[:n], r.chain)
}
