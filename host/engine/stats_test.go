// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/runs"
)

func TestStatsMatchCellState(t *testing.T) {
	started, release := make(chan struct{}), make(chan struct{})
	n := startNode(t, t.TempDir(), nil,
		blockingAgent("relay", func(turn *agents.Turn) (string, error) { return turn.Call("worker", "x") }),
		blockingAgent("worker", func(turn *agents.Turn) (string, error) {
			b, err := turn.Do("work", func(context.Context) ([]byte, error) { close(started); <-release; return []byte("done"), nil })
			return string(b), err
		}),
		blockingAgent("fails", func(*agents.Turn) (string, error) { return "", actor.Refuse(actor.Rejected, "test failure") }))
	n.ask("helper", "s", "x")
	n.ask("fails", "s", "x")
	n.ask("nobody", "s", "x")
	answer := make(chan Answer, 1)
	go func() { answer <- n.ask("relay", "s", "x") }()
	<-started
	second := make(chan Answer, 1)
	go func() { second <- n.ask("relay", "s", "x") }() // waits in the actor's mailbox
	state := func() (actors, queued, open int) {
		all, err := n.State(testContext(t))
		if err != nil || len(all) != 2 {
			t.Fatalf("State: %v, %v", all, err)
		}
		for _, s := range all {
			actors += len(s.Actors)
			for _, a := range s.Actors {
				queued += len(a.Queue)
				for _, turn := range a.Turns {
					open += len(turn.Open)
				}
			}
		}
		return actors, queued, open
	}
	for _, queued, _ := state(); queued == 0; _, queued, _ = state() {
	}
	actors, queued, open := state()
	if actors != 4 || queued != 1 || open != 1 {
		t.Errorf("got %d actors, %d queued, %d outstanding; want 4, 1, 1", actors, queued, open)
	}
	s := n.Stats()
	var sum CellStats
	for _, c := range s.Cells {
		sum.Actors += c.Actors
		sum.Queued += c.Queued
		sum.Outstanding += c.Outstanding
		sum.Steps += c.Steps
		if c.Incarnation != 1 || c.StepLongest <= 0 {
			t.Errorf("%+v", c)
		}
	}
	if sum.Actors != actors || sum.Queued != queued || sum.Outstanding != open || sum.Steps < 10 || s.Clients != 2 {
		t.Errorf("%+v", s)
	}
	if len(s.Refusals) != 1 || s.Refusals[0] != (RefusalStats{Reason: actor.NotFound, Count: 1}) {
		t.Errorf("got refusals %+v", s.Refusals)
	}
	if want := []RunStats{{runs.Done, 1}, {runs.Failed, 1}, {runs.Cancelled, 0}}; s.Runs[0] != want[0] || s.Runs[1] != want[1] || s.Runs[2] != want[2] {
		t.Errorf("got runs %+v", s.Runs)
	}
	asks := func() (work, calls AskStats) {
		for _, a := range n.Stats().Asks {
			switch a.Kind {
			case actor.AskWork:
				work = a
			case actor.AskCall:
				calls = a
			}
		}
		return work, calls
	}
	if work, calls := asks(); work.UnderWay != 1 || work.Answered != 0 || calls.UnderWay != 1 || calls.Answered != 0 {
		t.Errorf("got work %+v, calls %+v, want one of each in progress", work, calls)
	}
	n.Cancel(queuedCall(t, n), actor.NewID("relay", "s"))
	<-second
	close(release)
	<-answer
	if work, calls := asks(); work.UnderWay != 0 || work.Answered != 1 || work.Took <= 0 || calls.UnderWay != 0 || calls.Answered != 1 || calls.Took <= 0 {
		t.Errorf("got work %+v, calls %+v, want one of each answered", work, calls)
	}
	if s := n.Stats(); s.Runs[2].Count != 1 || s.Clients != 0 {
		t.Errorf("got runs %+v, %d clients", s.Runs, s.Clients)
	}
}

// queuedCall returns a call that waits in an actor's mailbox.
func queuedCall(t *testing.T, n *node) actor.CallID {
	all, err := n.State(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		for _, a := range s.Actors {
			if len(a.Queue) > 0 {
				return a.Queue[0]
			}
		}
	}
	t.Fatal("no call is queued")
	return actor.CallID{}
}
