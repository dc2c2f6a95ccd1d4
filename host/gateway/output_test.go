// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"strings"
	"testing"

	"github.com/troupe-run/troupe/runs"
)

// TestRejectedAnswerIsNotStreamed follows a run whose model breaks the schema of the agent's answers: the
// client sees the answer that was accepted, and no piece of the other one.
func TestRejectedAnswerIsNotStreamed(t *testing.T) {
	d := startGateway(t)
	for name, again := range map[string]string{"counter": `{\"n\":1}`, "stubborn": `{\"m\":2}`} {
		status, _, body := d.do("POST", "/v1/agents", `{"name":"`+name+`","prompt":"on Count say {\"m\":1}\non breaks say `+again+
			`","output_schema":{"type":"object","required":["n"],"properties":{"n":{"type":"integer"}}}}`)
		if status != 201 {
			t.Fatalf("%d %s", status, body)
		}
	}
	s := d.openStream("POST", "/v1/agents/counter/messages", `{"content":"Count."}`)
	s.readUntil("")
	names := s.frameNames()
	if strings.Contains(names, "agent_stream_delta") || strings.Count(names, "llm_call_done") != 2 {
		t.Error(names)
	}
	if _, whole := s.answerTexts(); whole != `{"n":1}` {
		t.Errorf("the answer is %q", whole)
	}
	s = d.openStream("POST", "/v1/agents/stubborn/messages", `{"content":"Count."}`)
	s.readUntil("")
	last := s.frames[len(s.frames)-1]
	if e, err := runs.Decode([]byte(last.Data)); err != nil || e.Type != runs.RunFailed || !strings.Contains(last.Data, `"reported_code":"OUTPUT_SCHEMA_VIOLATION"`) || !strings.Contains(last.Data, "n: is missing") {
		t.Errorf("%v %s", err, last.Data)
	}
	if names := s.frameNames(); strings.Contains(names, "agent_stream_delta") || strings.Count(names, "llm_call_done") != 2 {
		t.Error(names)
	}
	if status, _, body := d.do("POST", "/v1/agents/stubborn/messages", `{"content":"Count."}`); status == 200 || !strings.Contains(body, `"code":"call_rejected"`) || !strings.Contains(body, `"reported_code":"OUTPUT_SCHEMA_VIOLATION"`) {
		t.Errorf("%d %s", status, body)
	}
	// One agent gets the object of another as it was checked.
	d.createAgent("asker")
	s = d.openStream("POST", "/v1/agents/asker/messages", `{"content":"ask counter: Count."}`)
	s.readUntil("")
	if _, whole := s.answerTexts(); whole != `{"n":1}` {
		t.Errorf("the caller was answered %q", whole)
	}
}
