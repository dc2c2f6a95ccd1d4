// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"slices"

	"github.com/troupe-run/troupe/actor"
)

// timer is the earliest time at which an actor or a waiting client has work due.
// The cell determines the due work when the timer fires, so a timer that fires
// early is harmless.
type timer struct {
	at   actor.Time
	seq  uint64 // orders timers set for the same time
	act  *activation
	call actor.CallID // a client's call, if act is nil
}

// timers is a binary heap, the earliest timer first.
type timers []timer

// timersCompactMin is the number of timers up to which stale timers are never
// removed.
const timersCompactMin = 256

// timersRetainedMax is the number of timers for which memory is always retained. It leaves
// room for the stale timers of an ordinary load, so that the heap does not shrink and
// grow all the time.
const timersRetainedMax = 4 * timersCompactMin

// before reports whether timer i fires before timer j.
func (t timers) before(i, j int) bool {
	return t[i].at < t[j].at || t[i].at == t[j].at && t[i].seq < t[j].seq
}

// push adds a timer to the heap.
func (t *timers) push(x timer) {
	*t = append(*t, x)
	for i := len(*t) - 1; i > 0 && t.before(i, (i-1)/2); i = (i - 1) / 2 {
		(*t)[i], (*t)[(i-1)/2] = (*t)[(i-1)/2], (*t)[i]
	}
}

// pop removes the earliest timer of the heap.
func (t *timers) pop() timer {
	first, last := (*t)[0], len(*t)-1
	(*t)[0] = (*t)[last]
	(*t)[last] = timer{} // drops the reference to the actor
	*t = (*t)[:last]
	t.sink(0)
	return first
}

// sink restores the heap below timer i.
func (t timers) sink(i int) {
	for {
		child := 2*i + 1
		if child+1 < len(t) && t.before(child+1, child) {
			child++
		}
		if child >= len(t) || !t.before(child, i) {
			return
		}
		t[i], t[child] = t[child], t[i]
		i = child
	}
}

// removeStale removes the timers that are no longer pending and rebuilds the heap.
func (t *timers) removeStale(pending func(timer) bool) {
	*t = slices.DeleteFunc(*t, func(x timer) bool { return !pending(x) })
	for i := len(*t)/2 - 1; i >= 0; i-- {
		t.sink(i)
	}
}

// shrink returns most of the memory that the timers of earlier actors needed. The
// amortised cost per removed timer is constant.
func (t *timers) shrink() {
	if cap(*t) > timersRetainedMax && len(*t) < cap(*t)/4 {
		*t = append(make(timers, 0, max(2*len(*t), timersRetainedMax/2)), *t...)
	}
}

// fireTimers handles all timers due at c.now.
func (c *Cell) fireTimers() {
	for len(c.timers) > 0 && c.timers[0].at <= c.now {
		t := c.timers.pop()
		switch {
		case !c.timerPending(t):
		case t.act == nil:
			c.waiters.fireTimer(c, t.call)
		default:
			t.act.timerAt = 0
			t.act.fireActorTimer(c)
		}
	}
	c.timers.shrink()
	c.replyCache.sweep(c.now)
}

func (c *Cell) setTimer(t timer) {
	c.timerSeq++
	t.seq = c.timerSeq
	c.timers.push(t)
	if len(c.timers) > 4*(len(c.waiters.byCall)+c.actors.count)+timersCompactMin {
		c.timers.removeStale(c.timerPending)
		c.timers.shrink()
	}
}

// timerPending reports whether the timer is still in use.
func (c *Cell) timerPending(t timer) bool {
	if t.act == nil {
		return c.waiters.byCall[t.call] != nil
	}
	return t.act.timerAt == t.at && !t.act.gone
}

// armTimer sets the actor's timer to its earliest deadline. A timer set for an
// earlier time is kept. When that timer fires, the actor's timer is armed again.
func (act *activation) armTimer(c *Cell) {
	at := act.earliestDeadline(c)
	if at == actor.Forever || act.timerAt != 0 && act.timerAt <= at {
		return
	}
	act.timerAt = at
	c.setTimer(timer{at: at, act: act})
}

// earliestDeadline returns the next time at which the actor needs attention: a run
// or an ask expires, a call is due to be resent, probes are due, or the actor has
// been idle for PassivateAfter.
func (act *activation) earliestDeadline(c *Cell) actor.Time {
	at := actor.Forever
	for _, run := range act.journal.Runs {
		at = min(at, run.Clock.Due())
	}
	for _, t := range act.turns {
		at = min(at, t.repetition.due())
		asks := t.run.Last()
		for i := range asks {
			if asks[i].Open() {
				at = min(at, asks[i].Clock.Due(), t.sends[i].retryAt)
			}
		}
	}
	at = min(at, mail{c, act}.due(), accounts{c, act}.due())
	if act.pageCache.retryAt != 0 {
		at = min(at, act.pageCache.retryAt)
	}
	if (waitCycle{c, act}).needsReprobe() {
		at = min(at, act.reprobeAt)
	}
	if act.idle() {
		at = act.lastUsed.Add(c.limits.PassivateAfter)
	}
	return at
}

// fireActorTimer performs the due work of an actor: it ends expired runs and asks,
// resends calls and sends probes. It passivates an idle actor.
func (act *activation) fireActorTimer(c *Cell) {
	if act.idle() && c.now >= act.lastUsed.Add(c.limits.PassivateAfter) {
		act.deactivate(c, "idle")
		return
	}
	c.markDirty(act)
	if !act.loaded {
		act.load(c, 0)
		return
	}
	act.expireDue(c)
	transcripts{c, act}.retryPages()
	for _, t := range act.turns {
		repeats{c, t}.expire()
		for i := range t.run.Last() {
			if a := &t.run.Last()[i]; a.Open() && c.now >= t.sends[i].retryAt {
				t.resendCall(c, i)
			}
		}
	}
	mail{c, act}.retry()
	accounts{c, act}.retry()
	waitCycle{c, act}.reprobe()
}

// expireDue ends the runs and answers the asks whose deadline has passed.
func (act *activation) expireDue(c *Cell) {
	for _, run := range act.cloneRuns() {
		if c.now >= run.Clock.Due() {
			act.expireRun(c, run)
		}
	}
	for _, t := range act.turns {
		for i := range t.run.Last() {
			if a := &t.run.Last()[i]; a.Open() && c.now >= a.Clock.Due() {
				t.expireAsk(c, i)
			}
		}
	}
	mail{c, act}.expire()
}
