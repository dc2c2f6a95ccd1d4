// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/signals"
	"github.com/troupe-run/troupe/tools"
)

// repeatingNode is a node with an external agent that may be invoked twice, tools with and
// without an approval, and an agent to call.
func repeatingNode(t *testing.T) (*node, actor.CallID) { return nodeRepeating(t, externalAgent(true)) }

func nodeRepeating(t *testing.T, worker actor.Definition) (*node, actor.CallID) {
	transfer, note, look := pay, pay, pay
	transfer.OnFailure = tools.ReturnError
	note.Name, note.Policy, note.OnFailure = "note", "allow", tools.ReturnError
	look.Name, look.Policy, look.OnFailure, look.Idempotent = "look", "allow", tools.ReturnError, true
	n := newNode(t, 1, worker, slowHelper())
	n.tools = declared(transfer, note, look)
	n.restart(1)
	return n, n.send("worker", "go")
}

// add makes a request of the agent: "tool amount", or "helper message"; "#key" may follow.
func (n *node) add(run actor.CallID, request string) actor.CallID {
	request, key, keyed := strings.Cut(request, " #")
	name, argument, _ := strings.Cut(request, " ")
	return n.send("worker", "", func(c *actor.Call) {
		c.Kind, c.Operation, c.Parent = actor.Signal, signals.OpAddTool, run
		content := fmt.Appendf(nil, `{"tool_name":%q,"args":{"amount":%s}}`, name, argument)
		switch name {
		case "helper":
			c.Operation, content = signals.OpCallAgent, fmt.Appendf(nil, `{"agent_id":"helper","message":%q}`, argument)
		case tools.AgentCall:
			content = fmt.Appendf(nil, `{"tool_name":"agent_call","args":{"agent":"helper","skill":"look","input":{"at":%s}}}`, argument)
		case tools.AgentPoll:
			content = []byte(`{"tool_name":"agent_poll","args":{}}`)
		}
		if keyed {
			c.Idempotency = actor.Idempotency{Principal: "p", Route: "r", Key: key, Body: actor.HashOf(content)}
		}
		c.Parts = []actor.Part{{Media: actor.MediaJSON, Bytes: content}}
	})
}

// asks returns the requests that the run has recorded.
func (n *node) asks(run actor.CallID) []string {
	var all []string
	for _, e := range n.events[run] {
		switch e.Type {
		case runs.ToolCallCreated:
			all = append(all, e.Name+" "+e.Text)
		case runs.AgentCalledChild:
			all = append(all, "helper")
		}
	}
	return all
}

// An external agent that is invoked again after a restart makes its requests again. Each is
// performed once, in whatever order they come, and only what it did not request before is new.
func TestRepeatedRequestsAreMatched(t *testing.T) {
	const payment = "payments.transfer "
	for _, c := range []struct {
		name           string
		before, again  []string
		recorded       int // requests recorded in the end
		parked, refuse bool
	}{
		{name: "the same one", before: []string{payment + "1"}, again: []string{payment + "1"}, recorded: 1},
		{name: "other spelling", before: []string{payment + "1.50"}, again: []string{payment + "15e-1"}, recorded: 1},
		{name: "another order", before: []string{payment + "1", payment + "2", "note 3"}, again: []string{"note 3", payment + "2", payment + "1"}, recorded: 3},
		{name: "equal ones", before: []string{payment + "1", payment + "1"}, again: []string{payment + "1", payment + "1"}, recorded: 2},
		{name: "one equal one more", before: []string{payment + "1"}, again: []string{payment + "1", payment + "1"}, recorded: 2},
		{name: "more in parallel", before: []string{payment + "1"}, again: []string{payment + "2", payment + "1"}, recorded: 2},
		{name: "calls of an agent", before: []string{"helper a", "helper b"}, again: []string{"helper b", "helper a"}, recorded: 2},
		{name: "with keys", before: []string{payment + "1 #a", payment + "1 #b"}, again: []string{payment + "1 #b", payment + "1 #a", payment + "2 #c"}, recorded: 3},
		{name: "a key and none", before: []string{payment + "1 #a"}, again: []string{payment + "1"}, recorded: 1, parked: true},
		{name: "other arguments", before: []string{payment + "1"}, again: []string{payment + "2"}, recorded: 1, parked: true},
		{name: "another tool", before: []string{payment + "1"}, again: []string{"note 1"}, recorded: 1, parked: true},
		{name: "another agent message", before: []string{"helper a"}, again: []string{"helper b"}, recorded: 1, parked: true},
		{name: "without waiting", before: []string{"agent_call 1", "agent_call 2"}, again: []string{"agent_call 2", "agent_call 1"}, recorded: 2},
		{name: "another one without waiting", before: []string{"agent_call 1"}, again: []string{"agent_call 2"}, recorded: 1, parked: true},
		{name: "a poll", before: []string{"agent_call 1", "agent_poll "}, again: []string{"agent_poll ", "agent_call 1"}, recorded: 2},
		{name: "a poll before", before: []string{"agent_poll "}, again: []string{payment + "2"}, recorded: 2},
		{name: "a poll after", before: []string{payment + "1"}, again: []string{"agent_poll ", payment + "1"}, recorded: 2},
		{name: "a reading one before", before: []string{"look 1"}, again: []string{payment + "2"}, recorded: 2},
		{name: "a reading one after", before: []string{payment + "1"}, again: []string{"look 2", payment + "1"}, recorded: 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, run := repeatingNode(t)
			for _, request := range c.before {
				n.add(run, request)
			}
			n.restart(1)
			n.drain()
			var signals []actor.CallID
			for _, request := range c.again {
				signals = append(signals, n.add(run, request))
			}
			n.advance(repeatWait + time.Second)
			if got := n.asks(run); len(got) != c.recorded {
				t.Errorf("got requests %q, want %d", got, c.recorded)
			}
			parked := n.cells[0].actors.find(actor.NewID("worker", "")).journal.Runs[0].Parked
			if (parked != "") != c.parked {
				t.Fatalf("got parked %q", parked)
			}
			if !c.parked {
				return
			}
			n.want(signals[0], "Unknown")
			r := n.runs[run]
			if r.Refusal == nil || r.Refusal.Reason != actor.Unknown || len(n.aborted) != 1 {
				t.Errorf("got %v, %d aborted", r.Refusal, len(n.aborted))
			}
			for _, text := range []string{"before: ", "now: ", c.again[0][strings.IndexByte(c.again[0], ' ')+1:]} {
				if !strings.Contains(r.Refusal.Detail, text) {
					t.Errorf("the reason %q lacks %q", r.Refusal.Detail, text)
				}
			}
		})
	}
}

// The repeat of a request is answered as the first one: with the ID of the recorded tool call,
// or with the answer of the agent that was called.
func TestRepeatedRequestGetsRecordedAnswer(t *testing.T) {
	n, run := repeatingNode(t)
	first := n.add(run, "payments.transfer 1")
	n.add(run, "helper a")
	n.advance(15 * time.Second)
	n.restart(1)
	n.drain()
	n.want(n.add(run, "helper a"), "slept")
	again := n.add(run, "payments.transfer 1")
	n.want(again, n.result(first))
	n.resend(n.calls[len(n.calls)-1])
	if got := n.asks(run); len(got) != 2 {
		t.Errorf("a retry of the repeated signal added a request: %q", got)
	}
	// The person approves once, although the agent has asked twice.
	if all := n.pending(); len(all) != 1 {
		t.Fatalf("got %d approvals, want 1", len(all))
	}
	n.decide(n.pending()[0], true)
	performed := 0
	for _, e := range n.external {
		if _, ok := e.effect.Op.(Tool); ok {
			performed++
		}
	}
	if performed != 1 {
		t.Errorf("the tool was performed %d times", performed)
	}
}

// The process of the former invocation may not notice that the server was restarted. Its
// requests are refused, so what it asks late is not performed beside what the new one asks. A
// request that does not name its invocation is taken for an equal one of the other.
func TestRequestOfFormerInvocation(t *testing.T) {
	for _, c := range []struct {
		invocations []uint32 // of two equal requests after a restart
		results     []string
		recorded    int
	}{
		{[]uint32{1, 2}, []string{"Stopped", "nothing"}, 1},
		{[]uint32{2, 1}, []string{"nothing", "Stopped"}, 1},
		{[]uint32{2, 2}, []string{"nothing", "nothing"}, 2}, // the agent means two
		{[]uint32{0, 0}, []string{"nothing", "nothing"}, 1},
	} {
		n, run := repeatingNode(t)
		n.add(run, "look 9") // the time passes until it notices the request
		n.restart(1)
		n.drain()
		if op := n.external[0].effect.Op.(Invoke); op.Attempt != 2 {
			t.Fatalf("got invocation %d", op.Attempt)
		}
		n.add(run, "look 9")
		before := len(n.asks(run))
		for i, invocation := range c.invocations {
			id := n.send("worker", "", func(call *actor.Call) {
				call.Kind, call.Operation, call.Parent = actor.Signal, signals.OpCallAgent, run
				call.Parts = []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(`{"agent_id":"helper","message":"a"}`)}}
				call.Extensions = call.Extensions.WithInvocation(invocation)
			})
			n.want(id, c.results[i])
		}
		if got := len(n.asks(run)) - before; got != c.recorded {
			t.Errorf("invocations %v: %d requests recorded, want %d", c.invocations, got, c.recorded)
		}
	}
}

// A copy of a request may arrive after the agent was invoked once more. It gets the answer of the first copy.
// It does not count as an equal request of the new invocation, which would then perform one more.
func TestLateCopyOfRepeatedRequest(t *testing.T) {
	n, run := repeatingNode(t)
	n.add(run, "helper a")
	n.add(run, "helper a")
	n.advance(30 * time.Second)
	n.restart(1)
	n.drain()
	n.want(n.add(run, "helper a"), "slept")
	request := n.calls[len(n.calls)-1]
	i := slices.IndexFunc(n.external, func(e externalCall) bool { _, ok := e.effect.Op.(Invoke); return ok })
	n.sendPiece(n.external[i], actor.Piece{Retry: actor.RefuseUnavailable(0, "the connection was reset")})
	n.resend(request)
	n.want(request.ID, "slept")
	for range 2 {
		n.want(n.add(run, "helper a"), "slept")
	}
	if got := n.asks(run); len(got) != 2 {
		t.Errorf("got requests %q, want 2", got)
	}
}

// A parked run keeps its approval, whatever time passes. Once a person has rejected the former
// request and retries the run, the agent may make another one.
func TestParkedRepeatContinues(t *testing.T) {
	n, run := repeatingNode(t)
	n.add(run, "payments.transfer 1")
	n.restart(1)
	n.drain()
	n.add(run, "payments.transfer 2")
	n.advance(repeatWait + time.Minute)
	retry := func() actor.CallID {
		return n.send("worker", "", func(c *actor.Call) { c.Kind, c.Operation, c.Parent = actor.Signal, signals.OpRetry, run })
	}
	n.restart(1)
	n.advance(time.Minute)
	if len(n.external) != 0 || len(n.pending()) != 1 || n.runs[run].Status != runs.PausedWaitingApproval {
		t.Fatalf("after a restart: %d effects, %d approvals, status %s", len(n.external), len(n.pending()), n.runs[run].Status)
	}
	n.want(retry(), "")
	n.want(n.add(run, "payments.transfer 2"), "nothing")
	n.advance(repeatWait + time.Second)
	if n.runs[run].Refusal == nil {
		t.Fatal("the other request was performed")
	}
	n.decide(n.pending()[0], false)
	n.want(retry(), "")
	n.add(run, "payments.transfer 2")
	if all := n.pending(); len(all) != 1 || string(all[0].Args) != `{"amount":2}` {
		t.Errorf("got approvals %+v, want that of the other request", all)
	}
}

// A run whose clock stands still because it is parked outlasts its time.
func TestTimeOfParkedRunIsStopped(t *testing.T) {
	n, run := repeatingNode(t)
	n.add(run, "note 1")
	for _, e := range n.external {
		if _, ok := e.effect.Op.(Tool); ok {
			n.sendOutcome(e, actor.Answer{Parts: actor.Text("noted")})
		}
	}
	n.restart(1)
	n.drain()
	n.add(run, "note 2")
	n.advance(24 * time.Hour)
	if r := n.runs[run]; r.Status.Ended() {
		t.Fatalf("the parked run ended: %v", r.Refusal)
	}
	n.send("worker", "", func(c *actor.Call) { c.Kind, c.Operation, c.Parent = actor.Signal, signals.OpRetry, run })
	n.add(run, "note 1")
	n.sendOutcome(n.external[len(n.external)-1], completion("done"))
	n.want(run, "nothing") // its client is gone
	if r := n.runs[run]; r.Status != runs.Done || r.Text != "done" {
		t.Errorf("got %s %v", r.Status, r.Refusal)
	}
}

// After its cell alone was restarted, the first invocation of an agent continues, and its
// further requests are its own. A further invocation is made again, because the cell has
// forgotten which requests it has repeated.
func TestInvocationThatSurvivesItsCell(t *testing.T) {
	n, run := repeatingNode(t)
	n.add(run, "note 1")
	invoked := n.external[0].effect
	for attempt := range 2 {
		id := invoked.ID
		n.epoch++
		n.external, n.aborted, n.awaited = nil, nil, nil
		c := NewCell(Config{Self: actor.Address{Node: "n", Incarnation: uint64(n.epoch)}, Cells: 1, Seed: uint64(n.epoch), Tools: n.tools})
		n.cells = []*Cell{c}
		for _, in := range []Input{Limits{n.limits}, Agents{Definitions: n.agents}, Owners{n.table(1)}, Boot{Running: []actor.EffectID{id}}} {
			n.step(c, in)
		}
		n.drain()
		if attempt == 0 {
			if len(n.awaited) != 1 || len(n.aborted) != 0 {
				t.Fatalf("first invocation: awaited %v, aborted %v", n.awaited, n.aborted)
			}
			n.add(run, "note 1")
			if got := n.asks(run); len(got) != 2 {
				t.Errorf("got requests %q, want two equal ones", got)
			}
			n.restart(1)
			n.drain()
			continue
		}
		if len(n.awaited) != 0 || len(n.aborted) != 1 || len(n.external) == 0 {
			t.Errorf("further invocation: awaited %v, aborted %v, performed %d", n.awaited, n.aborted, len(n.external))
		}
	}
}
