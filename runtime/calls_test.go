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

// counter returns an agent that counts its completed messages and replies with the
// count.
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

// request is an operation of a client. A request with a key MUST be performed once,
// however often the client sends the request.
type request struct {
	to, text  string
	key       string
	calls     []actor.CallID
	cancelled bool
}

// callMachine is a rapid state machine: clients send and repeat requests, inputs
// are stepped one at a time, cells crash and restart from the log, time passes. Its
// model counts the requests and their answers.
type callMachine struct {
	n        *node
	requests []*request
	open     map[actor.CallID]bool // sent to the current cells and not cancelled
}

func (m *callMachine) submit(t *rapid.T, a *request) {
	id := m.n.send(a.to, a.text, func(c *actor.Call) {
		c.Principal = "client"
		if a.key != "" {
			c.Idempotency = actor.Idempotency{Principal: "client", Route: "messages", Key: a.key, Body: actor.HashOf([]byte(a.text))}
		}
	})
	a.calls = append(a.calls, id)
	m.open[id] = true
}

func (m *callMachine) Ask(t *rapid.T) {
	a := &request{to: rapid.SampledFrom([]string{"count/x", "count/y", "relay/x", "relay/y"}).Draw(t, "to"),
		text: rapid.SampledFrom([]string{"now", "slow"}).Draw(t, "text")}
	if rapid.IntRange(0, 3).Draw(t, "keyed") > 0 {
		a.key = fmt.Sprint("key-", len(m.requests))
	}
	m.requests = append(m.requests, a)
	m.submit(t, a)
}

func (m *callMachine) AskAgain(t *rapid.T) {
	keyed := slices.DeleteFunc(slices.Clone(m.requests), func(a *request) bool { return a.key == "" })
	if len(keyed) == 0 {
		t.Skip("no request has a key")
	}
	m.submit(t, rapid.SampledFrom(keyed).Draw(t, "repeated"))
}

func (m *callMachine) Cancel(t *rapid.T) {
	if len(m.requests) == 0 {
		t.Skip("nothing to cancel")
	}
	a := rapid.SampledFrom(m.requests).Draw(t, "request")
	id := rapid.SampledFrom(a.calls).Draw(t, "call")
	to, _ := actor.ParseID(a.to)
	m.n.inputs = append(m.n.inputs, func() {
		m.n.step(m.n.cells[0], Deliver{actor.Envelope{To: to, Body: actor.Cancel{Call: id, Reason: actor.Stopped}}})
	})
	a.cancelled = true
	delete(m.open, id)
}

func (m *callMachine) Take(t *rapid.T) {
	for range rapid.IntRange(1, 6).Draw(t, "inputs") {
		if len(m.n.inputs) > 0 {
			in := m.n.inputs[0]
			m.n.inputs = m.n.inputs[1:]
			in()
		}
	}
}

func (m *callMachine) Crash(*rapid.T) {
	m.n.restart(2)
	clear(m.open) // the crash closed the connections of all clients
}

func (m *callMachine) Pass(t *rapid.T) {
	m.n.paused = false
	m.n.advance(time.Duration(rapid.IntRange(1, 3000).Draw(t, "ms")) * time.Millisecond)
	m.n.paused = true
}

// Check checks two properties of each journal after each action: no run is open
// twice, and no run is both open and ended.
func (m *callMachine) Check(t *rapid.T) {
	for id, saved := range m.n.log {
		j, err := store.Fold(saved)
		if err != nil {
			t.Fatalf("%s: %v", id, err)
		}
		for i, run := range j.Runs {
			if j.HasEnded(run.Call.ID) || slices.ContainsFunc(j.Runs[:i], func(o *store.Run) bool { return o.Call.ID == run.Call.ID }) {
				t.Fatalf("%s: run %s is open twice, or open and ended", id, run.Call.ID)
			}
		}
	}
}

// checkFinal checks the final state after all work has ended.
func (m *callMachine) checkFinal(t *rapid.T) {
	n := m.n
	n.paused = false
	n.advance(2 * time.Minute)
	for id := range m.open {
		if _, ok := n.replies[id]; !ok {
			t.Fatalf("call %s was never answered", id.Short())
		}
	}
	// Each count belongs to one run, and no count exceeds the number of requests.
	runs, limit := map[string]actor.CallID{}, map[string]int{}
	for _, a := range m.requests {
		first := actor.Reply{}
		for _, id := range a.calls {
			r, ok := n.replies[id]
			if !ok || r.Status != actor.Succeeded {
				continue
			}
			if !first.Run.IsZero() && (first.Run != r.Run || actor.TextOf(first.Parts) != actor.TextOf(r.Parts)) {
				t.Fatalf("key %s has two answers: %s of run %s, %s of run %s", a.key, actor.TextOf(first.Parts), first.Run, actor.TextOf(r.Parts), r.Run)
			}
			first = r
			counter := strings.TrimPrefix(a.to, "relay/")
			number := strings.TrimPrefix(counter, "count/") + " " + strings.Trim(actor.TextOf(r.Parts), "relay()")
			if other, used := runs[number]; used && other != r.Run {
				t.Fatalf("count %s was returned to runs %s and %s", number, other, r.Run)
			}
			runs[number] = r.Run
		}
		session := a.to[strings.Index(a.to, "/")+1:]
		if limit[session]++; a.key == "" {
			limit[session] += len(a.calls) - 1
		}
	}
	for _, session := range []string{"x", "y"} {
		id := actor.NewID("count", session)
		j, err := store.Fold(n.log[id])
		if err != nil {
			t.Fatal(err)
		}
		if len(j.Runs) > 0 {
			t.Fatalf("%s: got %d open runs, want 0", id, len(j.Runs))
		}
		for _, item := range j.ActorState {
			if v, _ := strconv.Atoi(string(item.Value)); v > limit[session] {
				t.Fatalf("%s: got count %d, want at most %d", id, v, limit[session])
			}
		}
	}
}

// A call has one outcome, and requests under one key are performed once. Both hold
// across duplicates, cancels and crashes, with cells stepped one input at a time.
func TestCallsAgainstModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := newNode(t, 2, agent("count", counter()), agent("relay", calling("count")))
		n.limits = dispatcher.DefaultLimits()
		n.limits.SnapshotBytes = 600 // so that recovery also reads snapshots
		n.limits.RememberBytes = rapid.SampledFrom([]int{1, 2000, 1 << 20}).Draw(rt, "remember")
		n.limits.ActorBytesMax = rapid.SampledFrom([]int{1, 5000, 1 << 30}).Draw(rt, "memory")
		n.restart(2)
		n.drain()
		n.paused = true
		m := &callMachine{n: n, open: map[actor.CallID]bool{}}
		rt.Repeat(rapid.StateMachineActions(m))
		m.checkFinal(rt)
	})
}

// A retried request is answered from the outcome in the journal, even if its agent
// was deleted and its actor is not in memory.
func TestOutcomeOutlivesAgent(t *testing.T) {
	dropReplies := true
	n := newNode(t, 2, agent("count", counter()), agent("relay", calling("count/other")))
	key := ""
	for i := 0; key == "" && i < 100; i++ { // actors in two different cells
		k := fmt.Sprint("s", i)
		if n.shard(actor.NewID("relay", k))%2 != n.shard(actor.NewID("count", "other"))%2 {
			key = k
		}
	}
	n.drop = func(e actor.Envelope) bool {
		a, ok := e.Body.(actor.Answered)
		return ok && dropReplies && a.Reply.Status == actor.Succeeded && e.To.Agent == "relay"
	}
	id := n.send("relay/"+key, "now")
	if n.result(id) != "nothing" {
		t.Fatal("the reply was not dropped")
	}
	dropReplies = false
	for _, c := range n.cells {
		n.step(c, Agents{Definitions: n.agents[1:]})
		for _, act := range c.actors.ordered() {
			if act.id.Agent == "count" {
				act.deactivate(c, "idle")
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
