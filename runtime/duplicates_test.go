// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/history"
)

// withClientKey returns an option that gives the call the client "p" and an
// idempotency key.
func withClientKey(key string) func(*actor.Call) {
	return func(c *actor.Call) {
		c.Principal, c.Idempotency = "p", actor.Idempotency{Principal: "p", Route: "r", Key: key}
	}
}

// newEvictingNode returns a node with an actor that has ended calls under keys 0,
// 1, …, and has evicted all their outcomes.
func newEvictingNode(t *testing.T, calls int) (*node, []actor.CallID) {
	n := newNode(t, 1, agent("count", counter()))
	n.limits.RememberBytes = 1
	n.restart(1)
	var ids []actor.CallID
	for i := range calls {
		ids = append(ids, n.send("count", "now", withClientKey(fmt.Sprint(i))))
	}
	if n.outcomeReads != 0 {
		t.Fatalf("%d outcomes were read before any duplicate, want 0", n.outcomeReads)
	}
	return n, ids
}

func TestEvictedOutcomeIsReadFromLog(t *testing.T) {
	n, ids := newEvictingNode(t, 40)
	for i, id := range ids {
		again := n.send("count", "now", withClientKey(fmt.Sprint(i)))
		n.want(again, fmt.Sprint(i+1))
		if n.replies[again].Run != id || n.replies[again].Call != again {
			t.Errorf("duplicate %d: got reply %+v", i, n.replies[again])
		}
	}
	if n.outcomeReads != len(ids) {
		t.Errorf("got %d reads for %d duplicates, want one each", n.outcomeReads, len(ids))
	}
	n.limits.RememberBytes = 1 << 20 // evicted outcomes stay evicted, new ones are kept
	n.step(n.cells[0], Limits{n.limits})
	n.want(n.send("count", "now", withClientKey("more")), "41")
	n.want(n.send("count", "now", withClientKey("more")), "41")
	if n.outcomeReads != len(ids) {
		t.Error("an outcome within RememberBytes was not kept in memory")
	}
}

// The Open reply to a retried call is gated if the call depends on log entries.
// This holds even if the callee is volatile, and for both running and queued calls.
func TestOpenReplyWaitsForLog(t *testing.T) {
	for _, durable := range []bool{true, false} {
		c := newTestCell(Config{}, agent("b", waiting(time.Minute), volatile))
		caller, to := actor.NewID("a", ""), actor.NewID("b", "")
		callerShard := dispatcher.ShardOf(caller)
		if callerShard == dispatcher.ShardOf(to) {
			t.Fatal("caller and callee are in the same shard")
		}
		c.Step(1, Owners{dispatcher.NewTable(func(shard uint16) dispatcher.Owner {
			if shard == callerShard {
				return dispatcher.Owner{Node: "m", Epoch: 1}
			}
			return dispatcher.Owner{Node: "n", Epoch: 1}
		})})
		deliver := func(n uint64, attempt uint32) (open []Effect) {
			call := newVisit(n, "b").Call
			call.To, call.Root, call.Parent, call.Chain, call.Origin = to, actor.NewCallID(1, 2, 1), actor.NewCallID(1, 2, 1), []actor.ID{caller}, actor.Agent
			call.Attempt, call.Left = attempt, time.Minute
			r := c.Step(2, Deliver{actor.Envelope{From: actor.Address{Node: "m", Incarnation: 1}, To: to, Epoch: 1, Durable: durable, Body: actor.Request{Call: call}}})
			for _, e := range r.Effects {
				if s, ok := e.Op.(Send); ok {
					if _, ok := s.Envelope.Body.(actor.Open); ok {
						open = append(open, e)
					}
				}
			}
			return open
		}
		for n := range uint64(2) {
			deliver(n+1, 1)
		}
		for n := range uint64(2) {
			if open := deliver(n+1, 2); len(open) != 1 || open[0].Gated != durable {
				t.Errorf("call %d, durable %v: got Open effects %+v, want one with the same gate", n+1, durable, open)
			}
		}
	}
}

// Duplicates that ask for the same outcome share one read. Duplicates above
// MaxPendingPerActor are dropped, and their clients retry.
func TestDuplicatesShareOneOutcomeRead(t *testing.T) {
	n, _ := newEvictingNode(t, 3)
	n.limits.MaxPendingPerActor = 4
	n.step(n.cells[0], Limits{n.limits})
	n.paused = true
	var repeats []actor.CallID
	for range 7 {
		repeats = append(repeats, n.send("count", "now", withClientKey("1")))
	}
	queued := len(n.inputs)
	for range queued {
		in := n.inputs[0]
		n.inputs = n.inputs[1:]
		in()
	}
	act := n.cells[0].actors.find(actor.NewID("count", ""))
	if len(act.outcomeWaiters) != 4 || n.outcomeReads != 1 || n.eventCounts[history.Drop] != 3 {
		t.Errorf("got %d waiters, %d reads, %d drops, want 4, 1, 3", len(act.outcomeWaiters), n.outcomeReads, n.eventCounts[history.Drop])
	}
	if act.idle() {
		t.Error("an actor with outcome waiters is idle")
	}
	n.paused = false
	n.drain()
	n.advance(3 * time.Second)
	for _, id := range repeats {
		n.want(id, "2")
	}
	if n.outcomeReads != 2 || len(act.outcomeWaiters) != 0 {
		t.Errorf("got %d reads and %d waiters, want 2 and 0", n.outcomeReads, len(act.outcomeWaiters))
	}
}

// A call that is retried while its outcome is being read waits once.
func TestRetryWaitsOnceForOutcome(t *testing.T) {
	n, _ := newEvictingNode(t, 1)
	n.paused = true
	remote := actor.Address{Node: "far"}
	id := actor.NewCallID(n.now, 1, 1)
	to := actor.NewID("count", "")
	call := actor.Call{ID: id, Root: id, To: to, Kind: actor.Waiting, Left: time.Second, Attempt: 1, Via: remote, Parts: actor.Text("long")}
	withClientKey("0")(&call)
	for range 3 {
		n.step(n.cells[0], Deliver{actor.Envelope{From: remote, To: to, Epoch: n.epoch, Body: actor.Request{Call: call}}})
		call.Attempt++
	}
	if act := n.cells[0].actors.find(to); len(act.outcomeWaiters) != 1 || n.outcomeReads != 1 || act.outcomeWaiters[0].call.Parts != nil {
		t.Errorf("got waiters %+v and %d reads, want one of each", act.outcomeWaiters, n.outcomeReads)
	}
}

// A duplicate whose outcome cannot be read is retried. It is not refused, because
// the call has run.
func TestFailedOutcomeReadIsRetried(t *testing.T) {
	n, _ := newEvictingNode(t, 1)
	n.failLoads = 2
	again := n.send("count", "now", withClientKey("0"))
	n.want(again, "nothing")
	n.advance(10 * time.Second)
	n.want(again, "1")
	if n.failLoads != 0 || n.outcomeReads != 1 {
		t.Errorf("got %d failures left and %d reads, want 0 and 1", n.failLoads, n.outcomeReads)
	}
}

// An actor's shard is lost and regained while one of its outcomes is being read. The
// duplicate is answered under the new epoch.
func TestDuplicateIsAnsweredAfterActorMoves(t *testing.T) {
	n, _ := newEvictingNode(t, 2)
	n.paused = true
	again := n.send("count", "now", withClientKey("1"))
	n.inputs[0]()
	read := n.inputs[1:] // the read in progress
	n.step(n.cells[0], Owners{})
	n.inputs = nil
	n.epoch++
	n.step(n.cells[0], Owners{n.table(1)})
	n.inputs = append(read, n.inputs...)
	n.paused = false
	n.drain()
	n.want(again, "2")
	if n.outcomeReads != 1 {
		t.Errorf("got %d reads, want 1: the loaded actor answers the duplicate", n.outcomeReads)
	}
}

// The duplicate's deadline passes before its outcome is read.
func TestDuplicateExpiresDuringOutcomeRead(t *testing.T) {
	n, _ := newEvictingNode(t, 1)
	n.paused = true
	again := n.send("count", "now", withClientKey("0"), func(c *actor.Call) { c.Left = time.Second })
	n.inputs[0]()
	n.inputs = n.inputs[1:]
	n.now = n.now.Add(2 * time.Second)
	n.step(n.cells[0], Tick{})
	n.want(again, "Deadline")
	n.paused = false
	n.drain() // must not answer a second time
}
