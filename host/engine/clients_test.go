// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	goruntime "runtime"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runtime"
)

// A client learns the run that its call repeats, even if the answer has arrived by
// the time it waits, or arrives at the same moment.
func TestJoinedRunIsNeverDropped(t *testing.T) {
	for i := range 400 {
		e := &Engine{clients: newClients(1), done: make(chan struct{})}
		call, run := actor.NewCallID(1, 2, uint64(i)), actor.NewCallID(1, 3, 4)
		w, refusal := e.clients.admit(&actor.Call{ID: call}, 0, 1, true)
		if refusal != nil {
			t.Fatal(refusal)
		}
		e.clients.add(w, true)
		answer := func() {
			e.clients.notifyJoined(call, run)
			e.clients.respond(runtime.Respond{Call: call, Reply: actor.Reply{Call: call, Run: run}}, true)
		}
		waits := i%2 == 0
		if !waits {
			answer()
		}
		got := make(chan []actor.CallID, 1)
		go func() {
			var joined []actor.CallID
			_, err := e.wait(context.Background(), w, func(run actor.CallID) { joined = append(joined, run) })
			if err != nil {
				t.Error(err)
			}
			got <- joined
		}()
		for waits && w.state.Load() != parked {
			goruntime.Gosched()
		}
		if waits {
			answer()
		}
		if joined := <-got; len(joined) != 1 || joined[0] != run {
			t.Fatalf("attempt %d, waiting %t: got joined runs %v, want %v once", i, waits, joined, run)
		}
	}
}

// A node refuses subscriptions beyond its maximum. An ended subscription makes room.
func TestSubscriptionsAreBounded(t *testing.T) {
	n := startNode(t, t.TempDir(), func(c *Config) { c.WatchersMax = 3 })
	run := n.NewCallID()
	var stops []func()
	for range 3 {
		_, stop, err := n.Watch(run)
		if err != nil {
			t.Fatal(err)
		}
		stops = append(stops, stop)
	}
	_, _, err := n.Watch(n.NewCallID())
	if r, ok := err.(*actor.Refusal); !ok || r.Reason != actor.Busy || r.Scope != actor.ScopeNode || r.RetryAfter == 0 {
		t.Errorf("got %v, want Busy of the node", err)
	}
	stops[0]()
	stops[0]() // a second call has no effect
	if _, _, err := n.Watch(run); err != nil {
		t.Error(err)
	}
	if _, _, err := n.Watch(run); err == nil {
		t.Error("a fourth subscription was accepted")
	}
}
