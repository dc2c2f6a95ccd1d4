// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/signals"
)

// A retried run performs the idempotent operations that were open when it was parked, once each.
// A retry that still diverges changes nothing.
func TestRetryRepeatsOpenOperations(t *testing.T) {
	worked := 0
	work := func(context.Context) ([]byte, error) { worked++; return []byte("{}"), nil }
	ask := actor.Ask{Kind: actor.AskWork, Name: "w", Idempotent: true, Work: work}
	former := []actor.Definition{agent("a", askOnce(ask, ask))}
	n := newNode(t, 1, former...)
	n.paused = true
	id := n.send("a", "x", withKey("k"))
	for n.entries < 2 { // stop as soon as the asks are logged
		in := n.inputs[0]
		n.inputs = n.inputs[1:]
		in()
	}
	n.paused = false
	restart := func(agents []actor.Definition) {
		n.agents = agents
		n.restart(1)
		n.drain()
	}
	worked = 0
	restart([]actor.Definition{agent("a", echo())})
	retry := func(want string) {
		t.Helper()
		n.want(n.send("a", "", signalTo(id), func(c *actor.Call) { c.Operation, c.Parts = signals.OpRetry, nil }), want)
	}
	retry("Rejected")
	if worked != 0 {
		t.Errorf("%d operations of a parked run", worked)
	}
	restart(former)
	if run := n.cells[0].actors.find(actor.NewID("a", "")).journal.Run(id); run == nil || run.Parked == "" {
		t.Fatalf("got run %+v, want it parked", run)
	}
	retry("")
	n.want(n.send("a", "x", withKey("k")), "") // JSON is no text
	if worked != 2 {
		t.Errorf("%d operations, want 2", worked)
	}
}
