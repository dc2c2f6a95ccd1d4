// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/store"
)

// counter keeps how many messages it has ended, and tells each its number.
func counter() script {
	return func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if strings.HasPrefix(actor.TextOf(b.Call.Parts), "slow") && len(answers) == 0 {
			return actor.Action{Asks: []actor.Ask{{Kind: actor.AskSleep, Timeout: time.Second}}}, nil
		}
		n := 0
		for _, item := range b.ActorState {
			n, _ = strconv.Atoi(string(item.Value))
		}
		done := actor.Complete(actor.Text(strconv.Itoa(n + 1)))
		done.StateUpdates = []actor.StateItem{{Name: "n", Value: strconv.AppendInt(nil, int64(n+1), 10)}}
		return done, nil
	}
}

// request is what a client wants done once, however often it asks.
type request struct {
	to, text  string
	key       string
	calls     []actor.CallID
	cancelled bool
}

// callMachine is a machine of rapid: clients ask and ask again, messages are taken in
// one at a time, cells crash and come back with the log, time passes. Its model
// counts what was wanted, and what was answered.
type callMachine struct {
	n        *node
	requests []*request
	open     map[actor.CallID]bool // asked of the cells that there are, and not cancelled
}

func (l *callMachine) submit(t *rapid.T, a *request) {
	id := l.n.send(a.to, a.text, func(c *actor.Call) {
		c.Principal = "client"
		if a.key != "" {
			c.Idempotency = actor.Idempotency{Principal: "client", Route: "messages", Key: a.key, Body: actor.HashOf([]byte(a.text))}
		}
	})
	a.calls = append(a.calls, id)
	l.open[id] = true
}

func (l *callMachine) Ask(t *rapid.T) {
	a := &request{to: rapid.SampledFrom([]string{"count/x", "count/y", "relay/x", "relay/y"}).Draw(t, "to"),
		text: rapid.SampledFrom([]string{"now", "slow"}).Draw(t, "text")}
	if rapid.IntRange(0, 3).Draw(t, "keyed") > 0 {
		a.key = fmt.Sprint("key-", len(l.requests))
	}
	l.requests = append(l.requests, a)
	l.submit(t, a)
}

func (l *callMachine) AskAgain(t *rapid.T) {
	keyed := slices.DeleteFunc(slices.Clone(l.requests), func(a *request) bool { return a.key == "" })
	if len(keyed) == 0 {
		t.Skip("nobody has a key")
	}
	l.submit(t, rapid.SampledFrom(keyed).Draw(t, "again"))
}

func (l *callMachine) Cancel(t *rapid.T) {
	if len(l.requests) == 0 {
		t.Skip("nothing to cancel")
	}
	a := rapid.SampledFrom(l.requests).Draw(t, "who")
	id := rapid.SampledFrom(a.calls).Draw(t, "call")
	to, _ := actor.ParseID(a.to)
	l.n.inputs = append(l.n.inputs, func() {
		l.n.step(l.n.cells[0], Deliver{actor.Envelope{To: to, Body: actor.Cancel{Call: id, Reason: actor.Stopped}}})
	})
	a.cancelled = true
	delete(l.open, id)
}

func (l *callMachine) Take(t *rapid.T) {
	for range rapid.IntRange(1, 6).Draw(t, "inputs") {
		if len(l.n.inputs) > 0 {
			in := l.n.inputs[0]
			l.n.inputs = l.n.inputs[1:]
			in()
		}
	}
}

func (l *callMachine) Crash(*rapid.T) {
	l.n.restart(2)
	clear(l.open) // their connections are gone
}

func (l *callMachine) Pass(t *rapid.T) {
	l.n.paused = false
	l.n.advance(time.Duration(rapid.IntRange(1, 3000).Draw(t, "ms")) * time.Millisecond)
	l.n.paused = true
}

// Check is what must hold after each step: of an actor's journal no run is open twice.
func (l *callMachine) Check(t *rapid.T) {
	for id, saved := range l.n.log {
		j, err := store.Fold(saved)
		if err != nil {
			t.Fatalf("%s: %v", id, err)
		}
		for i, run := range j.Runs {
			if j.HasEnded(run.Call.ID) || slices.ContainsFunc(j.Runs[:i], func(o *store.Run) bool { return o.Call.ID == run.Call.ID }) {
				t.Fatalf("%s has run %s open, and ended or open already", id, run.Call.ID)
			}
		}
	}
}

// checkFinal is what must hold when all is at rest.
func (l *callMachine) checkFinal(t *rapid.T) {
	n := l.n
	n.paused = false
	n.advance(2 * time.Minute)
	for id := range l.open {
		if _, ok := n.replies[id]; !ok {
			t.Fatalf("%s was asked and never answered", id.Short())
		}
	}
	// Each number was told to one run, and there are no more than were wanted.
	runs, most := map[string]actor.CallID{}, map[string]int{}
	for _, a := range l.requests {
		first := actor.Reply{}
		for _, id := range a.calls {
			r, ok := n.replies[id]
			if !ok || r.Status != actor.Succeeded {
				continue
			}
			if !first.Run.IsZero() && (first.Run != r.Run || actor.TextOf(first.Parts) != actor.TextOf(r.Parts)) {
				t.Fatalf("%s has two answers: %s of run %s, %s of run %s", a.key, actor.TextOf(first.Parts), first.Run, actor.TextOf(r.Parts), r.Run)
			}
			first = r
			counter := strings.TrimPrefix(a.to, "relay/")
			number := strings.TrimPrefix(counter, "count/") + " " + strings.Trim(actor.TextOf(r.Parts), "relay()")
			if other, taken := runs[number]; taken && other != r.Run {
				t.Fatalf("the number %s was told to the runs %s and %s", number, other, r.Run)
			}
			runs[number] = r.Run
		}
		session := a.to[strings.Index(a.to, "/")+1:]
		if most[session]++; a.key == "" {
			most[session] += len(a.calls) - 1
		}
	}
	for _, session := range []string{"x", "y"} {
		id := actor.NewID("count", session)
		j, err := store.Fold(n.log[id])
		if err != nil {
			t.Fatal(err)
		}
		if len(j.Runs) > 0 {
			t.Fatalf("%s still has %d runs open", id, len(j.Runs))
		}
		for _, item := range j.Kept {
			if v, _ := strconv.Atoi(string(item.Value)); v > most[session] {
				t.Fatalf("%s did %d things, and %d were wanted", id, v, most[session])
			}
		}
	}
}

// A call has one outcome, and what is wanted under a key is done once: across
// repeats, cancels and crashes, with cells stepped one message at a time.
func TestCallsAgainstModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := newNode(t, 2, agent("count", counter()), agent("relay", calling("count")))
		n.limits = dispatcher.DefaultLimits()
		n.limits.SnapshotBytes = 600 // so that they come back from snapshots, too
		n.limits.RememberBytes = rapid.SampledFrom([]int{1, 2000, 1 << 20}).Draw(rt, "remember")
		n.restart(2)
		n.drain()
		n.paused = true
		l := &callMachine{n: n, open: map[actor.CallID]bool{}}
		rt.Repeat(rapid.StateMachineActions(l))
		l.checkFinal(rt)
	})
}

// A request that is sent again is answered from the outcome that stands in the
// journal, even if the agent is gone by then and nobody has the actor in memory.
func TestOutcomeOutlivesAgent(t *testing.T) {
	lost := true
	n := newNode(t, 2, agent("count", counter()), agent("relay", calling("count")))
	key := ""
	for i := 0; key == "" && i < 100; i++ { // in which they live in two cells
		k := fmt.Sprint("s", i)
		if n.shard(actor.NewID("relay", k))%2 != n.shard(actor.NewID("count", k))%2 {
			key = k
		}
	}
	n.drop = func(e actor.Envelope) bool {
		a, ok := e.Body.(actor.Answered)
		return ok && lost && a.Reply.Status == actor.Succeeded && e.To.Agent == "relay"
	}
	id := n.send("relay/"+key, "now")
	if n.result(id) != "nothing" {
		t.Fatal("the answer was not lost")
	}
	lost = false
	for _, c := range n.cells {
		n.step(c, Agents{Definitions: n.agents[1:]})
		for _, act := range c.actors.ordered() {
			if act.id.Agent == "count" {
				c.deactivate(act, "idle")
			}
		}
	}
	for _, c := range n.cells {
		for _, other := range n.cells {
			n.step(c, CellRestarted{Cell: other.Self()})
		}
	}
	n.advance(20 * time.Second)
	n.want(id, "relay(1)")
}
