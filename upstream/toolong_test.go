// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/upstream"
)

// TestPromptTooLong answers a model request with each line of test/foreign/toolong.txt.
func TestPromptTooLong(t *testing.T) {
	text, err := os.ReadFile("../test/foreign/toolong.txt")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for line := range strings.Lines(string(text)) {
		if line[0] == '#' {
			continue
		}
		fields := strings.SplitN(strings.TrimSpace(line), "|", 3)
		status, err := strconv.Atoi(fields[1])
		if err != nil {
			t.Fatal(err)
		}
		order, _ := upstream.Model{URL: "http://m"}.Exchange(everyOption, actor.Time(time.Hour), upstream.AttemptLimits{Retry: upstream.RetryPolicy{Tries: 1}})
		_, ended := answer(upstream.NewExchange(order), upstream.NewBackoff(upstream.BackoffConfig{}), 1, status, []byte(fields[2]), upstream.Begin{})
		switch {
		case ended == nil || ended.Outcome.Refusal == nil:
			t.Errorf("%s: no refusal", line)
		case ended.Outcome.Refusal.TooLong() != (fields[0] == "too long"):
			t.Errorf("%s: got %+v", line, ended.Outcome.Refusal)
		case fields[0] == "too long":
			found++
		}
	}
	if found < 20 {
		t.Errorf("%d errors report a prompt that is too long, want at least 20", found)
	}
}

// An external agent passes on that a prompt was too long by its code.
func TestAgentReportsPromptTooLong(t *testing.T) {
	for code, want := range map[string]bool{"context_length_exceeded": true, "call_rejected": false} {
		d, _ := upstream.NewAgentDecoder("agent a", "run-1", nil, "text/event-stream")
		if _, failure := d.Decode([]byte("event: error\ndata: {\"code\":\"" + code + "\",\"message\":\"context length\"}\n\n")); failure == nil || failure.Refusal.TooLong() != want {
			t.Errorf("%s: got %+v", code, failure)
		}
		f := upstream.StatusFailure("agent a", false, 400, nil, []byte(`{"error":{"code":"`+code+`"}}`), nil, 0)
		if f.Refusal.TooLong() != want {
			t.Errorf("%s: got %+v", code, f.Refusal)
		}
	}
}
