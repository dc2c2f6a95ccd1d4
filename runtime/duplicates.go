// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"errors"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/internal/failpoint"
	"github.com/troupe-run/troupe/store"
)

// Duplicates. A duplicate of an ended call is answered with the outcome of that
// call. Outcomes of journaled actors are held in memory up to RememberBytes per
// cell. Beyond that bound, an actor evicts its oldest outcomes and keeps only the
// numbers of their entries. A duplicate of a call with an evicted outcome waits
// until the outcome is read from the log.

// outcomeWaiter is a duplicate that waits for an outcome to be read.
type outcomeWaiter struct {
	entry uint64 // number of the entry that records the outcome
	call  actor.Call
}

// replyOutcome answers a duplicate with the outcome. If outcome is nil, the outcome is
// first read from the actor's n-th entry.
func (act *activation) replyOutcome(c *Cell, call *actor.Call, outcome *actor.Reply, n uint64) {
	if outcome != nil {
		copied := *outcome
		copied.Call = call.ID
		c.replyTo(call, &copied, true)
		return
	}
	reading := false
	for i := range act.outcomeWaiters {
		reading = reading || act.outcomeWaiters[i].entry == n
		if act.outcomeWaiters[i].call.ID == call.ID && act.outcomeWaiters[i].call.Via == call.Via {
			return
		}
	}
	if len(act.outcomeWaiters) >= c.limits.MaxPendingPerActor { // dropped, not refused: the call has ended, and a refusal could be a second outcome
		c.emit(history.Event{Kind: history.Drop, Actor: act.id, Call: call.ID, What: "request", Why: "full"})
		c.waiters.retryLater(c, call.ID)
		return
	}
	duplicate := *call
	duplicate.Parts = nil // not needed for the reply
	act.outcomeWaiters = append(act.outcomeWaiters, outcomeWaiter{n, duplicate})
	if !reading {
		act.load(c, n)
	}
}

// recalled handles an outcome that was read from the log.
func (c *Cell) recalled(in Recalled) {
	switch act := c.actors.find(in.Actor); {
	case act == nil: // the actor was removed during the read
	case c.failpoints.On(failpoint.LoadMisses):
		act.load(c, in.Outcome)
	default:
		act.outcomeLoaded(c, in.Outcome, &in.Reply)
	}
}

// outcomeLoaded answers the duplicates that wait for the outcome of the n-th entry.
// The outcome is not kept in memory, because few calls are repeated a second time.
func (act *activation) outcomeLoaded(c *Cell, n uint64, outcome *actor.Reply) {
	if len(act.outcomeWaiters) == 0 {
		return
	}
	waiters := act.outcomeWaiters
	act.outcomeWaiters = nil
	for i := range waiters {
		switch r := &waiters[i]; {
		case r.entry != n:
			act.outcomeWaiters = append(act.outcomeWaiters, *r)
		case outcome == nil: // the read failed; the callers retry
			c.emit(history.Event{Kind: history.Drop, Actor: act.id, Call: r.call.ID, What: "request", Why: "unread"})
			c.waiters.retryLater(c, r.call.ID)
		default:
			act.replyOutcome(c, &r.call, outcome, n)
		}
	}
	c.markDirty(act)
}

// load requests a read of the actor, or of the outcome in its n-th entry. It is
// gated, so that it cannot overtake the actor's own entries.
func (act *activation) load(c *Cell, n uint64) {
	c.addEffect(Effect{Gated: true, Op: Load{Actor: act.id, Epoch: act.epoch, Outcome: n}})
}

// evictOutcomes evicts the oldest outcomes of the actor until the cell is within
// RememberBytes, and returns the size of the remaining outcomes of the actor in
// bytes. Another actor evicts its own outcomes when it next changes.
func (act *activation) evictOutcomes(c *Cell) int {
	others := c.size.Remembered - act.counted.Remembered
	bytes := act.journal.OutcomeBytes()
	for others+bytes > c.limits.RememberBytes && act.journal.EvictOutcome() {
		bytes = act.journal.OutcomeBytes()
	}
	return bytes
}

// Read performs a Load on the store. It returns the input for the cell, and the
// error if the read failed.
func (op Load) Read(log store.Reader) (Input, error) {
	if op.Outcome > 0 {
		ended, err := log.Outcome(op.Actor, op.Outcome)
		if err != nil {
			return op.Failed(err.Error()), err
		}
		return Recalled{Actor: op.Actor, Outcome: op.Outcome, Reply: ended.Reply}, nil
	}
	if op.Page != (actor.Hash{}) {
		messages, err := store.ReadPage(log, op.Actor, op.Page)
		if err != nil {
			return op.Failed(err.Error()), err
		}
		return PageLoaded{Actor: op.Actor, Page: op.Page, Messages: messages}, nil
	}
	saved, err := log.Load(op.Actor)
	if gone := (store.Gone{}); errors.As(err, &gone) {
		return LoadFailed{Actor: op.Actor, Epoch: op.Epoch, Why: gone.Error(), Gone: true}, nil
	}
	if err != nil {
		return op.Failed(err.Error()), err
	}
	return Loaded{Actor: op.Actor, Epoch: op.Epoch, Saved: saved}, nil
}

// Failed returns the input for a Load that failed.
func (op Load) Failed(reason string) Input {
	return LoadFailed{Actor: op.Actor, Epoch: op.Epoch, Outcome: op.Outcome, Page: op.Page, Why: reason}
}
