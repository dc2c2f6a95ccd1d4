// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"cmp"
	"math"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
)

// ring is a ring of waits that was broken.
type ring struct {
	calls  []actor.CallID // by id
	victim actor.CallID
}

// ringsKept bounds how many broken rings are remembered: two refusals for one
// ring come shortly after each other.
const ringsKept = 256

// refuseRing is a call that is refused because it waits, by way of others, for itself.
func (c *Checker) refuseRing(e *history.Event) {
	a := c.acting(e)
	if a == nil {
		return
	}
	v := c.runs[e.Call]
	if v == nil || v.actor != a || v.ended || v.started {
		c.breaks(RefusedNeverRuns, "%s refuses call %s to break a ring, and it does not wait in its mailbox", a.id, e.Call)
		return
	}
	v.victim = true
	broken := ring{victim: e.Call}
	var newest actor.Hop
	for _, h := range e.Ring {
		broken.calls = append(broken.calls, h.Call)
		if h.Queued() && cmp.Or(cmp.Compare(h.Stamp, newest.Stamp), h.Call.Compare(newest.Call)) > 0 {
			newest = h
		}
	}
	slices.SortFunc(broken.calls, actor.CallID.Compare)
	if newest.Call != e.Call {
		c.breaks(OneVictimPerCycle, "%s refuses call %s, the newest of the ring is %s", a.id, e.Call, newest.Call)
	}
	for _, r := range c.refused {
		if r.victim != e.Call && slices.Equal(r.calls, broken.calls) {
			c.breaks(OneVictimPerCycle, "%s refuses call %s of a ring that was broken by refusing %s", a.id, e.Call, r.victim)
		}
	}
	if len(c.refused) == ringsKept {
		c.refused = slices.Delete(c.refused, 0, ringsKept/2)
	}
	c.refused = append(c.refused, broken)
	c.stood(e)
}

// stood judges whether all waits of a ring stood at one instant: the last of
// them to appear did so before the first to go went.
func (c *Checker) stood(e *history.Event) {
	from, to, closed := uint64(0), uint64(math.MaxUint64), actor.Time(0)
	until := func(no uint64) {
		if no != 0 {
			to = min(to, no)
		}
	}
	for i, h := range e.Ring {
		next := e.Ring[(i+1)%len(e.Ring)]
		q, t, k := c.runs[h.Call], c.runs[h.Turn], c.asks[next.Call]
		if q == nil || t == nil || k == nil || t.startedNo == 0 {
			return // forgotten by a crash: nobody can tell any more
		}
		if k.parent != t || q.actor != t.actor {
			c.breaks(NoPhantomRefusal, "call %s is told that %s waits for turn %s, which waits for %s; they never did", e.Call, h.Call, h.Turn, next.Call)
			return
		}
		from = max(from, q.admittedNo, t.startedNo, k.madeNo)
		closed = max(closed, q.admittedAt, t.startedAt, k.madeAt, q.actor.there)
		until(t.endedNo)
		until(k.closedNo)
		if h.Queued() {
			until(q.startedNo)
			until(q.endedNo)
		}
	}
	if from >= to {
		c.breaks(NoPhantomRefusal, "call %s is refused for a ring of %d waits that never stood together", e.Call, len(e.Ring))
	}
	if stood := c.outside().Sub(closed); c.limits.RingFoundIn > 0 && closed > c.calm && stood > c.limits.RingFoundIn {
		c.breaks(NoWaitCycle, "call %s is refused for a ring that stands for %v already, in which nothing was lost: what closed it did not find it", e.Call, stood)
	}
}

// World tells the time outside, by no node's clock, and since when nothing was
// lost or late there. How long rings stand is judged by it; by the latest that
// nodes tell, if nobody tells it.
func (c *Checker) World(now, calm actor.Time) { c.world, c.calm = now, calm }

func (c *Checker) outside() actor.Time {
	if c.world == 0 {
		return c.now
	}
	return c.world
}

// rests judges a call whose time is over: neither it, if it is queued, nor what
// its turn waits for, may have waited for itself all along.
func (c *Checker) rests(r *run) {
	if c.limits.RingBreaksIn == 0 {
		return
	}
	if !r.started {
		c.circles(r)
		return
	}
	for _, k := range r.asks {
		if below := c.runs[k.id]; k.open && below != nil && !below.ended {
			c.circles(below)
		}
	}
}

// circles judges whether a call waits for itself, for too long.
func (c *Checker) circles(r *run) {
	var seen []*run
	if since, ok := c.ringFrom(r, r, c.calm, &seen); ok && c.outside().Sub(since) > c.limits.RingBreaksIn {
		c.breaks(EveryWaitCycleBreaks, "call %s to %s is in a ring of waits that stands for %v, when time runs out", r.id, r.actor.id, c.outside().Sub(since))
	}
}

// ringFrom follows what a call waits for until it comes back to the first, and
// says since when that ring stands.
func (c *Checker) ringFrom(first, r *run, since actor.Time, seen *[]*run) (actor.Time, bool) {
	t := r
	if !r.started {
		if c.limits.Agents[r.actor.id.Agent].Interleaved {
			return 0, false
		}
		i := slices.IndexFunc(r.actor.runs, func(o *run) bool { return o.started })
		if i < 0 {
			return 0, false
		}
		t = r.actor.runs[i]
	}
	if slices.Contains(*seen, t) {
		return 0, false
	}
	*seen = append(*seen, t)
	since = max(since, r.admittedAt, t.startedAt, r.actor.there)
	for _, k := range t.asks {
		below := c.runs[k.id]
		if !k.open || below == nil || below.ended {
			continue
		}
		if below == first {
			return max(since, k.madeAt), true
		}
		if at, ok := c.ringFrom(first, below, max(since, k.madeAt), seen); ok {
			return at, true
		}
	}
	return 0, false
}
