// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/runtime"
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
	var sum command.CellStats
	for _, c := range s.Cells {
		sum.Actors += c.Actors
		for i, calls := range c.Queued {
			sum.Queued[i] += calls
		}
		sum.Outstanding += c.Outstanding
		sum.Steps += c.Steps
		if c.Incarnation != 1 || c.StepLongest <= 0 {
			t.Errorf("%+v", c)
		}
	}
	if sum.Actors != actors || sum.Queued != [actor.Low]int{0, queued, 0} || sum.Outstanding != open || sum.Steps < 10 || s.Clients != 2 {
		t.Errorf("%+v", s)
	}
	if len(s.Refusals) != 1 || s.Refusals[0] != (command.RefusalStats{Reason: actor.NotFound, Count: 1}) {
		t.Errorf("got refusals %+v", s.Refusals)
	}
	if want := []command.RunStats{{Status: runs.Done, Count: 1}, {Status: runs.Failed, Count: 1}, {Status: runs.Cancelled}}; s.Runs[0] != want[0] || s.Runs[1] != want[1] || s.Runs[2] != want[2] {
		t.Errorf("got runs %+v", s.Runs)
	}
	asks := func() (work, calls command.AskStats) {
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
	if work, calls := asks(); work.UnderWay != 1 || count(work) != 0 || calls.UnderWay != 1 || count(calls) != 0 {
		t.Errorf("got work %+v, calls %+v, want one of each in progress", work, calls)
	}
	n.Cancel(queuedCall(t, n), actor.NewID("relay", "s"), "")
	<-second
	close(release)
	<-answer
	if work, calls := asks(); work.UnderWay != 0 || count(work) != 1 || work.Took.Sum <= 0 || calls.UnderWay != 0 || count(calls) != 1 || calls.Took.Sum <= 0 {
		t.Errorf("got work %+v, calls %+v, want one of each answered", work, calls)
	}
	if s := n.Stats(); s.Runs[2].Count != 1 || s.Clients != 0 {
		t.Errorf("got runs %+v, %d clients", s.Runs, s.Clients)
	}
}

// count returns the number of answered asks.
func count(a command.AskStats) (sum uint64) {
	for _, n := range a.Took.Counts {
		sum += n
	}
	return sum
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

// agentsNamed returns agents with the names agent-0 to agent-n and others.
func agentsNamed(n int, others ...string) (all []actor.Definition) {
	for i := range n {
		all = append(all, actor.Definition{Name: fmt.Sprint("agent-", i)})
	}
	for _, name := range others {
		all = append(all, actor.Definition{Name: name})
	}
	return all
}

// Agents that are deleted, and models that do not exist, take no name of others, however
// many there are. No figure is lost, and no unanswered call of a deleted agent.
func TestGoneNamesTakeNoSeries(t *testing.T) {
	n := startNode(t, t.TempDir(), nil)
	if _, err := n.State(testContext(t)); err != nil { // the start of a cell resets its gauges
		t.Fatal(err)
	}
	n.labels.models = map[string]bool{"big": true}
	n.labels.setAgents(agentsNamed(0, "kept"))
	record := func(all ...runtime.Measure) { n.cells[1].tally.record(all) }
	record(runtime.Measure{Kind: runtime.MeasureRun, Name: "kept"}, runtime.Measure{Kind: runtime.MeasureModel, Name: "big"})
	const gone = 2 * command.StatsNamesMax
	for i := range gone {
		name := fmt.Sprint("brief-", i)
		n.labels.setAgents(agentsNamed(0, "kept", name))
		record(runtime.Measure{Kind: runtime.MeasureRun, Name: name}, runtime.Measure{Kind: runtime.MeasureOutstanding, Name: name, Change: 1},
			runtime.Measure{Kind: runtime.MeasureModel, Name: name, Reason: actor.ModelNotFound})
	}
	n.labels.setAgents(agentsNamed(0, "kept", "last"))
	record(runtime.Measure{Kind: runtime.MeasureRun, Name: "last"}, runtime.Measure{Kind: runtime.MeasureOutstanding, Name: "brief-0", Change: -1})
	s := n.Stats()
	if len(s.Agents) != 3 || s.Agents[0].Agent != "kept" || s.Agents[1].Agent != "last" || s.Agents[2].Agent != command.StatsOther || s.Agents[2].Runs[0].Count != gone || s.Agents[2].Outstanding != gone-1 {
		t.Errorf("got agents %+v, want kept, last, and %d others", s.Agents, gone)
	}
	if len(s.Targets) != 2 || s.Targets[0].Name != "big" || s.Targets[1].Name != command.StatsOther || s.Targets[1].Outcomes[0].Count != gone {
		t.Errorf("got models %+v, want big and %d others", s.Targets, gone)
	}
}

// However many agents, tools and models a node meets, the number of series stays
// bounded, and no figure is lost.
func TestSeriesAreBounded(t *testing.T) {
	const names = command.StatsNamesMax + 300
	n := startNode(t, t.TempDir(), nil)
	n.labels.setAgents(agentsNamed(names))
	for i := range names {
		for j, c := range n.cells {
			c.tally.record([]runtime.Measure{{Kind: runtime.MeasureRun, Name: fmt.Sprint("agent-", i), Took: actor.Duration(i)},
				{Kind: runtime.MeasureTool, Name: fmt.Sprint("tool-", i+j), Reason: actor.Deadline}})
		}
	}
	s := n.Stats()
	agents, sum, cells := map[string]command.AgentStats{}, uint64(0), uint64(len(n.cells))
	for _, a := range s.Agents {
		agents[a.Agent] = a
		for _, n := range a.Took.Counts {
			sum += n
		}
	}
	if len(agents) != command.StatsNamesMax+1 || len(s.Agents) != len(agents) || sum != names*cells {
		t.Errorf("got %d agents in %d series with %d runs, want %d with %d", len(agents), len(s.Agents), sum, command.StatsNamesMax+1, names*cells)
	}
	if first, other := agents["agent-0"], agents[command.StatsOther]; first.Runs[0].Count != cells || other.Runs[0].Count != 300*cells {
		t.Errorf("got %+v and %+v", first, other)
	}
	if len(s.Targets) != command.StatsNamesMax+1 {
		t.Errorf("got %d tools, want %d", len(s.Targets), command.StatsNamesMax+1)
	}
	for _, tool := range s.Targets {
		if len(tool.Outcomes) != 1 || tool.Outcomes[0].Reason != actor.Deadline {
			t.Errorf("got %+v", tool)
		}
	}
}

// Names that no record has used for an hour make room for new ones. Their figures are
// kept in the series of the others. An agent with unanswered calls keeps its name.
func TestUnusedNamesAreFreed(t *testing.T) {
	n := startNode(t, t.TempDir(), nil)
	now := actor.Time(time.Hour)
	n.labels.setAgents(agentsNamed(command.StatsNamesMax, "waiting", "used"))
	n.labels.now = func() actor.Time { return now }
	run := func(name string) {
		for _, c := range n.cells {
			c.tally.record([]runtime.Measure{{Kind: runtime.MeasureRun, Name: name, Took: 1}})
		}
	}
	runsOf := func() (all map[string]uint64, sum uint64) {
		all = map[string]uint64{}
		for _, a := range n.Stats().Agents {
			all[a.Agent] = a.Runs[0].Count
			sum += a.Runs[0].Count
		}
		return all, sum
	}
	cells := uint64(len(n.cells))
	if _, err := n.State(testContext(t)); err != nil { // the start of a cell resets its gauges
		t.Fatal(err)
	}
	n.cells[1].tally.record([]runtime.Measure{{Kind: runtime.MeasureOutstanding, Name: "waiting", Change: 1}})
	for i := range command.StatsNamesMax {
		run(fmt.Sprint("agent-", i)) // the last one has no room
	}
	if all, _ := runsOf(); all[command.StatsOther] != cells || len(all) != command.StatsNamesMax+1 {
		t.Fatalf("%d names, other %d", len(all), all[command.StatsOther])
	}
	now = now.Add(sweepEvery - 1)
	run("used")
	run("agent-7")
	if all, _ := runsOf(); all["used"] != 0 {
		t.Error("a name was freed before its time")
	}
	now = now.Add(1)
	run("used")
	all, sum := runsOf()
	if _, ok := all["waiting"]; !ok || len(all) != 4 || all["used"] != cells || all["agent-7"] != 2*cells {
		t.Errorf("got %d names, used %d, agent-7 %d, waiting %v; want waiting, used, agent-7 and other", len(all), all["used"], all["agent-7"], ok)
	}
	if want := (command.StatsNamesMax + 3) * cells; sum != want {
		t.Errorf("%d runs, want %d", sum, want)
	}
	n.cells[1].tally.record([]runtime.Measure{{Kind: runtime.MeasureOutstanding, Name: "waiting", Change: -1}})
	for _, a := range n.Stats().Agents {
		if a.Outstanding != 0 {
			t.Errorf("%+v", a)
		}
	}
}

// Every reason has a counter of its own.
func TestReasonsHaveCounters(t *testing.T) {
	if all := actor.Reasons(); int(all[len(all)-1]) >= reasonCount-1 {
		t.Errorf("%d reasons, but %d counters", len(all), reasonCount)
	}
}

// A histogram counts a duration in the first bucket whose bound is not below it.
func TestHistogramBuckets(t *testing.T) {
	for _, bounds := range [][]actor.Duration{command.DurationBounds, command.WaitBounds} {
		h := histogram{bounds: bounds}
		for _, b := range bounds {
			h.record(b)
		}
		h.record(bounds[len(bounds)-1] + 1)
		var sum command.Histogram
		h.addTo(&sum)
		for i, n := range sum.Counts {
			if n != 1 || !slices.IsSorted(bounds) {
				t.Errorf("bucket %d: got %d", i, n)
			}
		}
	}
}
