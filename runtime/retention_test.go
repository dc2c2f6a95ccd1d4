// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	goruntime "runtime"
	"testing"
	"time"
	"weak"

	"github.com/troupe-run/troupe/actor"
)

// retained returns the numbers of items for which a cell retains memory.
func (c *Cell) retained() map[string]int {
	sizes := map[string]int{
		"timers":       cap(c.timers),
		"dirty actors": cap(c.dirty),
		"effects":      cap(c.ready.Effects),
		"entries":      cap(c.ready.Entries),
		"events":       cap(c.ready.Events),
		"measures":     cap(c.ready.Measures),
		"replies":      len(c.replyCache.entries) + len(c.replyCache.buckets),
		"free items":   len(c.freeStates) + len(c.freeTurns) + len(c.freeRuns),
		"local queue":  cap(c.local.calls) + cap(c.localProbes),
		"recovery":     cap(c.recovery.actors),
		"clients":      len(c.waiters.byCall),
	}
	for _, g := range c.actors.groups {
		sizes["actors"] += g.peak
	}
	return sizes
}

// After many actors came and left memory, no structure of the cell is larger than one
// that served a few actors, and no actor is referenced. A small group of actors remains,
// so that its table is not simply dropped.
func TestMemoryOfPassivatedActorsIsReturned(t *testing.T) {
	const few, many = 10, 20_000
	agents := []actor.Definition{agent("none", echo(), volatile)}
	c := newTestCell(Config{EventKinds: 1}, agents...)
	now, seq := actor.Time(2), uint64(0)
	visit := func(key string) *activation {
		seq++
		v := newVisit(seq, "none")
		v.Call.To.Key = key
		c.Step(now, v)
		return c.actors.find(v.Call.To)
	}
	advance := func(d time.Duration) {
		for end, steps := now.Add(d), 0; ; steps++ {
			if steps > 2*many {
				t.Fatal("the cell has deadlines without end")
			}
			at, ok := c.NextDeadline()
			if !ok || at > end {
				now = end
				return
			}
			now = max(now, at)
			c.Step(now, Tick{})
		}
	}
	idle := c.limits.PassivateAfter
	var left []weak.Pointer[activation]
	for i := range many {
		now++
		left = append(left, weak.Make(visit(fmt.Sprint("many", i))))
		c.replyCache.add(now, &actor.Reply{Call: actor.NewCallID(now, 2, seq)}, 1, now.Add(idle))
	}
	if full := c.retained(); full["timers"] < many || full["actors"] != many || full["replies"] < many {
		t.Fatalf("the cell holds too little to test: %v", full)
	}
	for range 4 { // these stay in memory
		advance(idle / 2)
		for i := range few {
			visit(fmt.Sprint("few", i))
		}
	}
	if n := c.Size().Actors; n != few {
		t.Fatalf("got %d actors in memory, want %d", n, few)
	}
	for what, n := range c.retained() {
		if most := timersRetainedMax; n > most && what != "actors" || what == "actors" && n > many/groupShrinkTo {
			t.Errorf("%s: the cell retains memory for %d, want at most %d", what, n, most)
		}
	}
	goruntime.GC()
	reachable := 0
	for _, p := range left {
		if p.Value() != nil {
			reachable++
		}
	}
	if reachable > 0 {
		t.Errorf("%d of %d actors are reachable after they left memory", reachable, many)
	}
	goruntime.KeepAlive(c)
}
