// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"slices"

	"github.com/troupe-run/troupe/actor"
)

// recoveryLoadsMax is how many actors are read at a time for the work that they have open.
// The rest wait for their turn, so that who comes with a message after a start
// waits for few reads, however much the node has left to take up.
const recoveryLoadsMax = 64

// recoveryQueue is the actors with open work that are still to be read.
type recoveryQueue struct {
	actors  []actor.ID // in order
	loading int        // how many are being read
}

// recoverActors has actors with open work brought into memory, in slices.
func (c *Cell) recoverActors(ids []actor.ID) {
	all := append(slices.Clip(c.recovery.actors), ids...)
	slices.SortFunc(all, actor.ID.Compare)
	c.recovery.actors = slices.Compact(all)
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
		act := c.actors.find(id)
		there := act != nil
		if !there {
			act = c.activate(id, journaled(c.agents[id.Agent]))
		}
		c.ensureActive(act)
		act.mustLoad = true
		if !there && !act.loaded {
			act.recovering = true
			c.recovery.loading++
		}
	}
}

// recoveryDone makes room for the next, once an actor was read, or is not waited for.
func (c *Cell) recoveryDone(act *activation) {
	if act.recovering {
		act.recovering = false
		c.recovery.loading--
		c.loadNextActors()
	}
}
