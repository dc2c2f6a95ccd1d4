// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"fmt"
	"strings"
	"testing"
)

func TestAnswerTextFollowsEvents(t *testing.T) {
	var s AnswerText
	var seen []string
	for _, e := range sampleRun() {
		extends := s.Apply(&e)
		text, _ := s.Streamed()
		seen = append(seen, fmt.Sprintf("%s %v %q", e.Type, extends, text))
	}
	want := strings.Join([]string{`llm_call_started true ""`, `agent_stream_delta true "bob"`, `attempt false ""`, `agent_stream_delta true "bob says "`,
		`agent_stream_delta true "bob says hello"`, `llm_call_done true "bob says hello"`, `agent_invoke_started false ""`}, "\n")
	if got := strings.Join(seen, "\n"); !strings.Contains(got, want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if s.Text() != "bob says hello" {
		t.Errorf("final text: got %q", s.Text())
	}
}

// A request of an external agent to a model is a part of its work, and no new answer.
func TestAnswerTextContinuesOverModelRequest(t *testing.T) {
	var s AnswerText
	for _, e := range []Event{
		{Type: AgentInvokeStarted, Step: 1}, {Type: AgentStreamDelta, Step: 1, Text: "a"}, {Type: LLMCallStarted, Step: 1, Index: 1, Request: "req_1"},
		{Type: LLMCallDone, Step: 1, Index: 1}, {Type: AgentStreamDelta, Step: 1, Text: "b"},
	} {
		if !s.Apply(&e) {
			t.Errorf("%s discards the text before it", e.Type)
		}
	}
	if text, _ := s.Streamed(); text != "ab" {
		t.Errorf("got text %q, want ab", text)
	}
}

func TestAttemptDiscardsOnlyPiecesOfItsPosition(t *testing.T) {
	var s AnswerText
	for i, e := range []Event{
		{Type: AgentStreamDelta, Step: 1, Text: "a"}, {Type: AgentStreamDelta, Step: 1, Index: 1, Text: "b"},
		{Type: AgentStreamDelta, Step: 1, Text: "c"}, {Type: Attempt, Step: 1, Discards: 1, Attempt: 2},
		{Type: Attempt, Step: 1, Attempt: 3}, {Type: AgentStreamDelta, Step: 1, Text: "d"},
	} {
		e.Seq = uint64(i + 1)
		s.Apply(&e)
	}
	if text, any := s.Streamed(); text != "abd" || !any {
		t.Errorf("got text %q, want abd", text)
	}
}
