// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/signals"
	"github.com/troupe-run/troupe/upstream"
)

// performTools gives each tool call that is in progress a result.
func (n *node) performTools() {
	for _, e := range n.external {
		if _, ok := e.effect.Op.(Tool); ok {
			n.sendOutcome(e, actor.Answer{Parts: actor.Text("noted")})
		}
	}
}

// lastInvocation returns the last effect that invokes the agent.
func (n *node) lastInvocation() externalCall {
	n.t.Helper()
	for i := len(n.external) - 1; i >= 0; i-- {
		if _, ok := n.external[i].effect.Op.(Invoke); ok {
			return n.external[i]
		}
	}
	n.t.Fatal("the agent is not invoked")
	return externalCall{}
}

func (n *node) parkedReason(agent string) string {
	all := n.cells[0].actors.find(actor.NewID(agent, "")).journal.Runs
	if len(all) == 0 {
		return ""
	}
	return all[0].Parked
}

// A repeated invocation that ends, or cannot be made, does not deny what the former one performed.
func TestUnmatchedEffectParksEnd(t *testing.T) {
	unreachable := actor.Answer{Refusal: actor.RefuseUnavailable(time.Second, "agent worker cannot be reached: connection refused")}
	failed := actor.Answer{Refusal: actor.Refuse(actor.Rejected, "agent worker reported no")}
	for _, c := range []struct {
		name          string
		before, again string // requests of the first invocation, and of the second
		answer        actor.Answer
		safe          bool
		reason        string // "": the run ends
	}{
		{"unreachable", "note 7", "", unreachable, false, "outcome unknown: agent worker cannot be invoked again: agent worker cannot be reached: connection refused\nperformed: note {\"amount\":7}"},
		{"unreachable, though safe", "note 7", "", unreachable, true, "cannot be invoked again"},
		{"timed out", "note 7", "", actor.Answer{Refusal: actor.Refuse(actor.Deadline, "no time is left")}, false, "no time is left\nperformed: note"},
		{"unreachable, nothing performed", "payments.transfer 7", "", unreachable, false, ""},
		{"unreachable after a reading", "look 7", "", unreachable, false, ""},
		{"ends", "note 7", "", completion("done"), false, "was invoked again and ended without the requests that it made before"},
		{"ends, safe", "note 7", "", completion("done"), true, ""},
		{"fails", "note 7", "", failed, false, "it reported: agent worker reported no\nperformed: note {\"amount\":7}"},
		{"fails, safe", "note 7", "", failed, true, ""},
		{"ends with a waiting approval", "payments.transfer 7", "", completion("done"), false, ""},
		{"ends after its requests", "note 7", "note 7", completion("done"), false, ""},
		{"fails after its requests", "note 7", "note 7", failed, false, ""},
		{"breaks", "note 7", "", actor.Answer{Refusal: actor.Refuse(actor.Unknown, "connection lost")}, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, run := nodeRepeating(t, askingOnce("worker", actor.Ask{Kind: actor.AskInvoke, Name: "worker", Idempotent: true,
				Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: upstream.Target{URL: "http://x", Safe: c.safe}.Encode()}}}))
			n.add(run, c.before)
			n.performTools()
			n.restart(1)
			n.drain()
			if c.again != "" {
				n.add(run, c.again)
			}
			n.sendOutcome(n.lastInvocation(), c.answer)
			if got := n.parkedReason("worker"); (got == "") != (c.reason == "") || !strings.Contains(got, c.reason) {
				t.Fatalf("got %q, want %q", got, c.reason)
			}
			if r := n.runs[run]; r.Status.Ended() != (c.reason == "") {
				t.Errorf("got %s", r.Status)
			}
		})
	}
}

// A retry invokes the agent again. It may be unreachable again; once it makes its request, the run ends. An agent that
// ends without it after a retry is accepted: a person has seen what was performed. What a reason quotes accepts nothing.
func TestRetryAfterUnmatchedEnd(t *testing.T) {
	for _, ends := range []bool{false, true} {
		n, run := repeatingNode(t)
		n.add(run, "note 7")
		n.performTools()
		n.restart(1)
		n.drain()
		retry := func() {
			t.Helper()
			n.external = nil
			n.want(n.send("worker", "", func(c *actor.Call) { c.Kind, c.Operation, c.Parent = actor.Signal, signals.OpRetry, run }), "")
		}
		unreachable := actor.Answer{Refusal: actor.RefuseUnavailable(time.Second, "agent worker was invoked again and ended without the requests that it made before")}
		n.sendOutcome(n.lastInvocation(), unreachable)
		retry()
		n.sendOutcome(n.lastInvocation(), unreachable)
		if n.parkedReason("worker") == "" {
			t.Fatal("the run is not parked again")
		}
		retry()
		if ends {
			n.sendOutcome(n.lastInvocation(), completion("early"))
			if n.parkedReason("worker") == "" {
				t.Fatal("the end is accepted before a person saw it")
			}
			retry()
		} else {
			n.add(run, "note 7")
		}
		n.sendOutcome(n.lastInvocation(), completion("done"))
		if r := n.runs[run]; r.Status != runs.Done || r.Text != "done" || len(n.asks(run)) != 1 {
			t.Errorf("got %s %q %v, requests %q", r.Status, r.Text, r.Refusal, n.asks(run))
		}
	}
}

// An agent that registers at another address gets its open runs there: those that a start continues,
// and those that did not reach the former one. An invocation that was made there ends there.
func TestOpenRunFollowsItsAgent(t *testing.T) {
	at := func(url string) actor.Definition {
		def := externalAgent(true)
		def.Kind, def.Target = actor.External, upstream.Target{URL: url}.Encode()
		return def
	}
	url := func(e externalCall) string { return string(e.effect.Op.(Invoke).Target) }
	n := newNode(t, 1, at("http://old"))
	run := n.send("worker", "go")
	n.agents[0] = at("http://new")
	n.restart(1)
	n.drain()
	if got := url(n.lastInvocation()); got != `{"url":"http://new"}` {
		t.Errorf("after a start: invoked at %s", got)
	}
	n.agents[0] = at("http://newer")
	n.step(n.cells[0], Agents{Definitions: n.agents})
	former := n.lastInvocation()
	n.sendOutcome(former, actor.Answer{Refusal: actor.RefuseUnavailable(time.Second, "cannot be reached")})
	last := n.lastInvocation()
	if got := url(last); got != `{"url":"http://newer"}` || last.effect.Attempt != former.effect.Attempt+1 {
		t.Errorf("after a registration: attempt %d at %s", last.effect.Attempt, got)
	}
	n.agents[0] = at("http://newest")
	n.step(n.cells[0], Agents{Definitions: n.agents})
	n.sendOutcome(last, completion("done"))
	if r := n.runs[run]; r.Status != runs.Done {
		t.Errorf("got %s %v", r.Status, r.Refusal)
	}
	run = n.send("worker", "go")
	n.sendOutcome(n.lastInvocation(), actor.Answer{Refusal: actor.RefuseUnavailable(time.Second, "cannot be reached")})
	if r := n.runs[run]; r.Status != runs.Failed {
		t.Errorf("got %s at the only address", r.Status)
	}
}

// Two requests that differ have texts that differ, whatever their length and the place of the difference.
func TestRequestTexts(t *testing.T) {
	long := strings.Repeat("x", 5000)
	for _, c := range []struct{ a, b, wantA, wantB string }{
		{"1", "2", "pay 1", "pay 2"},
		{"1 key k1", "1 key k2", "pay 1 (idempotency_key k1)", "pay 1 (idempotency_key k2)"},
		{long, "2", "pay " + long[:requestTextMax] + "… (cut: 1200 of 5000 bytes)", "pay 2"},
		{long + "1", long + "2", "pay …" + long[:requestTextMax-1] + "1 (cut: 1200 of 5001 bytes)", "pay …" + long[:requestTextMax-1] + "2 (cut: 1200 of 5001 bytes)"},
		{long + "1" + long, long + "2" + long, "pay …" + long[:sharedTextMax] + "1" + long[:requestTextMax-sharedTextMax-1] + "… (cut: 1200 of 10001 bytes)", "pay …" + long[:sharedTextMax] + "2" + long[:requestTextMax-sharedTextMax-1] + "… (cut: 1200 of 10001 bytes)"},
		{long + "1", "", "pay " + long[:requestTextMax] + "… (cut: 1200 of 5001 bytes)", "pay "},
	} {
		request := func(text string) shownRequest {
			arguments, key, _ := strings.Cut(text, " key ")
			return shownRequest{"pay", arguments, key}
		}
		if a, b := requestTexts(request(c.a), request(c.b)); a != c.wantA || b != c.wantB {
			t.Errorf("got\n%s\n%s\nwant\n%s\n%s", a, b, c.wantA, c.wantB)
		}
	}
}

// The time that an agent gives a call is no part of the request.
func TestRepeatedCallWithOtherTime(t *testing.T) {
	n, run := repeatingNode(t)
	call := func(ms int) {
		n.send("worker", "", func(c *actor.Call) {
			c.Kind, c.Operation, c.Parent = actor.Signal, signals.OpCallAgent, run
			c.Parts = []actor.Part{{Media: actor.MediaJSON, Bytes: fmt.Appendf(nil, `{"agent_id":"helper","message":"a","timeout_ms":%d}`, ms)}}
		})
	}
	call(30_000)
	n.restart(1)
	n.drain()
	call(29_000)
	n.advance(repeatWait + time.Second)
	if got := n.asks(run); len(got) != 1 || n.parkedReason("worker") != "" {
		t.Errorf("got requests %q, parked %q, want one", got, n.parkedReason("worker"))
	}
}
