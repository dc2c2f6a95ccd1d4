// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"cmp"
	"math"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
)

// brokenCycle is a wait cycle that was broken by refusing one of its calls.
type brokenCycle struct {
	calls  []actor.CallID // sorted by ID
	victim actor.CallID
}

// brokenCyclesMax is the maximum number of broken cycles remembered. Two refusals for one cycle
// follow each other closely, so the oldest cycles can be dropped.
const brokenCyclesMax = 256

// refuseWaitCycle handles the refusal of a queued call that waits, through others, for itself.
func (c *Checker) refuseWaitCycle(e *history.Event) {
	a := c.acting(e)
	if a == nil {
		return
	}
	v := c.runs[e.Call]
	if v == nil || v.actor != a || v.ended || v.started {
		c.fail(RefusedNeverRuns, "%s refuses call %s to break a wait cycle, but the call is not queued", a.id, e.Call)
		return
	}
	v.victim = true
	queued := 0
	broken := brokenCycle{victim: e.Call}
	var newest actor.Hop
	for _, h := range e.Ring {
		broken.calls = append(broken.calls, h.Call)
		if h.Queued() {
			queued++
		}
		if h.Queued() && cmp.Or(cmp.Compare(h.Stamp, newest.Stamp), h.Call.Compare(newest.Call)) > 0 {
			newest = h
		}
	}
	slices.SortFunc(broken.calls, actor.CallID.Compare)
	if newest.Call != e.Call {
		c.fail(OneVictimPerCycle, "%s refuses call %s, but the newest call of the cycle is %s", a.id, e.Call, newest.Call)
	}
	for _, r := range c.brokenCycles {
		if r.victim != e.Call && slices.Equal(r.calls, broken.calls) {
			c.fail(OneVictimPerCycle, "%s refuses call %s of a wait cycle that was broken by refusing %s", a.id, e.Call, r.victim)
		}
	}
	if len(c.brokenCycles) == brokenCyclesMax {
		c.brokenCycles = slices.Delete(c.brokenCycles, 0, brokenCyclesMax/2)
	}
	c.brokenCycles = append(c.brokenCycles, broken)
	c.Premises.NoPhantomRefusal++
	c.Premises.EveryWaitCycleBreaks++
	if queued > 1 {
		c.Premises.OneVictimPerCycle++
	}
	c.checkSimultaneous(e)
	c.checkConfirmed(e)
}

// checkSimultaneous checks that all waits of a cycle existed at one instant: every wait had begun
// before the first wait ended.
func (c *Checker) checkSimultaneous(e *history.Event) {
	begin, end, closedAt := uint64(0), uint64(math.MaxUint64), actor.Time(0)
	until := func(no uint64) {
		if no != 0 {
			end = min(end, no)
		}
	}
	for i, h := range e.Ring {
		next := e.Ring[(i+1)%len(e.Ring)]
		waiting, turn, call := c.runs[h.Call], c.runs[h.Turn], c.asks[next.Call]
		if waiting == nil || turn == nil || call == nil || turn.startedSeq == 0 {
			return // undone by a crash; the check is no longer possible
		}
		if call.parent != turn || waiting.actor != turn.actor {
			c.fail(NoPhantomRefusal, "call %s is refused for a cycle in which %s waits for turn %s and that for %s, which never happened", e.Call, h.Call, h.Turn, next.Call)
			return
		}
		begin = max(begin, waiting.admittedSeq, turn.startedSeq, call.madeSeq)
		closedAt = max(closedAt, waiting.admittedAt, turn.startedAt, call.madeAt, waiting.actor.activatedGlobal)
		until(turn.endedSeq)
		until(call.closedSeq)
		if h.Queued() {
			until(waiting.startedSeq)
			until(waiting.endedSeq)
		}
	}
	if begin >= end {
		c.fail(NoPhantomRefusal, "call %s is refused for a cycle of %d waits that never existed at one instant", e.Call, len(e.Ring))
	}
	if closedAt > c.undisturbedSince {
		c.Premises.NoWaitCycle++
	}
	if age := c.globalNow().Sub(closedAt); c.limits.FirstProbeMax > 0 && closedAt > c.undisturbedSince && age > c.limits.FirstProbeMax {
		c.fail(NoWaitCycle, "call %s is refused for a wait cycle that existed for %v without losses: the probe of the wait that closed it did not detect it", e.Call, age)
	}
}

// SetGlobalTime sets the simulation time, which is independent of all node clocks, and the time
// since which no message was lost or late. The age of wait cycles is measured in simulation time.
// If no simulation time is set, the latest time reported by any node is used.
func (c *Checker) SetGlobalTime(now, calm actor.Time) { c.globalTime, c.undisturbedSince = now, calm }

func (c *Checker) globalNow() actor.Time {
	if c.globalTime == 0 {
		return c.now
	}
	return c.globalTime
}

// checkExpiredWaits checks a run that expires. If the run is queued, it MUST NOT be part of a
// wait cycle that is too old. Nor may a call that the turn of the run waits for.
func (c *Checker) checkExpiredWaits(r *run) {
	if c.limits.WaitCycleMax == 0 {
		return
	}
	if !r.started {
		c.checkCycleAge(r)
		return
	}
	for _, k := range r.asks {
		if below := c.runs[k.id]; k.open && below != nil && !below.ended {
			c.checkCycleAge(below)
		}
	}
}

// checkCycleAge checks that a call is not part of a wait cycle older than WaitCycleMax.
func (c *Checker) checkCycleAge(r *run) {
	var seen []*run
	if since, ok := c.cycleSince(r, r, c.undisturbedSince, &seen); ok && len(seen) <= hopsMax && c.globalNow().Sub(since) > c.limits.WaitCycleMax {
		c.fail(EveryWaitCycleBreaks, "call %s to %s is in a wait cycle that existed for %v when a call expired", r.id, r.actor.id, c.globalNow().Sub(since))
	}
}

// hopsMax is the maximum number of waits in a cycle that a probe can find. A longer cycle ends at
// the deadlines of its calls.
const hopsMax = 32

// confirm records that the second lap of a probe found a wait, and the epoch of the actor.
func (c *Checker) confirm(e *history.Event) {
	if r := c.runs[e.Call]; r != nil && !slices.Contains(r.confirmed, e.Epoch) {
		r.confirmed = append(r.confirmed, e.Epoch)
	}
}

// keepConfirmed remembers the confirmations of a run that a crash undid. Probes are not undone, so
// one of before the crash may still break a cycle.
func (c *Checker) keepConfirmed(r *run) {
	if len(r.confirmed) > 0 {
		c.formerConfirmed[r.id] = r.confirmed
	}
}

// checkConfirmed checks that each wait of a cycle was confirmed under the epoch of the first lap. An
// actor under another epoch may have lost and restored the wait in between.
func (c *Checker) checkConfirmed(e *history.Event) {
	if len(e.Ring) > hopsMax {
		c.fail(NoPhantomRefusal, "call %s is refused for a cycle of %d waits; a probe makes at most %d hops", e.Call, len(e.Ring), hopsMax)
	}
	for _, h := range e.Ring {
		if r := c.runs[h.Call]; r != nil && !slices.Contains(r.confirmed, h.Epoch) {
			c.fail(NoPhantomRefusal, "call %s is refused for a cycle in which the wait of %s was seen under epoch %d and confirmed under %d", e.Call, h.Call, h.Epoch, r.confirmed)
		}
	}
}

// cycleSince follows the wait-for edges from r back to the run first. It returns the simulation
// time since which that cycle exists, and whether there is such a cycle.
func (c *Checker) cycleSince(first, r *run, since actor.Time, seen *[]*run) (actor.Time, bool) {
	turn := r
	if !r.started {
		if c.limits.Agents[r.actor.id.Agent].Interleaved {
			return 0, false
		}
		i := slices.IndexFunc(r.actor.openRuns, func(o *run) bool { return o.started })
		if i < 0 {
			return 0, false
		}
		turn = r.actor.openRuns[i]
	}
	if slices.Contains(*seen, turn) {
		return 0, false
	}
	*seen = append(*seen, turn)
	since = max(since, r.admittedAt, turn.startedAt, r.actor.activatedGlobal)
	for _, k := range turn.asks {
		below := c.runs[k.id]
		if !k.open || below == nil || below.ended {
			continue
		}
		if below == first {
			return max(since, k.madeAt), true
		}
		if at, ok := c.cycleSince(first, below, max(since, k.madeAt), seen); ok {
			return at, true
		}
	}
	return 0, false
}
