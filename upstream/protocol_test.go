// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"encoding/json"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/upstream"
)

// The invocation of the values in the example is the example.
func TestInvokeMatchesExample(t *testing.T) {
	request, refusal := upstream.Agent{URL: "http://h"}.Invoke(upstream.Invocation{
		Agent: "agentA", Session: "s1", Run: "run1", Input: "hi", User: "u1",
		Messages: []upstream.Message{{Role: upstream.System, Text: "..."}, {Role: upstream.User, Text: "..."}},
	})
	if refusal != nil {
		t.Fatal(refusal)
	}
	var got, want any
	if err := json.Unmarshal(request.Body, &got); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(upstream.InvokeExample()), &want); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%s\nwant\n%s", request.Body, upstream.InvokeExample())
	}
	if got, want := string(request.Body), strings.ReplaceAll(strings.ReplaceAll(upstream.InvokeExample(), "\n", ""), "  ", ""); got != want {
		t.Errorf("order of the members: got\n%s\nwant\n%s", got, want)
	}
}

// The decoder accepts each event in the form of its example.
func TestDecoderAcceptsExamples(t *testing.T) {
	lines := regexp.MustCompile("(?m)^- `(event: [a-z]+)` (data: )`(.+)`$").FindAllStringSubmatch(upstream.EventExamples(), -1)
	if len(lines) != 4 {
		t.Fatalf("got %d examples, want 4", len(lines))
	}
	want := map[string]string{
		"event: delta": "delta \"...\"\n",
		"event: state": "state ... {\"step\":1}\n",
		"event: done":  "done stop, 0 in, 0 out, 123 in all, model \"\"\n",
		"event: error": "refused: Rejected: agent helper reported ...: ...\n",
	}
	for _, m := range lines {
		open := map[string]string{"event: state": `{"step":1}`, "event: done": `{"tokens":123}`}[m[1]]
		body := m[1] + "\n" + m[2] + strings.ReplaceAll(m[3], "{...}", open) + "\n\n"
		d, failure := upstream.NewAgentDecoder("agent helper", "...", nil, "text/event-stream")
		if failure != nil {
			t.Fatal(failure)
		}
		var h decoded
		h.deltas, h.failure = d.Decode([]byte(body))
		h.answer, h.done = d.Completion(), d.Done()
		if got := h.String(); got != want[m[1]] {
			t.Errorf("%s: got\n%swant\n%s", body, got, want[m[1]])
		}
	}
}
