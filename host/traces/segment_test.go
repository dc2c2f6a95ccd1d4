// SPDX-License-Identifier: Apache-2.0

package traces

import (
	"fmt"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

var (
	testRun   = actor.CallID{1, 2, 3, 8: 9, 15: 1}
	testOwner = actor.NewID("front", "s1")
)

// describe returns spans in one line each.
func describe(all []span) (lines []string) {
	for _, s := range all {
		line := fmt.Sprintf("%s %d-%d", s.name, s.from, s.to)
		if s.failed != "" {
			line += " failed " + s.failed
		}
		for _, a := range s.attributes {
			switch a.name {
			case inputTokens, outputTokens:
				line += fmt.Sprintf(" %d", a.count)
			case interrupt, toolArguments, toolResult, inputMessages, outputMessages:
				line += " " + a.name + "=" + a.text
			}
		}
		lines = append(lines, line)
	}
	return lines
}

func TestSegments(t *testing.T) {
	refusal := actor.Refuse(actor.Unavailable, "x")
	loop := []runs.Event{
		{Type: runs.UserInput, Text: "hi"}, {Type: runs.RunStarted},
		{Type: runs.LLMCallStarted, Step: 1, Name: "big"}, {Type: runs.LLMCallDone, Step: 1, Name: "big", Usage: runs.Usage{Input: 3, Output: 4, Total: 7}},
		{Type: runs.ToolCallCreated, Step: 2, Name: "pay", Text: "{}"}, {Type: runs.RunPaused, Name: "approval"},
		{Type: runs.RunResumed, Name: "approval"}, {Type: runs.ToolDispatched, Step: 2, Name: "pay"}, {Type: runs.ToolResult, Step: 2, Name: "pay", Refusal: refusal},
		{Type: runs.RunDone, Text: "done"},
	}
	for _, c := range []struct {
		name    string
		content bool
		events  []runs.Event
		want    [][]string
	}{
		{"a think-act loop with an approval", false, loop, [][]string{
			{"chat big 3-4 3 4", "invoke_agent front 2-6 troupe.run.interrupted=approval"},
			{"execute_tool pay 8-9 failed agent_unavailable", "invoke_agent front 7-10"}}},
		{"with its content", true, loop, [][]string{
			{"chat big 3-4 3 4", "invoke_agent front 2-6 troupe.run.interrupted=approval"},
			{"execute_tool pay 8-9 failed agent_unavailable gen_ai.tool.call.arguments={}", `invoke_agent front 7-10 gen_ai.input.messages=[{"role":"user","parts":[{"type":"text","content":"hi"}]}] gen_ai.output.messages=[{"role":"assistant","parts":[{"type":"text","content":"done"}]}]`}}},
		{"two approvals at once", false, []runs.Event{{Type: runs.RunStarted}, {Type: runs.RunPaused, Name: "approval"}, {Type: runs.RunPaused, Name: "approval"}, {Type: runs.RunResumed}, {Type: runs.RunResumed}, {Type: runs.RunFailed, Refusal: refusal}},
			[][]string{{"invoke_agent front 1-2 troupe.run.interrupted=approval"}, {"invoke_agent front 5-6 failed agent_unavailable"}}},
		{"a wait for a signal", false, []runs.Event{{Type: runs.RunStarted}, {Type: runs.WaitOpened, Step: 1, Name: "go"}, {Type: runs.SignalReceived, Step: 1, Name: "go"}, {Type: runs.RunDone}},
			[][]string{{"invoke_agent front 1-2 troupe.run.interrupted=signal"}, {"invoke_agent front 3-4"}}},
		{"cancelled while it waits", false, []runs.Event{{Type: runs.RunStarted}, {Type: runs.RunPaused, Name: "parked"}, {Type: runs.RunCancelled, Refusal: actor.Refuse(actor.Stopped, "x")}},
			[][]string{{"invoke_agent front 1-2 troupe.run.interrupted=parked"}, {"invoke_agent front 3-3 failed cancelled"}}},
		{"a request that the end of the run cut", false, []runs.Event{{Type: runs.RunStarted}, {Type: runs.LLMCallStarted, Step: 1, Name: "big"}, {Type: runs.RunCancelled, Refusal: actor.Refuse(actor.Stopped, "x")}},
			[][]string{{"invoke_agent front 1-3 failed cancelled"}}},
		{"an external agent and its models", false, []runs.Event{{Type: runs.RunStarted}, {Type: runs.AgentInvokeStarted, Step: 1}, {Type: runs.LLMCallStarted, Step: 1, Index: 1, Name: "big", Request: "r"},
			{Type: runs.LLMCallDone, Step: 1, Index: 1, Name: "big"}, {Type: runs.AgentInvokeDone, Step: 1, Usage: runs.Usage{Input: 1, Output: 2}}, {Type: runs.RunDone}},
			[][]string{{"chat big 3-4", "invoke_agent front 1-6 1 2"}}},
		{"the front of the run was cut", false, []runs.Event{{Type: runs.LLMCallDone, Step: 4}, {Type: runs.RunDone}}, [][]string{{"invoke_agent front 1-2"}}},
	} {
		s := newSegment(testRun, testOwner, c.content)
		var got [][]string
		var before, all []span
		ids := map[runs.SpanID]bool{}
		for i, e := range c.events {
			e.Run, e.Seq, e.At = testRun, uint64(i+1), actor.Time(i+1)
			if closed := s.add(&e); closed != nil {
				got, before, all = append(got, describe(closed)), all, closed
				own := closed[len(closed)-1]
				if len(before) > 0 && own.link != before[len(before)-1].id {
					t.Errorf("%s: the span of the run is linked to %x", c.name, own.link)
				}
				for _, one := range closed {
					if ids[one.id] || one.id == (runs.SpanID{}) || one.id != own.id && one.parent != own.id {
						t.Errorf("%s: %s has the identifier %x and the parent %x", c.name, one.name, one.id, one.parent)
					}
					ids[one.id] = true
					if !c.content && strings.Contains(fmt.Sprint(one.attributes), "messages") {
						t.Errorf("%s: got content %v", c.name, one.attributes)
					}
				}
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s:\n got %q\nwant %q", c.name, got, c.want)
		}
	}
}

// A run has at most spansMax spans at a time; the others are counted.
func TestSegmentIsBounded(t *testing.T) {
	s := newSegment(testRun, testOwner, false)
	seq := uint64(0)
	add := func(e runs.Event) []span {
		seq++
		e.Run, e.Seq, e.At = testRun, seq, actor.Time(seq)
		return s.add(&e)
	}
	add(runs.Event{Type: runs.RunStarted})
	for i := range uint32(spansMax + 10) {
		add(runs.Event{Type: runs.LLMCallStarted, Step: i + 1, Name: "m"})
		add(runs.Event{Type: runs.LLMCallDone, Step: i + 1, Name: "m"})
	}
	if closed := add(runs.Event{Type: runs.RunDone}); len(closed) != spansMax || s.dropped != 11 {
		t.Errorf("got %d spans, %d dropped", len(closed), s.dropped)
	}
}
