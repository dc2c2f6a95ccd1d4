// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/internal/failpoint"
	"github.com/troupe-run/troupe/internal/mutant"
	"github.com/troupe-run/troupe/store"
)

// A repeat of a call that has ended is told what that came to. Outcomes of journaled
// actors are held as far as there is room in the cell for them; beyond that an actor
// puts its oldest away, and knows no more than which entry says it. Who asks then
// waits until that is read.

// outcomeWaiter is a call that waits for an outcome to be read.
type outcomeWaiter struct {
	entry uint64 // of the entry that says it
	call  actor.Call
}

// replyOutcome answers a call with the outcome of the one that it repeats: at once, or
// when it is read from the n-th entry.
func (c *Cell) replyOutcome(act *activation, call *actor.Call, outcome *actor.Reply, n uint64) {
	if outcome != nil {
		again := *outcome
		again.Call = call.ID
		c.replyTo(act, call, &again, true)
		return
	}
	reading := false
	for i := range act.outcomeWaiters {
		reading = reading || act.outcomeWaiters[i].entry == n
		if act.outcomeWaiters[i].call.ID == call.ID && act.outcomeWaiters[i].call.Via == call.Via {
			return
		}
	}
	if len(act.outcomeWaiters) >= c.limits.MaxPendingPerActor { // to refuse it could be a second outcome
		c.emit(history.Event{Kind: history.Drop, Actor: act.id, Call: call.ID, What: "request", Why: "full"})
		c.scheduleClientRetry(call.ID)
		return
	}
	own := *call
	own.Parts = nil // which nobody reads any more
	act.outcomeWaiters = append(act.outcomeWaiters, outcomeWaiter{n, own})
	if !reading {
		c.load(act, n)
	}
}

// recalled is an outcome that was read.
func (c *Cell) recalled(in Recalled) {
	switch act := c.actors.find(in.Actor); {
	case act == nil: // it left meanwhile
	case c.failpoints.On(failpoint.LoadMisses):
		c.load(act, in.Outcome)
	default:
		c.outcomeLoaded(act, in.Outcome, &in.Reply)
	}
}

// outcomeLoaded answers who waits for the outcome that an entry says. It is not held again:
// few ask twice.
func (c *Cell) outcomeLoaded(act *activation, n uint64, outcome *actor.Reply) {
	if len(act.outcomeWaiters) == 0 {
		return
	}
	waiting := act.outcomeWaiters
	act.outcomeWaiters = nil
	for i := range waiting {
		switch r := &waiting[i]; {
		case r.entry != n && !mutant.On("outcome-of-another"):
			act.outcomeWaiters = append(act.outcomeWaiters, *r)
		case outcome == nil: // the disk cannot say: who asked asks again
			c.emit(history.Event{Kind: history.Drop, Actor: act.id, Call: r.call.ID, What: "request", Why: "unread"})
			c.scheduleClientRetry(r.call.ID)
		default:
			c.replyOutcome(act, &r.call, outcome, n)
		}
	}
	c.markDirty(act)
}

// load has the world read an actor, or the outcome that its n-th entry says. It is
// gated, so that it never overtakes the actor's own entries.
func (c *Cell) load(act *activation, n uint64) {
	c.addEffect(Effect{Gated: !mutant.On("load-before-its-gate"), Op: Load{Actor: act.id, Epoch: act.epoch, Outcome: n}})
}

// evictOutcomes has an actor hold no more outcomes than there is room for in the cell,
// and says what they weigh. Others keep what they hold until they are touched.
func (c *Cell) evictOutcomes(act *activation) int {
	others := c.size.Remembered - act.counted.Remembered
	for others+act.journal.Held() > c.limits.RememberBytes && act.journal.PutAway() {
	}
	return act.journal.Held()
}

// Read is what a world answers to a Load: what the store holds, or why it cannot be read.
func (op Load) Read(kv store.KV) (Input, error) {
	if op.Outcome > 0 {
		ended, err := store.LoadOutcome(kv, op.Actor, op.Outcome)
		if err != nil {
			return op.Failed(err.Error()), err
		}
		return Recalled{Actor: op.Actor, Outcome: op.Outcome, Reply: ended.Reply}, nil
	}
	saved, err := store.LoadActor(kv, op.Actor)
	if err != nil {
		return op.Failed(err.Error()), err
	}
	return Loaded{Actor: op.Actor, Epoch: op.Epoch, Saved: saved}, nil
}

// Failed is what it answers if the disk has it otherwise.
func (op Load) Failed(why string) Input {
	return LoadFailed{Actor: op.Actor, Epoch: op.Epoch, Outcome: op.Outcome, Why: why}
}
