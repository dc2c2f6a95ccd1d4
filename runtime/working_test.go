// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"slices"
	"testing"

	"github.com/troupe-run/troupe/actor"
)

// The runs on which external agents work are those with an open invocation, before and after a restart.
func TestWorkingRuns(t *testing.T) {
	waiting := askingOnce("waiting", actor.Ask{Kind: actor.AskModel, Name: "m"})
	n := newNode(t, 1, externalAgent(true), waiting)
	working := func(most int, want ...actor.CallID) {
		t.Helper()
		found, known := WorkingRuns(n.cells[0], []string{"absent", "waiting", "worker"}, most)
		var got []actor.CallID
		for _, r := range found {
			got = append(got, r.Run)
			if r.Actor.Agent != "worker" || r.Root != r.Run {
				t.Errorf("got run %+v", r)
			}
		}
		if !known || !slices.Equal(got, want) {
			t.Errorf("got %v, known %v, want %v", got, known, want)
		}
	}
	n.drain()
	working(2)
	n.send("waiting", "x")
	working(2)
	first := n.send("worker/a", "x")
	working(2, first)
	second := n.send("worker/b", "x")
	working(2, first, second)
	working(1, first)
	n.restart(1)
	n.drain()
	working(3, first, second)
	for _, e := range n.external {
		if op, ok := e.effect.Op.(Invoke); ok && op.Call.ID == first {
			n.sendOutcome(e, completion("done"))
		}
	}
	working(2, second)
}
