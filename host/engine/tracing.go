// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync"
	"sync/atomic"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runtime"
)

// tracing publishes a node's history: the steps of its cells, the entries that
// became durable and the effects that left the node. No event precedes its
// cause. Positions count the entries since the node's start.
type tracing struct {
	emit   func([]history.Event) // nil disables tracing
	order  sync.Mutex            // held from the emission of a step to the commit of its entries
	syncs  sync.Mutex            // held while a sync is emitted, so that positions increase
	end    atomic.Uint64
	synced atomic.Uint64
}

func (t *tracing) enabled() bool { return t.emit != nil }

// recordStep emits a step and returns the end of the log after it. It returns
// with t.order locked. The caller MUST commit the step's entries and then
// unlock t.order.
func (t *tracing) recordStep(self actor.Address, now actor.Time, ready runtime.Ready) uint64 {
	t.order.Lock()
	events := append([]history.Event(nil), ready.Events...)
	written := len(ready.Entries)
	end := t.end.Add(uint64(written))
	if written > 0 {
		events = append(events, history.Event{Kind: history.Append, At: now, From: self, Pos: end, Wrote: written})
	}
	t.emit(events)
	return end
}

// recordSync emits that the log is durable up to a position.
func (t *tracing) recordSync(self actor.Address, now actor.Time, pos uint64) {
	t.syncs.Lock()
	defer t.syncs.Unlock()
	if pos <= t.synced.Load() {
		return
	}
	t.synced.Store(pos)
	t.emit([]history.Event{{Kind: history.Sync, At: now, From: self, Pos: pos, Synced: pos}})
}

// wrapEffect returns a function that performs an effect. If the effect leaves
// the node, the function emits the effect before it performs it.
func (t *tracing) wrapEffect(c *cell, e runtime.Effect, pos uint64, do func()) func() {
	self := c.core.Self()
	ev := history.Event{Kind: history.Perform, From: self, Call: e.ID.Run, Step: e.ID.Step, Index: e.ID.Index, Attempt: e.Attempt, Pos: pos}
	switch op := e.Op.(type) {
	case runtime.Respond:
		ev.What, ev.Call = "respond", op.Call
		if op.HeldUntil == 0 {
			ev.Status, ev.Digest = op.Reply.Status, history.OutcomeDigest(op.Reply.Parts, op.Reply.Warnings)
			if op.Reply.Refusal != nil {
				ev.Reason = op.Reply.Refusal.Reason
			}
		}
	case runtime.Publish:
		ev.What, ev.Call = "publish", op.Event.Run
	case runtime.Tool:
		ev.What = "tool"
	case runtime.Work:
		ev.What = "work"
	case runtime.Model:
		ev.What = "model"
	case runtime.Invoke:
		ev.What = "invoke"
	default: // effects that stay inside the node are not traced
		return do
	}
	return func() {
		emitted := ev
		emitted.At, emitted.Synced = c.engine.clock.now(), t.synced.Load()
		t.emit([]history.Event{emitted})
		do()
	}
}
