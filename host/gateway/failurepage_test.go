// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A run that is parked says so on the chat page, until it goes on.
func TestParkedRunOnThePage(t *testing.T) {
	shown := runScript(t, "approval", "run.js", `[{"type":"state","state":"PARKED","detail":{"code":"outcome_unknown","text":"before: pay 7"}}]`)
	if !strings.Contains(shown, "does not go on by itself") || !strings.Contains(shown, "outcome_unknown: before: pay 7") {
		t.Errorf("the page shows %s", shown)
	}
}

// The chat page has a sentence for each reason of a failed run, without its code and without what the server says. A
// failure that the same message may pass later has a button for that; one of the message has one to edit it.
func TestFailuresOfThePageAreSentences(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "errors.md"))
	if err != nil {
		t.Fatal(err)
	}
	reasons, _, _ := strings.Cut(string(page), "## Meaning")
	codes := []string{"a_new_code"}
	for _, m := range regexp.MustCompile(`(?m)^\| .* \| ([a-z_]+) \| \d`).FindAllStringSubmatch(reasons, -1) {
		if m[1] != "cancelled" && m[1] != "approval_decided" { // a run that was stopped did not fail; the other is the answer to a decision
			codes = append(codes, m[1])
		}
	}
	if len(codes) < 19 {
		t.Fatalf("%d codes in errors.md: %q", len(codes), codes)
	}
	in, err := json.Marshal(codes)
	if err != nil {
		t.Fatal(err)
	}
	texts := shownFailures(t, string(in))
	if len(texts) != len(codes) {
		t.Fatalf("%d texts for %d codes", len(texts), len(codes))
	}
	buttons := map[string]string{"a_new_code": "Retry", "agent_unavailable": "Retry", "agent_busy": "Retry", "timeout": "Retry", "model_rejected": "Edit the message", "outcome_unknown": "Edit the message"}
	for i, text := range texts {
		sentence, button, _ := strings.Cut(text, "\n")
		if !strings.HasSuffix(sentence, ".") || strings.Contains(text, "_") || strings.Contains(text, "server said") {
			t.Errorf("%s: %q, want sentences without codes", codes[i], text)
		}
		if i > 0 && sentence == strings.Split(texts[0], "\n")[0] {
			t.Errorf("%s has no sentence of its own", codes[i])
		}
		if want := buttons[codes[i]]; want != "" && strings.TrimSpace(button) != want {
			t.Errorf("%s: %q, want the button %q", codes[i], text, want)
		}
	}
}

// shownFailures returns what the chat page shows of failures.
func shownFailures(t *testing.T, failures string) (texts []string) {
	t.Helper()
	out := runScript(t, "failures", "run.js", failures)
	if err := json.Unmarshal([]byte(out), &texts); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return texts
}

// A user who has sent all messages of a day is told until when, without a button. The limit of a single message has one to
// edit it, and one of an earlier day has ended.
func TestLimitOfMessagesOnThePage(t *testing.T) {
	const future, noon = `"ts":4102488000000`, `"ts":1735732800000` // noon of 1 January 2100 and 2025
	for failure, want := range map[string][2]string{
		`{"code":"budget_exceeded",` + future + `,"detail":{"retry_after":43200}}`:                                                      {`until .*2100.*\.`, ""},
		`{"code":"budget_exceeded",` + future + `,"retry_after":43200}`:                                                                 {`until .*2100.*\.`, ""},
		`{"code":"budget_exceeded","detail":{"retry_after":1}}`:                                                                         {`until \S.*\.`, ""},
		`{"code":"budget_exceeded",` + future + `,"message":"sent 5 messages, which is the limit (user_messages_per_day in [budget])"}`: {`until .*(2 Jan|Jan 2).*2100`, ""},
		`{"code":"budget_exceeded",` + noon + `,"detail":{"retry_after":43200}}`:                                                        {`You can write again\.`, "Retry"},
		`{"code":"budget_exceeded",` + future + `}`:                                                                                     {`^The message or its answer reached a limit\.`, "Edit the message"},
		`{"code":"budget_exceeded",` + future + `,"detail":{"retry_after":"soon"}}`:                                                     {`^The message or its answer reached a limit\.`, "Edit the message"},
		`{"code":"agent_busy","detail":{"retry_after":1}}`:                                                                              {`Try again in 1 s\.`, "Retry"},
	} {
		texts := shownFailures(t, "["+failure+"]")
		sentence, button, _ := strings.Cut(texts[0], "\n")
		if !regexp.MustCompile(want[0]).MatchString(sentence) || strings.TrimSpace(button) != want[1] || strings.Contains(sentence, "calls") {
			t.Errorf("%s: %q, want %q and the button %q", failure, texts[0], want[0], want[1])
		}
	}
}

// The chat page has a card for each call whose outcome is awaited, with its skill and its time, and without the agent.
func TestPendingCallsOnThePage(t *testing.T) {
	out := runScript(t, "tasks", "tasks.js", "")
	const want = `↗ look up 0:41 Cancel
↗ pay, which waits for a decision 0:00 Cancel
↗ look up 61:01 Cancel
↗ pay, which waits for a decision 60:01 Cancel
a 2 false
0 true
`
	if out != want {
		t.Errorf("the page shows\n%s\nwant\n%s", out, want)
	}
}

// The fields of an approval of a budget give amounts that the server reads, or say what they want.
func TestRaiseFieldsOfThePages(t *testing.T) {
	out := runScript(t, "raise", "raise.js", "")
	const money, tokens = `2 {"error":"Raise by an amount above 0 such as 0.50, with at most 6 decimals."}`, `2 {"error":"Raise by a whole number of tokens above 0."}`
	want := strings.Join([]string{`2 null`, `2 {"money":0.25}`, `2 {"tokens":1000}`, `2 {"money":2,"tokens":7}`, money, money, money, money, money, tokens, tokens, `1 {"tokens":12}`, `1 {"money":12}`, `0 null`, ""}, "\n")
	if out != want {
		t.Errorf("got\n%s\nwant\n%s", out, want)
	}
}
