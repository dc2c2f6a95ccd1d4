// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"container/heap"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/mutant"
)

// timer is when something of an actor, or of a waiting client, is due at the
// earliest. What exactly is found out then; a timer set too early does no harm.
type timer struct {
	at    actor.Time
	order uint64 // of two at one instant the one set first
	act   *activation
	call  actor.CallID // a client's, if act is nil
}

type timers []timer

// timersMin is how many may be set before those that nobody wants are cleared away.
const timersMin = 256

func (t timers) Len() int { return len(t) }
func (t timers) Less(i, j int) bool {
	return t[i].at < t[j].at || t[i].at == t[j].at && t[i].order < t[j].order
}
func (t timers) Swap(i, j int) { t[i], t[j] = t[j], t[i] }
func (t *timers) Push(x any)   { *t = append(*t, x.(timer)) }
func (t *timers) Pop() any {
	old := *t
	x := old[len(old)-1]
	*t = old[:len(old)-1]
	return x
}

// ring deals with all that is due by now.
func (c *Cell) ring() {
	for len(c.timers) > 0 && c.timers[0].at <= c.now {
		t := heap.Pop(&c.timers).(timer)
		switch {
		case !c.wanted(t):
		case t.act == nil:
			c.clientDue(t.call)
		default:
			t.act.timer = 0
			c.due(t.act)
		}
	}
}

func (c *Cell) set(t timer) {
	c.order++
	t.order = c.order
	heap.Push(&c.timers, t)
	if len(c.timers) > 4*(len(c.clients)+c.actors.count)+timersMin {
		c.timers = slices.DeleteFunc(c.timers, func(t timer) bool { return !c.wanted(t) })
		heap.Init(&c.timers)
	}
}

// wanted tells whether anything is to be looked at when the timer is due.
func (c *Cell) wanted(t timer) bool {
	if t.act == nil {
		return c.clients[t.call] != nil
	}
	return t.act.timer == t.at && c.actors.find(t.act.id) == t.act
}

// arm sets the actor's timer to its earliest deadline. One that is set for an
// earlier instant stays, and finds nothing to do but this again.
func (c *Cell) arm(act *activation) {
	at := c.earliest(act)
	if at == actor.Forever || act.timer != 0 && act.timer <= at {
		return
	}
	act.timer = at
	c.set(timer{at: at, act: act})
}

// earliest is when the actor has to be looked at next: a run or an ask runs
// out, a call is to be sent again, or the actor has been idle for long enough.
func (c *Cell) earliest(act *activation) actor.Time {
	at := actor.Forever
	for _, run := range act.journal.Runs {
		at = min(at, run.Clock.Due())
	}
	for _, t := range act.turns {
		asks := t.run.Last()
		for i := range asks {
			if asks[i].Open() {
				at = min(at, asks[i].Clock.Due(), t.sent[i].again)
			}
		}
	}
	if c.probing(act) {
		at = min(at, act.probe)
	}
	if act.idle() {
		at = act.used.Add(c.limits.PassivateAfter)
	}
	return at
}

// due ends what has run out, sends again what is due, or lets an idle actor go.
func (c *Cell) due(act *activation) {
	if act.idle() && c.now >= act.used.Add(c.limits.PassivateAfter) {
		c.deactivate(act, "idle")
		return
	}
	c.touch(act)
	if !act.loaded {
		c.load(act, 0)
		return
	}
	c.runOut(act)
	for _, t := range act.turnsNow() {
		for i := range t.run.Last() {
			if a := &t.run.Last()[i]; a.Open() && c.now >= t.sent[i].again && !mutant.On("call-sent-once") {
				c.sendCall(t, i)
			}
		}
	}
	c.reprobe(act)
}

// runOut ends the runs and answers the asks whose time is over.
func (c *Cell) runOut(act *activation) {
	for _, run := range act.runs() {
		if c.now >= run.Clock.Due() && !mutant.On("run-outlives-its-time") {
			c.runExpired(act, run)
		}
	}
	for _, t := range act.turnsNow() {
		for i := range t.run.Last() {
			if a := &t.run.Last()[i]; a.Open() && (c.now >= a.Clock.Due() || mutant.On("ask-expires-early") && 10*a.Clock.Remaining(c.now) < a.Clock.Left) {
				c.askExpired(t, i)
			}
		}
	}
}
