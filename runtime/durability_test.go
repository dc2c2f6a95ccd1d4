// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
)

// setAgents replaces the agents of all cells.
func (n *node) setAgents(agents ...actor.Definition) {
	n.agents = agents
	for _, c := range n.cells {
		n.step(c, Agents{Definitions: n.agents, Former: n.former})
	}
	n.drain()
}

// deliver delivers a message as another cell of the node does.
func (n *node) deliver(to actor.ID, m actor.Message) {
	n.step(n.cells[0], Deliver{actor.Envelope{From: actor.Address{Node: "n"}, To: to, Epoch: n.epoch, Body: m}})
	n.drain()
}

func callOf(attempt uint32, text string) actor.Call {
	callCount++
	id := actor.NewCallID(1, 98, callCount)
	return actor.Call{ID: id, Root: id, Parent: id, To: actor.NewID("a", ""), Chain: []actor.ID{actor.NewID("caller", "")}, Operation: actor.HandleMessageFull,
		Kind: actor.Waiting, Lane: actor.Normal, Left: time.Minute, Attempt: attempt, Origin: actor.Agent, Parts: actor.Text(text)}
}

// A retry, a cancel or a signal loads an actor whose agent is unknown. Once its agent
// is known as volatile, the actor writes nothing.
func TestActorOfUnknownAgentBecomesVolatile(t *testing.T) {
	n := newNode(t, 1)
	cancelled, refused := callOf(2, "x"), callOf(2, "x")
	n.deliver(cancelled.To, actor.Cancel{Call: cancelled.ID, Reason: actor.Stopped})
	n.deliver(refused.To, actor.Request{Call: refused})
	if act := n.cells[0].actors.find(refused.To); act == nil || !act.durable {
		t.Fatal("the actor was not loaded")
	}
	before := n.entries
	n.setAgents(agent("a", echo(), volatile))
	n.want(n.send("a", "x"), "a:x")
	n.want(n.send("a", "y", withKey("k")), "a:y")
	if act := n.cells[0].actors.find(refused.To); act.durable || n.entries != before {
		t.Errorf("a volatile agent wrote %d entries (journaled: %v)", n.entries-before, act.durable)
	}
	n.deliver(cancelled.To, actor.Request{Call: cancelled})
	if act := n.cells[0].actors.find(refused.To); !act.journal.IsBuried(cancelled.ID) || act.journal.Run(cancelled.ID) != nil {
		t.Error("a call cancelled before its arrival was accepted")
	}
}

// The calls that were deferred during the load of an actor are handled as its agent
// demands, which may have become known in the meantime.
func TestDeferredCallOfNewVolatileAgentWritesNothing(t *testing.T) {
	n := newNode(t, 1)
	n.paused = true
	c := callOf(2, "x")
	n.deliver(c.To, actor.Request{Call: c})
	n.setAgents(agent("a", echo(), volatile))
	n.paused = false
	n.drain()
	if n.entries != 0 {
		t.Errorf("got %d entries, want 0", n.entries)
	}
}

// The runs in the journal of an actor end although its agent is volatile after a
// restart. Until then the actor keeps its journal, and afterwards the next call after
// its passivation writes nothing.
func TestOpenRunsOutliveTheirDurability(t *testing.T) {
	for _, test := range []struct {
		name  string
		early func(*node) actor.CallID // call that arrives before the expiry index was read
	}{
		{"alone", nil},
		{"after a short call", func(n *node) actor.CallID { return n.send("a", "y") }},
		{"during a call", func(n *node) actor.CallID { return n.send("a", "long") }},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newNode(t, 1, agent("a", sleepByLength()))
			id := n.send("a", "x")
			n.agents = []actor.Definition{agent("a", sleepByLength(), volatile)}
			n.paused = true
			n.restart(1)
			due := n.inputs
			n.inputs, n.paused = nil, false
			var early actor.CallID
			if test.early != nil {
				early = test.early(n)
			}
			n.inputs = append(n.inputs, due...)
			n.drain()
			second := n.send("a", "second")
			n.advance(time.Minute)
			if r := n.runs[id]; !r.Status.Ended() || r.Refusal != nil {
				t.Errorf("got run %+v, want it ended", r)
			}
			n.want(second, "slept")
			if test.early != nil {
				n.want(early, "slept")
			}
			n.advance(time.Hour)
			before := n.entries
			third := n.send("a", "z")
			n.advance(time.Minute)
			n.want(third, "slept")
			if n.entries != before {
				t.Errorf("a volatile agent wrote %d entries", n.entries-before)
			}
		})
	}
}

// A copy of a call that arrives before the expiry index was read, late or repeated,
// joins its run in the journal, although its agent is volatile now.
func TestCopyOfCallFindsRunOfNowVolatileAgent(t *testing.T) {
	for attempt := range uint32(2) {
		next := func(d *actor.Definition) { d.Hash = actor.HashOf([]byte("next")) }
		n := newNode(t, 1, agent("a", sleepByLength()))
		call := callOf(1, "long")
		n.deliver(call.To, actor.Request{Call: call})
		n.former, n.agents = n.agents, []actor.Definition{agent("a", sleepByLength(), volatile, next)}
		n.paused = true
		n.restart(1)
		due := n.inputs
		n.inputs, n.paused = nil, false
		call.Attempt = 1 + attempt
		n.deliver(call.To, actor.Request{Call: call})
		n.inputs = append(n.inputs, due...)
		n.drain()
		act := n.cells[0].actors.find(call.To)
		if act == nil || !act.durable || len(act.journal.Runs) != 1 || act.journal.Run(call.ID) == nil {
			t.Fatalf("attempt %d: got actor %+v, want the journaled one with its run", 1+attempt, act)
		}
		n.advance(time.Minute)
		if act := n.cells[0].actors.find(call.To); act != nil && len(act.journal.Runs) > 0 {
			t.Errorf("attempt %d: got %d open runs after the end, want none", 1+attempt, len(act.journal.Runs))
		}
		n.advance(time.Hour)
		before := n.entries
		third := n.send("a", "z")
		n.advance(time.Minute)
		if n.want(third, "slept"); n.entries != before {
			t.Errorf("attempt %d: a volatile agent wrote %d entries", 1+attempt, n.entries-before)
		}
	}
}

// A cancel that arrives before the journal of an actor is read ends its run: at once if the
// former definition of the agent is known.
func TestCancelReachesRunOfNowVolatileAgent(t *testing.T) {
	for _, known := range []bool{false, true} {
		n := newNode(t, 1, agent("a", waiting(time.Minute)))
		run := n.send("a", "x")
		if known {
			n.former = n.agents
		}
		n.agents = []actor.Definition{agent("a", waiting(time.Minute), volatile, func(d *actor.Definition) { d.Hash = actor.HashOf([]byte("next")) })}
		n.paused = true
		n.restart(1)
		due := n.inputs
		n.inputs, n.paused = nil, false
		n.deliver(actor.NewID("a", ""), actor.Cancel{Call: run, Reason: actor.Stopped})
		if ended := n.runs[run].Status.Ended(); ended != known {
			t.Errorf("former definition known %v: the run has ended %v before the expiry index was read", known, ended)
		}
		n.inputs = due
		n.drain()
		if r := n.runs[run]; !r.Status.Ended() {
			t.Errorf("former definition known %v: got status %v, want an ended run", known, r.Status)
		}
	}
}

// An actor in memory adopts the journal of its agent with the next call after its
// volatile runs.
func TestVolatileActorBecomesJournaled(t *testing.T) {
	n := newNode(t, 1, agent("b", echo()), agent("a", sleepByLength(), volatile), agent("c", fanOut("a", "a"), volatile))
	n.want(n.send("b", "x"), "b:x")
	long := n.send("a", "long")
	n.advance(2 * time.Second)
	before := n.entries
	next := func(d *actor.Definition) { d.Hash = actor.HashOf([]byte("next")) }
	n.setAgents(agent("b", echo()), agent("a", echo(), next), agent("c", fanOut("a", "a"), volatile))
	n.advance(time.Minute)
	n.want(long, "slept")
	if n.entries != before {
		t.Errorf("a volatile run wrote %d entries", n.entries-before)
	}
	n.want(n.send("c", "x"), "c(a:x a:x )") // both calls are delivered in one step
	if saved := n.log[actor.NewID("a", "")]; len(saved.Entries) == 0 {
		t.Error("a journaled agent wrote no entry")
	}
}

// A journaled actor whose agent becomes volatile keeps its journal while that holds an
// open run, or an outcome for duplicates.
func TestJournalIsKeptWhileNeeded(t *testing.T) {
	next := func(d *actor.Definition) { d.Hash = actor.HashOf([]byte("next")) }
	n := newNode(t, 1, agent("a", sleepByLength()))
	long := n.send("a", "long")
	n.setAgents(agent("a", sleepByLength(), volatile, next))
	second := n.send("a", "x")
	n.advance(time.Minute)
	n.want(long, "slept")
	n.want(second, "slept")
	ended := 0
	for _, e := range n.log[actor.NewID("a", "")].Entries {
		if _, ok := e.Record.(store.Ended); ok {
			ended++
		}
	}
	if ended != 2 {
		t.Errorf("got %d ends in the log, want those of both runs", ended)
	}

	n = newNode(t, 1, agent("a", echo()))
	n.want(n.send("a", "x", withKey("k")), "a:x")
	n.setAgents(agent("a", sleeping(time.Second), volatile, next))
	n.send("a", "y")
	n.advance(time.Minute)
	n.want(n.send("a", "x", withKey("k")), "a:x")
}

// Open work in the log of an actor that has volatile runs is loaded after these, again
// and again if the disk fails.
func TestLoadAfterVolatileRunsIsRetried(t *testing.T) {
	n := newNode(t, 1, agent("a", sleepByLength()))
	id := n.send("a", "x")
	n.agents = []actor.Definition{agent("a", sleepByLength(), volatile)}
	n.paused = true
	n.restart(1)
	due := n.inputs
	n.inputs, n.paused = nil, false
	early := n.send("a", "long")
	n.failLoads = 2
	n.inputs = append(n.inputs, due...)
	n.advance(time.Minute)
	n.want(early, "slept")
	if r := n.runs[id]; n.failLoads != 0 || !r.Status.Ended() || r.Refusal != nil {
		t.Errorf("%d failures left, run %+v; want it ended", n.failLoads, r)
	}
}

// Of two volatile actors whose runs end in one step, each is replaced by a journaled one.
func TestLoadsAfterVolatileRunsOfOneStep(t *testing.T) {
	n := newNode(t, 1, agent("a", sleepByLength()))
	ids := []actor.CallID{n.send("a/1", "x"), n.send("a/2", "x")}
	n.agents = []actor.Definition{agent("a", sleepByLength(), volatile)}
	n.paused = true
	n.restart(1)
	due := n.inputs
	n.inputs, n.paused = nil, false
	n.send("a/1", "long")
	n.send("a/2", "long")
	n.inputs = append(n.inputs, due...)
	n.advance(time.Minute)
	for _, id := range ids {
		if r := n.runs[id]; !r.Status.Ended() || r.Refusal != nil {
			t.Errorf("got run %+v, want it ended", r)
		}
	}
}
