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
)

// modelCalls adds and ends the model requests of a run.
type modelCalls struct {
	*node
	run actor.CallID
}

func (m modelCalls) signal(operation, content string) actor.Reply {
	id := m.send("worker", "", func(c *actor.Call) {
		c.Kind, c.Operation, c.Parent = actor.Signal, operation, m.run
		c.Parts = []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(content)}}
	})
	reply, ok := m.replies[id]
	if !ok {
		m.t.Fatalf("no answer to %s %s", operation, content)
	}
	return reply
}

func (m modelCalls) add(model string) actor.Reply {
	return m.signal(signals.OpAddModel, fmt.Sprintf(`{"model":%q,"request":{"request_id":"r7"}}`, model))
}

func (m modelCalls) end(index int, outcome string) actor.Reply {
	return m.signal(signals.OpEndModel, fmt.Sprintf(`{"llm_call_id":"%s",%s}`, runs.ToolCallID{Run: m.run, Step: 1, Index: uint16(index)}, outcome))
}

const known = `"completion":"{\"finish\":\"stop\",\"usage\":{\"input_tokens\":30,\"output_tokens\":4,\"total_tokens\":34},\"model\":\"gpt-x-1\"}"`

// A request of an external agent to a model is an ask of its run: with a start, one outcome,
// its tokens, and neither an effect nor a repetition by the cell.
func TestAddedModelRequest(t *testing.T) {
	n := newNode(t, 1, externalAgent(false))
	m := modelCalls{n, n.send("worker", "go")}
	at := runs.ToolCallID{Run: m.run, Step: 1, Index: 1}
	if got := string(inlineBytes(m.add("gpt").Parts)); got != `{"llm_call_id":"`+at.String()+`"}` {
		t.Errorf("got answer %s, want the ID %s", got, at)
	}
	n.now = n.now.Add(40 * time.Millisecond)
	if r := m.end(1, known).Refusal; r != nil {
		t.Error(r)
	}
	m.add("gpt")
	m.end(2, `"reason":"agent_busy","detail":"the model answers 429"`)
	m.add("call_agent") // a name like that of the tool
	if len(n.external) != 1 || len(n.aborted) != 0 {
		t.Errorf("%d requests, %d aborted; want only that to the agent", len(n.external), len(n.aborted))
	}
	n.sendOutcome(n.external[0], completion("done"))
	n.want(m.run, "done")
	n.wantStream(m.run, "1 user_input", "2 run_started", "3 agent_invoke_started", "4 llm_call_started", "5 llm_call_done", "6 llm_call_started", "7 llm_call_done",
		"8 llm_call_started", "9 agent_invoke_done", "10 llm_call_done", "11 run_done")
	events := n.events[m.run]
	if e := events[3]; e.Name != "gpt" || e.Request != "r7" || e.Text != "" || e.Index != 1 {
		t.Errorf("got start %+v", e)
	}
	tokens := runs.Usage{Input: 30, Output: 4, Total: 34}
	if e := events[4]; e.Usage != tokens || e.Took != 40*time.Millisecond || e.Status != actor.Succeeded || e.Text != "" {
		t.Errorf("got end %+v", e)
	}
	if e := events[6]; e.Refusal == nil || e.Refusal.Reason != actor.Busy || e.Status != actor.Failed {
		t.Errorf("got failed end %+v", e)
	}
	if e := events[9]; e.Refusal == nil || e.Refusal.Reason != actor.Stopped {
		t.Errorf("got end of an open request %+v", e)
	}
	if e := events[10]; e.Usage != tokens {
		t.Errorf("got usage %+v, want that of the model without the claim of the agent", e.Usage)
	}
	if r := m.add("gpt").Refusal; r == nil || r.Reason != actor.NotFound {
		t.Errorf("got %v after the end of the run", r)
	}
}

func TestAddedModelRequestErrors(t *testing.T) {
	n := newNode(t, 1, externalAgent(false))
	m := modelCalls{n, n.send("worker", "go")}
	if r := m.add("gpt").Refusal; r != nil {
		t.Fatal(r)
	}
	for _, c := range []struct{ operation, content, want string }{
		{signals.OpAddModel, `{"model":"m","request":{}}`, "want a model request"},
		{signals.OpAddModel, `{"model":1}`, "want a model request"},
		{signals.OpAddModel, `{"model":"m","prompt":"x"}`, "want a model request"},
		{signals.OpEndModel, `{}`, "no open model request"},
		{signals.OpEndModel, `{"llm_call_id":"tc_` + m.run.String() + `.1.0","reason":"busy"}`, "no open model request"},
		{signals.OpEndModel, `{"llm_call_id":"tc_` + m.run.String() + `.1.9","reason":"busy"}`, "no open model request"},
		{signals.OpEndModel, `{"llm_call_id":"tc_` + m.run.String() + `.2.1","reason":"busy"}`, "no open model request"},
		{signals.OpEndModel, `{"llm_call_id":"tc_` + actor.CallID{0: 1, 15: 1}.String() + `.1.1","reason":"busy"}`, "no open model request"},
		{signals.OpEndModel, `{"llm_call_id":"tc_` + m.run.String() + `.1.1","completion":"x"}`, "completion"},
		{signals.OpGiveResult, `{"tool_call_id":"tc_` + m.run.String() + `.1.1","ok":true}`, "takes no result"},
	} {
		r := m.signal(c.operation, c.content).Refusal
		if r == nil || !strings.Contains(r.Detail, c.want) {
			t.Errorf("%s %s: got %v, want %s", c.operation, c.content, r, c.want)
		} else if strings.HasPrefix(c.want, "no open") && !r.IsNotFound(actor.WhatModelCall) { // without it the run is taken for one that has ended
			t.Errorf("%s: got the field %q", c.content, r.Field)
		}
	}
	if r := m.end(1, known).Refusal; r != nil {
		t.Error(r)
	}
	if r := m.end(1, known).Refusal; r == nil || r.Reason != actor.NotFound {
		t.Errorf("got %v for a second outcome", r)
	}
}

// A request that was open at a crash has an unknown outcome at once. The agent is invoked
// again and sends its own.
func TestAddedModelRequestOverCrash(t *testing.T) {
	n := newNode(t, 1, externalAgent(true))
	m := modelCalls{n, n.send("worker", "go")}
	m.add("gpt")
	n.restart(1)
	n.drain()
	if r := m.end(1, known).Refusal; r == nil || r.Reason != actor.NotFound {
		t.Errorf("got %v for the outcome of an interrupted request", r)
	}
	m.add("gpt")
	if r := m.end(2, known).Refusal; r != nil {
		t.Error(r)
	}
	n.sendOutcome(n.external[0], completion("done"))
	n.wantStream(m.run, "1 user_input", "2 run_started", "3 agent_invoke_started", "4 llm_call_started", "5 attempt 2 discards after 0", "6 llm_call_done",
		"7 llm_call_started", "8 llm_call_done", "9 agent_invoke_done", "10 run_done")
	if e := n.events[m.run][5]; e.Refusal == nil || e.Refusal.Reason != actor.Unknown {
		t.Errorf("got end %+v", e)
	}
}

// A request without an answer ends with its own time, and the run continues.
func TestAddedModelRequestExpires(t *testing.T) {
	n := newNode(t, 1, externalAgent(false))
	n.limits.ModelTimeoutDefault = time.Minute
	n.restart(1)
	m := modelCalls{n, n.send("worker", "go", func(c *actor.Call) { c.Left = time.Hour })}
	m.add("gpt")
	n.advance(time.Minute)
	if e := n.events[m.run][4]; e.Type != runs.LLMCallDone || e.Refusal == nil || e.Refusal.Reason != actor.Deadline {
		t.Errorf("got %+v", e)
	}
	if n.runs[m.run].Status.Ended() || len(n.aborted) != 0 {
		t.Errorf("got run %s, %d aborted", n.runs[m.run].Status, len(n.aborted))
	}
}
