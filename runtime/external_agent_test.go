// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/signals"
	"github.com/troupe-run/troupe/upstream"
)

// completion returns the answer of a model or an external agent.
func completion(text string) actor.Answer {
	c := upstream.Completion{Text: text, Finish: upstream.FinishStop, Usage: upstream.Usage{Known: true, Input: 3, Output: 2, Total: 5}}
	return actor.Answer{Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: c.Encode()}}}
}

// askingOnce returns an agent that makes one ask and replies with the text of its
// answer.
func askingOnce(name string, ask actor.Ask) actor.Definition {
	return agent(name, func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) == 0 {
			ask := ask
			ask.Body = []byte("prompt: " + actor.TextOf(b.Call.Parts))
			return actor.Action{Asks: []actor.Ask{ask}}, nil
		}
		if a := answers[0][0]; a.Refusal != nil {
			return actor.EndRefused(a.Refusal), nil
		}
		c, err := upstream.DecodeCompletion(answers[0][0].Parts[0].Bytes)
		return actor.Complete(actor.Text(c.Text)), err
	})
}

func modelAgent() actor.Definition {
	return askingOnce("thinker", actor.Ask{Kind: actor.AskModel, Name: "m", Parts: actor.Text("new")})
}

func externalAgent(idempotent bool) actor.Definition {
	return askingOnce("worker", actor.Ask{Kind: actor.AskInvoke, Name: "worker", Idempotent: idempotent,
		Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(`{"url":"http://x"}`)}}})
}

// streamText returns a summary of the run's events, one per line.
func (n *node) streamText(run actor.CallID) string {
	var all []string
	for _, e := range n.events[run] {
		s := fmt.Sprintf("%d %s", e.Seq, e.Type)
		if e.Type == runs.AgentStreamDelta || e.Type == runs.AgentStateChanged {
			s += fmt.Sprintf(" %s%s", e.Name, e.Text)
		}
		if e.Type == runs.Attempt {
			s += fmt.Sprintf(" %d discards after %d", e.Attempt, e.Discards)
		}
		all = append(all, s)
	}
	return strings.Join(all, "\n")
}

func (n *node) wantStream(run actor.CallID, want ...string) {
	n.t.Helper()
	if got := n.streamText(run); got != strings.Join(want, "\n") {
		n.t.Errorf("got stream\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

func TestModelStreamIsPublished(t *testing.T) {
	n := newNode(t, 1, modelAgent())
	run := n.send("thinker", "why")
	m := n.external[0]
	if op := m.effect.Op.(Model); op.Name != "m" || string(op.Body) != "prompt: why" || op.Left != n.limits.ModelTimeoutDefault || !m.effect.Gated {
		t.Errorf("got model effect %+v", m.effect)
	}
	n.sendPiece(m, actor.Piece{Retry: actor.Refuse(actor.Busy, "later")})
	n.sendPiece(m, actor.Piece{Text: "be"})
	n.sendPiece(m, actor.Piece{Text: "cause"})
	n.sendPiece(m, actor.Piece{})
	n.now = n.now.Add(30 * time.Millisecond)
	n.sendOutcome(m, completion("because"))
	n.want(run, "because")
	n.wantStream(run, "1 user_input", "2 run_started", "3 llm_call_started", "4 attempt 2 discards after 0", "5 agent_stream_delta be",
		"6 agent_stream_delta cause", "7 llm_call_done", "8 run_done")
	done, end := n.events[run][6], n.events[run][7]
	if done.Text != "because" || done.Took != 30*time.Millisecond || done.Usage != (runs.Usage{Input: 3, Output: 2, Total: 5}) || end.Usage != done.Usage {
		t.Errorf("got llm_call_done %+v\nrun_done %+v", done, end)
	}
	n.sendPiece(m, actor.Piece{Text: "late"})
	if len(n.events[run]) != 8 {
		t.Errorf("got events after the end: %s", n.streamText(run))
	}
}

// The targets of all tool calls of a completion are recorded by ID.
func TestTargetsOfCompletionBecomeIDs(t *testing.T) {
	thinker := agent("thinker", func(_ actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) == 0 {
			return actor.Action{Asks: []actor.Ask{{Kind: actor.AskModel, Name: "m"}}}, nil
		}
		c, err := upstream.DecodeCompletion(answers[0][0].Parts[0].Bytes)
		text := ""
		for _, call := range c.Calls {
			text += call.Arguments
		}
		return actor.Complete(actor.Text(text)), err
	}, func(d *actor.Definition) { d.Callees = []string{"helper"} })
	n := newNode(t, 1, thinker, agent("helper", echo(), func(d *actor.Definition) { d.Title = "The Helper" }))
	run := n.send("thinker", "go")
	calls := []upstream.ToolCall{{ID: "1", Name: "text.echo", Arguments: `{"agent_id":"The Helper"}`}, {ID: "2", Name: "call_agent", Arguments: `{"agent_id":"The Helper"}`}}
	answer := upstream.Completion{Calls: calls, Finish: upstream.FinishCalls}
	n.sendOutcome(n.external[0], actor.Answer{Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: answer.Encode()}}})
	n.want(run, `{"agent_id":"The Helper"}{"agent_id":"helper"}`)
}

func TestRetryAfterCrashDiscardsStreamedPieces(t *testing.T) {
	n := newNode(t, 1, modelAgent())
	run := n.send("thinker", "why")
	n.sendPiece(n.external[0], actor.Piece{Text: "bec"})
	stale := n.external[0]
	n.restart(1)
	n.drain()
	m := n.external[0]
	if op := m.effect.Op.(Model); string(op.Body) != "prompt: why" || m.effect.Attempt != 2 {
		t.Errorf("got retried effect %+v", m.effect)
	}
	stale.cell = n.cells[0]
	n.sendPiece(stale, actor.Piece{Text: "from before"})
	n.sendPiece(m, actor.Piece{Text: "so"})
	n.restart(1)
	n.drain()
	n.sendPiece(n.external[0], actor.Piece{Text: "thus"})
	n.sendOutcome(n.external[0], completion("thus"))
	n.wantStream(run, "1 user_input", "2 run_started", "3 llm_call_started", "4 agent_stream_delta bec", "5 attempt 2 discards after 3",
		"6 agent_stream_delta so", "7 attempt 3 discards after 5", "8 agent_stream_delta thus", "9 llm_call_done", "10 run_done")
	n.want(run, "nothing") // its client is gone
	if r := n.runs[run]; r.Text != "thus" || r.Attempt != 3 {
		t.Errorf("got run %+v", r)
	}
}

// Each restart repeats a request under the next attempt, and only the outcome of the
// last attempt counts.
func TestFormerAttemptsDoNotAnswer(t *testing.T) {
	n := newNode(t, 1, modelAgent())
	run := n.send("thinker", "why")
	var former []externalCall
	for attempt := uint32(1); attempt <= 3; attempt++ {
		if attempt > 1 {
			former = append(former, n.external[0])
			n.restart(1)
			n.drain()
		}
		if got := n.external[0].effect.Attempt; got != attempt {
			t.Fatalf("after %d restarts: got attempt %d, want %d", attempt-1, got, attempt)
		}
		for _, o := range former {
			o.cell = n.cells[0]
			n.sendOutcome(o, completion("from before"))
		}
	}
	n.sendOutcome(n.external[0], completion("because"))
	if r := n.runs[run]; r.Text != "because" || r.Attempt != 3 {
		t.Errorf("got run %+v", r)
	}
}

// sendCallback sends a signal with a run's token, as an external agent does.
func (n *node) sendCallback(run actor.CallID, body string) actor.CallID {
	return n.send("worker", "", func(c *actor.Call) {
		c.Kind, c.Operation, c.Parent = actor.Signal, signals.OpCallAgent, run
		c.Parts = []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(body)}}
	})
}

func TestExternalAgentCallback(t *testing.T) {
	var seen []actor.Call
	helper := agent("helper", func(b actor.Begin, _ [][]actor.Answer) (actor.Action, error) {
		seen = append(seen, b.Call)
		return actor.Complete(actor.Text("done " + actor.TextOf(b.Call.Parts))), nil
	})
	caller := agent("caller", func(_ actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) == 0 {
			return actor.Action{Asks: []actor.Ask{{Kind: actor.AskCall, Name: "worker", Parts: actor.Text("work")}}}, nil
		}
		return actor.Complete(answers[0][0].Parts), nil
	})
	n := newNode(t, 2, externalAgent(false), helper, caller)
	root := n.send("caller/s", "go")
	op := n.external[0].effect.Op.(Invoke)
	run := op.Call.ID
	callback := func(body string) actor.CallID {
		return n.send("worker/s", "", func(c *actor.Call) {
			c.Kind, c.Operation, c.Parent = actor.Signal, signals.OpCallAgent, run
			c.Parts = []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(body)}}
		})
	}
	n.sendPiece(n.external[0], actor.Piece{State: "reading", Detail: `{"page":1}`})
	first := callback(`{"agent_id":"helper","message":"one"}`)
	n.want(first, "done one")
	n.want(callback(`{"agent_id":"caller","message":"you again"}`), "Cycle")
	n.want(callback(`{"agent_id":"missing","message":"x"}`), "NotFound")
	n.want(callback(`{"agent":"helper"}`), "Invalid")
	if r := n.replies[first]; len(seen) != 1 || r.Run != seen[0].ID {
		t.Fatalf("%d calls reached the helper, want 1; the reply is of run %s", len(seen), r.Run)
	}
	c := seen[0]
	if c.Root != root || c.Parent != run || actor.PathString(c.Path()) != "caller/s -> worker/s -> helper/s" || c.Budget >= op.Call.Budget || c.Left > op.Call.Left {
		t.Errorf("got call to the helper %+v", c)
	}
	n.sendOutcome(n.external[0], completion("worked"))
	n.want(root, "worked")
	n.want(callback(`{"agent_id":"helper","message":"too late"}`), "NotFound")
	if len(seen) != 1 {
		t.Error("an expired token made a call")
	}
	if got := n.streamText(run); !strings.Contains(got, "agent_state reading") || !strings.Contains(got, "agent_called_child") {
		t.Error(got)
	}
}

// slowHelper returns an agent that sleeps ten seconds before it answers.
func slowHelper() actor.Definition {
	return agent("helper", func(_ actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) == 0 {
			return actor.Action{Asks: []actor.Ask{{Kind: actor.AskSleep, Timeout: 10 * time.Second}}}, nil
		}
		return actor.Complete(actor.Text("slept")), nil
	})
}

func TestCallbackEndsWithExternalAgent(t *testing.T) {
	n := newNode(t, 1, externalAgent(false), slowHelper())
	run := n.send("worker", "go")
	callback := n.sendCallback(run, `{"agent_id":"helper","message":"one"}`)
	n.want(callback, "nothing")
	n.sendOutcome(n.external[0], completion("did not wait"))
	n.want(run, "did not wait")
	n.want(callback, "Stopped")
	if n.eventCounts[history.Cancel] > 0 { // the refusal is the only end of the call
		t.Error("the call was both answered and cancelled")
	}
	n.advance(time.Minute)
	for id, r := range n.runs {
		if !r.Status.Ended() {
			t.Errorf("run %s: got status %s, want an ended one", id, r.Status)
		}
	}
	// The call also ends if the run ends for another reason, here its deadline.
	run = n.send("worker", "go", func(c *actor.Call) { c.Left = 5 * time.Second })
	callback = n.sendCallback(run, `{"agent_id":"helper","message":"one"}`)
	n.advance(time.Minute)
	n.want(run, "Deadline")
	if got := n.result(callback); got != "Deadline" && got != "Stopped" {
		t.Errorf("added call: got %s, want Deadline or Stopped", got)
	}
}

// resend delivers the second attempt of a client's call from another node.
func (n *node) resend(c actor.Call) {
	n.inputs = append(n.inputs, func() {
		c.Attempt, c.Via = 2, n.cells[0].Self()
		n.step(n.cells[0], Deliver{actor.Envelope{From: actor.Address{Node: "other", Incarnation: 1}, To: c.To, Epoch: n.epoch, Body: actor.Request{Call: c}}})
	})
	n.drain()
}

// The outcome of an added call is recorded under the ID of its signal, even if no client
// waits for it, because the crash forgot that one does.
func TestOutcomeOfCallbackOutlivesCrash(t *testing.T) {
	n := newNode(t, 1, externalAgent(true), slowHelper())
	run := n.send("worker", "go")
	n.sendCallback(run, `{"agent_id":"helper","message":"one"}`)
	again := n.calls[len(n.calls)-1]
	n.advance(time.Second)
	n.restart(1)
	n.advance(15 * time.Second)
	again.Attempt = 2
	n.step(n.cells[0], Deliver{actor.Envelope{To: again.To, Body: actor.Request{Call: again}}})
	n.want(again.ID, "slept")
}

func TestRetriedCallbackMakesOneCall(t *testing.T) {
	n := newNode(t, 1, externalAgent(true), slowHelper())
	run := n.send("worker", "go")
	n.sendCallback(run, `{"agent_id":"helper","message":"one"}`)
	again := n.calls[len(n.calls)-1]
	n.resend(again)
	n.advance(time.Minute)
	called := 0
	for _, e := range n.events[run] {
		if e.Type == runs.AgentCalledChild {
			called++
		}
	}
	if n.want(again.ID, "slept"); called != 1 {
		t.Errorf("the helper was called %d times, want 1", called)
	}
}

// An external agent that is invoked again for the same run repeats its callbacks.
// Callbacks under the same key make one call, even after a crash.
func TestCallbackWithKeyMakesOneCall(t *testing.T) {
	n := newNode(t, 1, externalAgent(true), slowHelper())
	run := n.send("worker", "go")
	callback := func(message string) actor.CallID {
		return n.send("worker", "", func(c *actor.Call) {
			c.Kind, c.Operation, c.Parent = actor.Signal, signals.OpCallAgent, run
			c.Parts = []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(`{"agent_id":"helper","message":"` + message + `"}`)}}
			c.Idempotency = actor.Idempotency{Principal: "run", Route: "invoke", Key: "k", Body: actor.HashOf([]byte(message))}
		})
	}
	callback("one")
	second := callback("one")
	n.resend(n.calls[len(n.calls)-1])
	n.want(second, "nothing") // its retry waits too
	n.want(callback("another"), "Invalid")
	n.advance(time.Second)
	n.restart(1)
	n.drain()
	third, fourth := callback("one"), callback("one")
	n.advance(time.Minute)
	n.want(second, "nothing") // its client is gone
	n.want(third, "slept")
	n.want(fourth, "slept")
	fifth := callback("one")
	n.want(fifth, "slept")
	called := 0
	for _, e := range n.events[run] {
		if e.Type == runs.AgentCalledChild {
			called++
		}
	}
	if called != 1 || n.replies[third].Run != n.replies[fifth].Run {
		t.Errorf("the helper was called %d times, want 1:\n%s", called, n.streamText(run))
	}
}

// The total size of the callback requests that a run holds is bounded, even if all
// are refused.
func TestCallbackBytesAreBounded(t *testing.T) {
	n := newNode(t, 1, externalAgent(true), slowHelper())
	run := n.send("worker", "go")
	large, got := strings.Repeat("x", 1_000_000), ""
	for range 2 * callbackBytesMax / len(large) {
		if got = n.result(n.sendCallback(run, `{"agent_id":"missing","message":"`+large+`"}`)); got != "NotFound" {
			break
		}
	}
	if got != "Budget" {
		t.Errorf("got %s, want Budget", got)
	}
	n.sendOutcome(n.external[0], completion("all the same"))
	n.want(run, "all the same")
}

// A callback refused as Busy can be retried under its key. The retry makes the
// call.
func TestBusyCallbackCanBeRetried(t *testing.T) {
	n := newNode(t, 1, externalAgent(true), slowHelper())
	n.limits.MaxPendingPerActor = 1
	n.restart(1)
	run := n.send("worker", "go")
	n.send("helper", "running")
	n.send("helper", "queued")
	callback := func() actor.CallID {
		return n.send("worker", "", func(c *actor.Call) {
			c.Kind, c.Operation, c.Parent = actor.Signal, signals.OpCallAgent, run
			c.Parts = []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(`{"agent_id":"helper","message":"one"}`)}}
			c.Idempotency = actor.Idempotency{Principal: "run", Route: "invoke", Key: "k"}
		})
	}
	n.want(callback(), "Busy")
	n.advance(time.Minute)
	second := callback()
	n.advance(10 * time.Second)
	n.want(second, "slept")
	n.want(callback(), "slept")
}

func TestOnlyIdempotentInvokeIsRepeatedAfterCrash(t *testing.T) {
	for _, safe := range []bool{false, true} {
		n := newNode(t, 1, externalAgent(safe), slowHelper())
		run := n.send("worker", "go")
		n.sendPiece(n.external[0], actor.Piece{Text: "ab"})
		callback := n.sendCallback(run, `{"agent_id":"helper","message":"one"}`)
		n.restart(1)
		n.drain()
		r := n.runs[run]
		if safe {
			n.sendCallback(run, `{"agent_id":"helper","message":"one"}`)
			n.sendOutcome(n.external[0], completion("again"))
			if r = n.runs[run]; r.Text != "again" || !strings.Contains(n.streamText(run), "attempt 2 discards after 3") {
				t.Errorf("got run %+v\n%s", r, n.streamText(run))
			}
		} else if len(n.external) != 0 || r.Refusal == nil || r.Refusal.Reason != actor.Unknown {
			t.Errorf("got %d repeated requests and run %+v, want 0 and Unknown", len(n.external), r)
		}
		n.advance(time.Minute)
		n.want(callback, "nothing") // its client is gone
		for id, r := range n.runs {
			if !r.Status.Ended() {
				t.Errorf("safe %v: run %s: got status %s, want an ended one", safe, id, r.Status)
			}
		}
	}
}

func stateAgent(change ...func(*actor.Definition)) actor.Definition {
	return agent("stateful", func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		text := actor.TextOf(b.Call.Parts)
		var current string
		for _, k := range b.ActorState {
			current += k.Name + "=" + string(k.Value) + " "
		}
		name, value, ask := strings.Cut(text, "=")
		keep := []actor.StateItem{{Name: name, Value: []byte(value)}}
		switch {
		case !ask:
			return actor.Complete(actor.Text(current)), nil
		case len(answers) == 0:
			return actor.Action{Asks: []actor.Ask{{Kind: actor.AskSleep, Timeout: time.Second, Name: current}}, StateUpdates: keep}, nil
		default:
			done := actor.Complete(actor.Text(current))
			done.StateUpdates = []actor.StateItem{{Name: "last", Value: []byte(name)}}
			return done, nil
		}
	}, change...)
}

func TestActorStateIsVisibleToNextTurn(t *testing.T) {
	n := newNode(t, 1, stateAgent())
	set := func(text string) {
		t.Helper()
		id := n.send("stateful", text)
		n.restart(1) // the turn is replayed with the state at its start
		n.advance(2 * time.Second)
		if r := n.runs[id]; r.Status != runs.Done {
			t.Fatalf("%s: got run %+v, want done", text, r)
		}
	}
	set("b=1")
	set("a=2")
	set("b=3")
	n.want(n.send("stateful", "?"), "a=2 b=3 last=b ")
	set("a=")
	n.limits.SnapshotBytes = 1
	n.step(n.cells[0], Limits{n.limits})
	n.send("stateful", "?")
	n.restart(1)
	n.want(n.send("stateful", "?"), "b=3 last=a ")
	n.want(n.send("stateful", "no such name=1"), "Invalid")
	n.want(n.send("stateful", "big="+strings.Repeat("x", actor.StateItemValueBytesMax+1)), "Invalid")

	n = newNode(t, 1, stateAgent(func(d *actor.Definition) { d.Durability = actor.Volatile }))
	n.want(n.send("stateful", "a=1"), "Invalid")
	n = newNode(t, 1, stateAgent(func(d *actor.Definition) { d.Turns = actor.Interleaved }))
	n.want(n.send("stateful", "a=1"), "Invalid")
}

func TestDuplicateReportsJoinedRun(t *testing.T) {
	n := newNode(t, 1, modelAgent())
	key := func(c *actor.Call) { c.Idempotency = actor.Idempotency{Principal: "p", Route: "r", Key: "k"} }
	run := n.send("thinker", "why", key)
	repeat := n.send("thinker", "why", key)
	if n.joined[repeat] != run || n.joined[run] != (actor.CallID{}) {
		t.Errorf("got joined calls %v", n.joined)
	}
	n.sendOutcome(n.external[0], completion("so"))
	n.want(run, "so")
	n.want(repeat, "so")
}

func TestRunKeepsItsAgentDefinition(t *testing.T) {
	version := func(v string) actor.Definition {
		d := askingOnce("thinker", actor.Ask{Kind: actor.AskModel, Name: v})
		d.Hash = actor.HashOf([]byte(v))
		return d
	}
	n := newNode(t, 1, version("v1"))
	run := n.send("thinker", "why")
	n.agents, n.former = []actor.Definition{version("v2")}, []actor.Definition{version("v1")}
	n.restart(1)
	n.drain()
	if op := n.external[0].effect.Op.(Model); op.Name != "v1" {
		t.Errorf("the run resumed with model %s, want v1", op.Name)
	}
	n.agents, n.former = nil, nil // deleted; open runs end normally
	n.step(n.cells[0], Agents{})
	n.want(n.send("thinker", "new"), "NotFound")
	if len(n.cells[0].definitions.byHash) != 1 {
		t.Errorf("got %d definitions while one run uses its definition, want 1", len(n.cells[0].definitions.byHash))
	}
	n.sendOutcome(n.external[0], completion("so"))
	if r := n.runs[run]; r.Text != "so" {
		t.Errorf("got run %+v", r)
	}
	if len(n.cells[0].definitions.byHash) != 0 {
		t.Errorf("got %d unused definitions, want 0", len(n.cells[0].definitions.byHash))
	}
}

func TestSystemAgentCannotBeCalled(t *testing.T) {
	system := stateAgent(func(d *actor.Definition) { d.System = true })
	caller := agent("caller", func(_ actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) == 0 {
			return actor.Action{Asks: []actor.Ask{{Kind: actor.AskCall, Name: "stateful", Parts: actor.Text("a=1")}}}, nil
		}
		return actor.EndRefused(answers[0][0].Refusal), nil
	})
	n := newNode(t, 1, system, caller)
	n.want(n.send("caller", "go"), "NotFound")
}

func TestActorStateIsBounded(t *testing.T) {
	storing := agent("storing", func(b actor.Begin, _ [][]actor.Answer) (actor.Action, error) {
		var count, from int
		fmt.Sscanf(actor.TextOf(b.Call.Parts), "%d from %d", &count, &from) //nolint:errcheck // zeros keep nothing
		done := actor.Complete(actor.Text(fmt.Sprint(len(b.ActorState))))
		for i := range count {
			done.StateUpdates = append(done.StateUpdates, actor.StateItem{Name: fmt.Sprint(from + i), Value: []byte("x")})
		}
		return done, nil
	})
	n := newNode(t, 1, storing)
	n.want(n.send("storing", fmt.Sprintf("%d from 0", actor.StateUpdatesMax+1)), "Budget")
	for from := 0; from < actor.ActorStateItemsMax; from += actor.StateUpdatesMax {
		n.want(n.send("storing", fmt.Sprintf("%d from %d", actor.StateUpdatesMax, from)), fmt.Sprint(from))
	}
	n.want(n.send("storing", fmt.Sprintf("1 from %d", actor.ActorStateItemsMax)), "Budget")
	n.want(n.send("storing", "?"), fmt.Sprint(actor.ActorStateItemsMax))
	n.want(n.send("storing", fmt.Sprintf("%d from 0", actor.StateUpdatesMax)), fmt.Sprint(actor.ActorStateItemsMax)) // replaces items
	n.want(n.send("storing", fmt.Sprintf("2 from %d", actor.ActorStateItemsMax-1)), "Budget")

	n.limits.StateItemsMax = 3
	n.step(n.cells[0], Limits{n.limits})
	n.want(n.send("storing/s", "3 from 0"), "0")
	n.want(n.send("storing/s", "3 from 0"), "3")
	n.want(n.send("storing/s", "1 from 3"), "Budget")
	n.want(n.send("storing", "1 from 0"), fmt.Sprint(actor.ActorStateItemsMax)) // more than the new maximum, but not growing
	n.limits.StateItemsMax, n.limits.StateBytesMax = 9, 9
	n.step(n.cells[0], Limits{n.limits})
	n.want(n.send("storing/t", "4 from 0"), "0")
	n.want(n.send("storing/t", "1 from 10"), "Budget")
	n.want(n.send("storing/t", "4 from 0"), "4")
}

// While a call that an external agent added waits for a person, the agent's own
// clock stops too: the time of the invocation starts to run again when the
// call resumes. The host is given each new deadline.
func TestInvocationIsHeldWithItsCalls(t *testing.T) {
	const limit = 30 * time.Second
	ask := actor.Ask{Kind: actor.AskInvoke, Name: "worker", Timeout: limit, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(`{"url":"http://x"}`)}}}
	start := func(t *testing.T) (n *node, run, callback actor.CallID) {
		t.Helper()
		between := agent("between", calling("gate"))
		n = newNode(t, 2, askingOnce("worker", ask), between, agent("gate", waiting(5*time.Minute)))
		run = n.send("worker", "go")
		n.advance(10 * time.Second)
		return n, run, n.sendCallback(run, `{"agent_id":"between","message":"one"}`) // held two levels below
	}
	signal := func(n *node) {
		for id, r := range n.runs {
			if r.Actor == actor.NewID("gate", "") && !r.Status.Ended() {
				n.send("gate", "yes", func(c *actor.Call) { c.Kind, c.Parent, c.Operation = actor.Signal, id, "go" })
			}
		}
	}
	wantAdjusted := func(n *node, want ...actor.Duration) {
		t.Helper()
		if !slices.Equal(n.adjusted, want) {
			t.Errorf("got adjusted times %v, want %v", n.adjusted, want)
		}
	}
	t.Run("resumed by a signal", func(t *testing.T) {
		n, run, callback := start(t)
		n.advance(2 * time.Minute)
		n.want(callback, "nothing")
		signal(n)
		n.want(callback, "between(went yes)")
		wantAdjusted(n, 5*time.Minute+20*time.Second, 20*time.Second)
		n.advance(19 * time.Second)
		if len(n.aborted) > 0 {
			t.Error("the invocation was aborted within its time")
		}
		n.sendOutcome(n.external[0], completion("approved"))
		if r := n.runs[run]; r.Text != "approved" {
			t.Errorf("got run %+v", r)
		}
	})
	t.Run("time runs on after the signal", func(t *testing.T) {
		n, run, _ := start(t)
		n.advance(2 * time.Minute)
		signal(n)
		n.advance(20 * time.Second)
		if r := n.runs[run]; r.Refusal == nil || r.Refusal.Reason != actor.Deadline || len(n.aborted) != 1 {
			t.Errorf("got run %+v, aborted %v", r, n.aborted)
		}
	})
	t.Run("hold ends by itself", func(t *testing.T) {
		n, run, callback := start(t)
		n.advance(5 * time.Minute)
		n.want(callback, "between(went Deadline)")
		n.advance(19 * time.Second)
		if n.runs[run].Status.Ended() {
			t.Fatalf("got run %+v", n.runs[run])
		}
		n.advance(time.Second)
		if r := n.runs[run]; r.Refusal == nil || r.Refusal.Reason != actor.Deadline {
			t.Errorf("got run %+v", r)
		}
	})
	t.Run("two calls held", func(t *testing.T) {
		n, run, _ := start(t)
		second := n.sendCallback(run, `{"agent_id":"gate/2","message":"two"}`)
		n.advance(time.Minute)
		signal(n)
		n.advance(time.Minute)
		if n.runs[run].Status.Ended() {
			t.Fatal("the invocation ended while the second call was held")
		}
		for id, r := range n.runs {
			if r.Actor == actor.NewID("gate", "2") {
				n.send("gate/2", "yes", func(c *actor.Call) { c.Kind, c.Parent, c.Operation = actor.Signal, id, "go" })
			}
		}
		n.want(second, "went yes")
		wantAdjusted(n, 5*time.Minute+20*time.Second, 20*time.Second)
	})
	t.Run("safe agent after a crash", func(t *testing.T) {
		ask.Idempotent = true
		n, run, _ := start(t)
		n.advance(2 * time.Minute)
		n.restart(2)
		n.drain()
		again := n.external[0]
		if left := again.effect.Op.(Invoke).Left; left != 3*time.Minute+20*time.Second {
			t.Errorf("the second attempt has %v, want the rest of the hold and of its time", left)
		}
		n.advance(2 * time.Minute)
		n.adjusted = nil
		signal(n)
		wantAdjusted(n, 20*time.Second)
		n.sendCallback(run, `{"agent_id":"between","message":"one"}`)
		n.sendOutcome(again, completion("approved"))
		if r := n.runs[run]; r.Text != "approved" {
			t.Errorf("got run %+v", r)
		}
	})
}

// Copies of one callback may arrive through two cells, without an idempotency key. Each of
// them gets the answer at once, also a copy that arrives after it.
func TestCopiesOfCallbackAreAllAnswered(t *testing.T) {
	for _, durable := range []bool{true, false} {
		for first := range 2 { // one of the cells owns the actor
			worker := externalAgent(true)
			if !durable {
				worker.Durability = actor.Volatile
			}
			n := newNode(t, 2, worker, slowHelper())
			run := n.send("worker", "go")
			callCount++
			id := actor.NewCallID(n.now, 99, callCount)
			call := actor.Call{ID: id, Root: id, Parent: run, To: n.calls[0].To, Operation: signals.OpCallAgent, Kind: actor.Signal, Attempt: 1, Origin: actor.Agent,
				Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(`{"agent_id":"helper","message":"one"}`)}}}
			answers := map[actor.Address]string{}
			n.onRespond = func(c *Cell, reply *actor.Reply) {
				if reply.Call == id {
					answers[c.Self()] += actor.TextOf(reply.Parts) + ";"
				}
			}
			copyTo := func(c *Cell) {
				n.step(c, Deliver{actor.Envelope{To: call.To, Body: actor.Request{Call: call}}})
				n.drain()
			}
			copyTo(n.cells[first])
			copyTo(n.cells[1-first])
			n.advance(10 * time.Second)
			for _, c := range n.cells {
				copyTo(c)
				if got := answers[c.Self()]; got != "slept;slept;" {
					t.Errorf("durable %v, first copy at cell %d: cell %d answers %q, want both copies answered", durable, first, c.Self().Cell, got)
				}
			}
		}
	}
}
