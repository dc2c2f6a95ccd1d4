// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"cmp"
	"maps"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
)

// Compare checks the state of a running cell against the state derived from its events.
func (c *Checker) Compare(s history.State) *Violation {
	if c.violation != nil {
		return c.violation
	}
	cl := c.cell(s.Cell)
	loaded := 0
	for i := range s.Actors {
		if a := c.actors[s.Actors[i].ID]; !s.Actors[i].Loaded || a != nil && s.Actors[i].Epoch < a.epoch {
			continue // not activated yet, or moved away without the cell having learned of it
		}
		loaded++
		c.compare(cl, &s.Actors[i])
	}
	if loaded != len(cl.active) {
		c.fail(EventsTellTruth, "%s has %d active actors, want %d from its events", s.Cell, loaded, len(cl.active))
	}
	return c.violation
}

func (c *Checker) compare(cl *cell, s *history.Actor) {
	c.Premises.EventsTellTruth++
	a := c.actors[s.ID]
	if a == nil || !a.active || a.cell != cl || a.epoch != s.Epoch {
		c.fail(EventsTellTruth, "%s is active on %s.%d under epoch %d, which does not follow from its events", s.ID, cl.node.id, cl.index, s.Epoch)
		return
	}
	if a.queuedBytes != s.Bytes {
		c.fail(EventsTellTruth, "%s has %d queued bytes, want %d from its events", a.id, s.Bytes, a.queuedBytes)
	}
	runs := slices.SortedFunc(slices.Values(a.openRuns), func(x, y *run) int { return x.id.Compare(y.id) })
	var queue []actor.CallID
	turns := s.Turns
	for _, r := range runs {
		if !r.started {
			queue = append(queue, r.id)
			continue
		}
		var open []actor.CallID
		for _, k := range r.asks {
			if k.open {
				open = append(open, k.id)
			}
		}
		slices.SortFunc(open, actor.CallID.Compare)
		if len(turns) == 0 || turns[0].Run != r.id || !slices.Equal(turns[0].Open, open) {
			c.fail(EventsTellTruth, "%s runs %s with open calls %v according to its events; its turns are %v", a.id, r.id, open, turns)
			return
		}
		turns = turns[1:]
	}
	if len(turns) > 0 {
		c.fail(EventsTellTruth, "%s has a turn for run %s that does not follow from its events", a.id, turns[0].Run)
	}
	if !slices.Equal(queue, s.Queue) {
		c.fail(EventsTellTruth, "%s has the queue %v, want %v from its events", a.id, s.Queue, queue)
	}
}

// End checks that no work is open at the end of a simulation. All calls must have had the time to
// complete.
func (c *Checker) End() *Violation {
	if c.violation != nil {
		return c.violation
	}
	if c.unownedShards > 0 {
		c.fail(OwnedAgain, "%d shards have lost their owner and have none at the end", c.unownedShards)
	}
	for _, key := range slices.SortedFunc(maps.Keys(c.clients), clientKey.compare) {
		if cl := c.clients[key]; cl.waiting() {
			c.fail(EveryCallEnds, "a client at %s waits for call %s to %s since %v", key.node, key.call, cl.to, cl.askedAt)
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(c.actors), actor.ID.Compare) {
		for _, r := range c.actors[id].openRuns {
			if r.started {
				c.fail(TurnComesBack, "%s has not completed the turn of call %s", id, r.id)
			} else {
				c.fail(EveryCallEnds, "call %s is still queued at %s", r.id, id)
			}
		}
	}
	c.detached.end()
	return c.violation
}

func clientKeyOf(e *history.Event) clientKey {
	return clientKey{e.Call, e.From.Node, e.From.Cell}
}

func (k clientKey) compare(other clientKey) int {
	if n := k.call.Compare(other.call); n != 0 {
		return n
	}
	return cmp.Or(cmp.Compare(k.node, other.node), cmp.Compare(k.cell, other.cell))
}
