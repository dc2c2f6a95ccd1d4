// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// loadsIn returns the actors that a step loads.
func loadsIn(r Ready) (ids []actor.ID) {
	for _, e := range r.Effects {
		if op, ok := e.Op.(Load); ok {
			ids = append(ids, op.Actor)
		}
	}
	return ids
}

// A start may find any amount of open work. Few actors are loaded at a time, and a
// message to another actor does not wait for them. In the end all are loaded.
func TestRecoveryLoadsAreBounded(t *testing.T) {
	n := newNode(t, 1, agent("a", sleeping(time.Hour)))
	const open = 5 * recoveryLoadsMax / 2
	var ids []actor.ID
	for i := range open {
		n.send(fmt.Sprint("a/", i), "x")
		ids = append(ids, actor.NewID("a", fmt.Sprint(i)))
	}
	n.drain()
	n.paused = true
	n.restart(1)
	n.inputs = nil
	c := n.cells[0]
	loading := loadsIn(c.Step(n.now, Due{Actors: ids}))
	if len(loading) != recoveryLoadsMax {
		t.Fatalf("got %d loads at a time, want %d", len(loading), recoveryLoadsMax)
	}
	call := actor.Call{ID: actor.NewCallID(n.now, 1, 1), To: actor.NewID("a", "new"), Kind: actor.Waiting, Lane: actor.Normal, Origin: actor.Human,
		Operation: actor.HandleMessageFull, Left: actor.Duration(time.Minute), Attempt: 1}
	call.Root = call.ID
	if ids := loadsIn(c.Step(n.now, Deliver{actor.Envelope{To: call.To, Body: actor.Request{Call: call}}})); len(ids) != 1 || ids[0] != call.To {
		t.Errorf("a message loaded %v, want its actor", ids)
	}
	// A failed load also makes room for the next load.
	failed := loading[0]
	loading = append(loading[1:], loadsIn(c.Step(n.now, LoadFailed{Actor: failed, Epoch: actor.Epoch(n.epoch), Why: "disk failure"}))...)
	if len(loading) != recoveryLoadsMax {
		t.Errorf("got %d loads after one failed", len(loading))
	}
	loaded := 0
	for ; len(loading) > 0; loaded++ {
		id := loading[0]
		more := loadsIn(c.Step(n.now, Loaded{Actor: id, Epoch: actor.Epoch(n.epoch), Saved: n.log[id]}))
		if loading = append(loading[1:], more...); len(loading) > recoveryLoadsMax {
			t.Fatalf("got %d loads at a time", len(loading))
		}
	}
	if loaded != open-1 {
		t.Errorf("%d actors were loaded, want %d", loaded, open-1)
	}
	for _, id := range ids {
		if act := c.actors.find(id); act == nil || act.loaded == (id == failed) || !act.mustLoad {
			t.Errorf("%s: got activation %+v", id, act)
		}
	}
}

// Queued loads for shards that were lost are dropped.
func TestRecoveryDropsLostShards(t *testing.T) {
	n := newNode(t, 1, agent("a", sleeping(time.Hour)))
	c := n.cells[0]
	var ids []actor.ID
	for i := range 3 * recoveryLoadsMax {
		ids = append(ids, actor.NewID("a", fmt.Sprint(i)))
	}
	c.Step(n.now, Due{Actors: ids})
	if r := c.Step(n.now, Owners{}); len(loadsIn(r)) != 0 || c.recovery.loading != 0 || len(c.recovery.actors) != 0 {
		t.Errorf("got %d loads, %d queued actors and %d load effects, want 0", c.recovery.loading, len(c.recovery.actors), len(loadsIn(r)))
	}
	c.Step(n.now, Owners{n.table(1)})
	if r := c.Step(n.now, Due{Actors: ids}); len(loadsIn(r)) != recoveryLoadsMax {
		t.Errorf("got %d loads after the shards were regained, want %d", len(loadsIn(r)), recoveryLoadsMax)
	}
}

// A cancel reaches a run whose agent was deleted and whose actor is not loaded.
func TestCancelReachesRunOfDeletedAgent(t *testing.T) {
	n := newNode(t, 1, agent("a", waiting(time.Minute)))
	run := n.send("a", "x")
	n.agents = nil
	n.paused = true
	n.restart(1)
	n.inputs = nil // drop the answer to Expiries
	n.paused = false
	n.step(n.cells[0], Deliver{actor.Envelope{To: actor.NewID("a", ""), Body: actor.Cancel{Call: run, Reason: actor.Stopped}}})
	n.drain()
	if r := n.runs[run]; !r.Status.Ended() {
		t.Errorf("got status %v, want an ended run", r.Status)
	}
}

// A run cancelled by a client is Stopped, and its refusal names the user.
func TestCancelledRunNamesUser(t *testing.T) {
	n := newNode(t, 1, agent("a", waiting(time.Minute)))
	run := n.send("a", "x")
	n.drain()
	n.deliver(actor.NewID("a", ""), actor.Cancel{Call: run, Reason: actor.Stopped, By: "ann"})
	n.drain()
	if r := n.runs[run]; r.Refusal == nil || r.Refusal.Reason != actor.Stopped || r.Refusal.Detail != "ann cancelled the run" {
		t.Errorf("got %v", r.Refusal)
	}
}

// A client's retry that was dropped is sent again after the back-off, not at once.
func TestDroppedRetryWaits(t *testing.T) {
	c := newTestCell(Config{}, agent("a", echo()))
	v := newVisit(1, "a")
	v.Call.Attempt = 2
	if ids := loadsIn(c.Step(5, v)); len(ids) != 1 {
		t.Fatalf("got loads %v, want one", ids)
	}
	r := c.Step(9, LoadFailed{Actor: v.Call.To, Epoch: 1, Why: "disk failure"})
	if at, ok := c.NextDeadline(); len(r.Effects) > 0 || !ok || at != actor.Time(9).Add(c.limits.ResendAfter) {
		t.Errorf("got %d effects, and the next deadline %v, want %v", len(r.Effects), at, actor.Time(9).Add(c.limits.ResendAfter))
	}
}

// A call that is refused because its actor cannot be read may run when it is repeated, so
// the refusal is not final: the caller keeps the share of the call.
func TestRefusalOfUnreadActorIsNotFinal(t *testing.T) {
	c := newTestCell(Config{}, agent("a", echo()))
	v := newVisit(1, "a")
	if ids := loadsIn(c.Step(5, v)); len(ids) != 1 {
		t.Fatalf("got loads %v, want one", ids)
	}
	refusals := 0
	for _, e := range c.Step(9, LoadFailed{Actor: v.Call.To, Epoch: 1, Why: "disk failure"}).Effects {
		if op, ok := e.Op.(Respond); ok && op.Reply.Refusal != nil {
			if refusals++; op.Reply.Refusal.Reason != actor.Unavailable || op.Reply.Refusal.RetryAfter == 0 {
				t.Errorf("got %+v, want a refusal with a retry delay", op.Reply.Refusal)
			}
		}
	}
	if refusals != 1 {
		t.Errorf("got %d refusals, want one", refusals)
	}
}
