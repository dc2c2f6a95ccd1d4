// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"slices"

	"github.com/troupe-run/troupe/actor"
)

// life is an actor as events tell of it: its journal, and where it is in memory.
type life struct {
	id       actor.ID
	volatile bool
	live     bool
	cell     *cell         // where it is, or was last
	at       actor.Address // the same, with the incarnation
	epoch    actor.Epoch   // of the last activation: the highest there was
	number   int           // counts activations
	back     actor.Time    // when the last was
	there    actor.Time    // the same, outside
	runs     []*run        // open
	queue    int           // of them that wait for their turn
	bytes    int           // what those weigh
	pending  int           // open calls of the others
}

func (a *life) turns() int { return len(a.runs) - a.queue }

// run is an accepted call at its callee.
type run struct {
	id        actor.CallID
	actor     *life
	life      int // of the actor, for one that forgets
	chain     []actor.ID
	left      actor.Duration
	clock     stopwatch
	bytes     int
	started   bool
	ended     bool
	status    actor.Status
	reason    actor.Reason
	said      uint32
	forget    actor.Time // when a repeat may be taken for a new call
	tainted   bool       // an unjournaled run that took in what stands in a log
	acted     uint64     // the observation in which its turn last did something
	asks      []*ask
	performed []effect
	outside   []*outsider
	victim    bool // of a ring of waits
	haunted   bool // its actor had it before, writes nothing down, and forgot: what that began may go on
	// When it was taken in, had its turn and ended, in the order of all events;
	// 0: not yet.
	admittedNo, startedNo, endedNo uint64
	admittedAt, startedAt          actor.Time // outside
}

// ask is a call at its caller.
type ask struct {
	id     actor.CallID
	parent *run
	to     actor.ID
	left   actor.Duration
	clock  stopwatch
	open   bool
	heard  uint64 // the highest number of a Held or Resumed
	sent   uint64 // the observation in which it was made, or last sent
	clean  bool   // what was sent of it last told of no log
	// When it was made and closed, as in run.
	madeNo, closedNo uint64
	madeAt           actor.Time
}

// effect is one attempt at what a run wants of the world.
type effect struct {
	step, attempt uint32
	index         uint16
}

// client is a client's call where it waits.
type client struct {
	call  actor.CallID
	to    actor.ID
	cell  *cell
	boot  int // of the cell
	owed  int // responses
	late  int // those of incarnations before: they may still come
	asked actor.Time
}

func (c *client) waits() bool { return c.owed > 0 && c.boot == c.cell.boot }

type clientKey struct {
	call actor.CallID
	node actor.NodeID
}

// cell is one cell of a node, whatever its incarnation.
type cell struct {
	node  *node
	index uint16
	boot  int // counts what ended it
	lives []*life
}

func (c *cell) enter(a *life) { c.lives = append(c.lives, a) }

func (c *cell) leave(a *life) {
	if i := slices.Index(c.lives, a); i >= 0 {
		last := len(c.lives) - 1
		c.lives[i] = c.lives[last]
		c.lives[last] = nil
		c.lives = c.lives[:last]
	}
}

// node is a process with its log.
type node struct {
	id      actor.NodeID
	cells   []*cell
	end     uint64 // of the log
	synced  uint64
	changes []change // that a crash may take back, in order
	died    actor.Time
	setBack bool // its clock is behind the one with which it died
}

// stopwatch counts the time that is not held.
type stopwatch struct {
	node         *node
	moved        bool // other nodes' clocks had their say too
	ran          actor.Duration
	since, still actor.Time
}

func started(n *node, now actor.Time) stopwatch { return stopwatch{node: n, since: now} }

func (w *stopwatch) at(now actor.Time) actor.Duration {
	return w.ran + max(0, now.Sub(max(w.since, w.still)))
}

// due is when so much time will have run.
func (w *stopwatch) due(left actor.Duration) actor.Time {
	return max(w.since, w.still).Add(left - w.ran)
}

// hold makes it stand still until an instant; 0 lets it run.
func (w *stopwatch) hold(n *node, now, until actor.Time) {
	w.moved = w.moved || n != w.node
	w.ran, w.since, w.still = w.at(now), now, until
}

func isAgent(chain []actor.ID, id actor.ID, byActor bool) bool {
	for i := range chain {
		if chain[i].Agent == id.Agent && chain[i].Tenant == id.Tenant && (!byActor || chain[i].Key == id.Key) {
			return true
		}
	}
	return false
}

// isPath tells whether a chain is that of the calls a run makes.
func isPath(chain []actor.ID, r *run) bool {
	n := len(chain) - 1
	return n >= 0 && chain[n] == r.actor.id && slices.Equal(chain[:n], r.chain)
}
