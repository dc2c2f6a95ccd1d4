// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"slices"

	"github.com/troupe-run/troupe/actor"
)

// recoveryLoadsMax is the maximum number of actors that are loaded at the same time
// because of open work. The other actors with open work stay queued. A message that
// arrives after a start thus waits for few reads.
const recoveryLoadsMax = 64

// recoveryQueue holds the actors with open work that are not loaded yet.
type recoveryQueue struct {
	actors   []actor.ID // sorted by id
	loading  int        // number of running loads
	unloaded int        // number of actors in memory with mustLoad whose journal was not loaded yet
	scans    int        // number of Expiries effects without a last Due
}

// done reports whether every actor with open work is in memory.
func (q *recoveryQueue) done() bool { return q.scans+len(q.actors)+q.unloaded == 0 }

// OpenDefinitions returns those of the definitions with which open runs of this cell
// began. The result is known only if every actor with open work is in memory;
// otherwise known is false.
func (c *Cell) OpenDefinitions(of []actor.Hash) (open []actor.Hash, known bool) {
	if !c.booted || !c.recovery.done() {
		return nil, false
	}
	for _, hash := range of {
		if c.definitions.inUse(hash) {
			open = append(open, hash)
		}
	}
	return open, true
}

// recoverActors queues actors with open work for loading.
func (c *Cell) recoverActors(ids []actor.ID) {
	pending := append(slices.Clip(c.recovery.actors), ids...)
	slices.SortFunc(pending, actor.ID.Compare)
	c.recovery.actors = slices.Compact(pending)
	c.loadNextActors()
}

func (c *Cell) loadNextActors() {
	for c.recovery.loading < recoveryLoadsMax && len(c.recovery.actors) > 0 {
		id := c.recovery.actors[0]
		c.recovery.actors = c.recovery.actors[1:]
		o, ok := c.ownerOf(id)
		if !ok || !c.owns(o) {
			continue
		}
		if c.isClosed(id) {
			c.closing.due = append(c.closing.due, id)
			continue
		}
		act := c.actors.find(id)
		active := act != nil
		if !active {
			act = c.activate(id, true) // its journal holds open work, whatever its agent states now
		}
		act.requireLoad(c)
		if !act.durable {
			c.markDirty(act) // loads it once it is idle, see finishStep
		}
		if !active && !act.loaded {
			act.recovering = true
			c.recovery.loading++
		}
	}
}

// requireLoad marks an actor that has open work in the log.
func (act *activation) requireLoad(c *Cell) {
	act.ensureActive(c)
	if !act.mustLoad && !act.journalLoaded() {
		c.recovery.unloaded++
	}
	act.mustLoad = true
}

// recoveryDone starts further loads once an actor was loaded, failed to load, or
// was removed.
func (act *activation) recoveryDone(c *Cell) {
	if act.recovering {
		act.recovering = false
		c.recovery.loading--
		c.loadNextActors()
	}
}
