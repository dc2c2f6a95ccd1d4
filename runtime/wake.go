// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"slices"

	"github.com/troupe-run/troupe/actor"
)

// wakesMax is how many actors are read at a time for the work that they have open.
// The rest wait for their turn, so that who comes with a message after a start
// waits for few reads, however much the node has left to take up.
const wakesMax = 64

// asleep is the actors with open work that are still to be read.
type asleep struct {
	actors []actor.ID // in order
	waking int        // how many are being read
}

// wake has actors with open work brought into memory, in slices.
func (c *Cell) wake(ids []actor.ID) {
	all := append(slices.Clip(c.asleep.actors), ids...)
	slices.SortFunc(all, actor.ID.Compare)
	c.asleep.actors = slices.Compact(all)
	c.wakeNext()
}

func (c *Cell) wakeNext() {
	for c.asleep.waking < wakesMax && len(c.asleep.actors) > 0 {
		id := c.asleep.actors[0]
		c.asleep.actors = c.asleep.actors[1:]
		o, ok := c.ownerOf(id)
		if !ok || !c.mine(o) {
			continue
		}
		act := c.actors.find(id)
		there := act != nil
		if !there {
			act = c.activate(id, journaled(c.agents[id.Agent]))
		}
		c.live(act)
		act.woken = true
		if !there && !act.loaded {
			act.waking = true
			c.asleep.waking++
		}
	}
}

// woke makes room for the next, once an actor was read, or is not waited for.
func (c *Cell) woke(act *activation) {
	if act.waking {
		act.waking = false
		c.asleep.waking--
		c.wakeNext()
	}
}
