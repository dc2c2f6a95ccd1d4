// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/upstream"
)

// everyOption is a prompt whose request has every optional member.
var everyOption = upstream.Prompt{Model: "m", MaxTokens: 100, Temperature: ptr(0.2), Seed: ptr(int64(7)), Messages: []upstream.Message{
	{Role: upstream.User, Text: "pay"},
	{Role: upstream.Assistant, Kept: `{"reasoning":"a","reasoning_content":"b","reasoning_details":[{"text":"c"}]}`,
		Calls: []upstream.ToolCall{{ID: "1", Name: "pay", Arguments: "{}", Kept: `{"extra_content":{"thought_signature":"d"},"other":1}`}}},
	{Role: upstream.Tool, CallID: "1", Text: "paid"},
}}

// refusalFile reads a file of test/foreign/refusals: the answer of a model, and what happens then.
func refusalFile(t *testing.T, file string) (status int, body []byte, then string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitN(strings.TrimSpace(string(b)), "\n", 5)
	if status, err = strconv.Atoi(lines[1]); err != nil || len(lines) != 5 || lines[3] != "----" {
		t.Fatalf("%s: want a comment, a status, a body, ---- and a line", file)
	}
	return status, []byte(lines[2]), lines[4]
}

// TestRefusedMemberIsLeftOut answers each request with a refusal of test/foreign/refusals. The second
// request, at once, lacks the member that it names and nothing else, and there is no third.
func TestRefusedMemberIsLeftOut(t *testing.T) {
	files, _ := filepath.Glob("../test/foreign/refusals/*.txt")
	if len(files) < 15 {
		t.Fatalf("got %d refusals, want at least 15", len(files))
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			status, body, then := refusalFile(t, file)
			m := upstream.Model{URL: "http://m"}
			order, refusal := m.Exchange(everyOption, actor.Time(time.Hour), upstream.AttemptLimits{})
			if refusal != nil {
				t.Fatal(refusal)
			}
			x, pace := upstream.NewExchange(order), upstream.NewBackoff(upstream.BackoffConfig{})
			first, ended := answer(x, pace, 0, status, body, upstream.Begin{})
			member, left := strings.CutPrefix(then, "without ")
			switch {
			case then == "later" && (ended != nil || first != nil):
				t.Errorf("got request %v, end %v, want a later attempt", first, ended)
			case then == "stays" && (ended == nil || ended.Outcome.Refusal == nil || first != nil):
				t.Errorf("got request %v, want the refusal", first)
			case left:
				m.Omit = []string{member}
				want, refusal := m.Request(everyOption)
				if refusal != nil || first == nil || string(first.Request.Body) != string(want.Body) || len(want.Body) == len(order.Request.Body) && member != "max_tokens" {
					t.Fatalf("got %v, want %s", first, want.Body)
				}
				again, ended := answer(x, pace, 2, status, body)
				if again != nil || ended == nil || ended.Outcome.Refusal == nil || len(ended.Outcome.Attempts) != 2 || ended.Outcome.Omitted != nil {
					t.Errorf("got a third request %v, end %+v", again, ended)
				}
			}
		})
	}
}

// answer steps an exchange with inputs and with an answer to its attempt, 1 if it has none, and returns the next
// request and the end.
func answer(x *upstream.Exchange, pace upstream.Pacer, attempt, status int, body []byte, inputs ...upstream.Input) (next *upstream.Send, ended *upstream.Ended) {
	for _, in := range inputs {
		x.Step(0, in, pace, 0)
	}
	attempt = max(attempt, 1)
	for _, in := range []upstream.Input{upstream.Head{Attempt: attempt, Status: status}, upstream.Bytes{Attempt: attempt, Bytes: body}, upstream.End{Attempt: attempt}} {
		for _, op := range x.Step(0, in, pace, highest) {
			switch op := op.(type) {
			case upstream.Send:
				next = &op
			case upstream.Ended:
				ended = &op
			}
		}
	}
	return next, ended
}

// Several members are left out one after the other, and the outcome names them.
func TestRefusedMembersAreLeftOutInTurn(t *testing.T) {
	order, _ := upstream.Model{URL: "http://m"}.Exchange(everyOption, actor.Time(time.Hour), upstream.AttemptLimits{Retry: upstream.RetryPolicy{Tries: 1}})
	x, pace := upstream.NewExchange(order), upstream.NewBackoff(upstream.BackoffConfig{})
	inputs := []upstream.Input{upstream.Begin{}}
	for n, name := range []string{"seed", "stream_options", "max_tokens", "max_completion_tokens"} {
		next, ended := answer(x, pace, n+1, 400, []byte(`{"error":{"message":"unknown `+name+`"}}`), inputs...)
		if next == nil || ended != nil || strings.Contains(string(next.Request.Body), name+`"`) {
			t.Fatalf("%s: got %v, %+v", name, next, ended)
		}
		inputs = nil
	}
	_, ended := answer(x, pace, 5, 200, []byte(`{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}`))
	if ended == nil || ended.Outcome.Refusal != nil || strings.Join(ended.Outcome.Omitted, " ") != "seed stream_options max_tokens max_completion_tokens" {
		t.Errorf("got %+v", ended)
	}
}

// A request that is passed on lacks only what the server added.
func TestPassedRequestKeepsItsMembers(t *testing.T) {
	for body, want := range map[string]string{
		`{"model":"m","messages":[{}],"stream":true}`:                                            `{"model":"x","messages":[{}],"stream":true}`,
		`{"model":"m","messages":[{}],"stream":true,"stream_options":{"include_usage":true}}`:    "",
		`{"model":"m","messages":[{}],"stream":true,"stream_options":{"include_obfuscation":1}}`: "",
		`{"model":"m","messages":[{}],"seed":1}`:                                                 "",
	} {
		c, r := upstream.ReadChat([]byte(body))
		if r != nil {
			t.Fatal(r)
		}
		order, _, _ := upstream.Model{URL: "http://m"}.Chat(&c, "x", actor.Time(time.Hour), upstream.AttemptLimits{})
		for _, refusal := range []string{"unknown seed", "unknown stream_options"} {
			x := upstream.NewExchange(order)
			next, _ := answer(x, upstream.NewBackoff(upstream.BackoffConfig{}), 0, 400, []byte(refusal), upstream.Begin{})
			if got := want != "" && strings.HasSuffix(refusal, "options"); got != (next != nil) || got && string(next.Request.Body) != want {
				t.Errorf("%s, %s: got %+v, want %s", body, refusal, next, want)
			}
		}
	}
	c, _ := upstream.ReadChat([]byte(`{"model":"m","messages":[{}],"stream":true}`))
	order, _, _ := upstream.Model{URL: "http://m", Omit: []string{"stream_options"}}.Chat(&c, "x", actor.Time(time.Hour), upstream.AttemptLimits{})
	if got := string(order.Request.Body); got != `{"model":"x","messages":[{}],"stream":true}` {
		t.Errorf("omitted: got %s", got)
	}
}

func TestCheckOmit(t *testing.T) {
	for _, c := range []struct{ names, want string }{
		{"", ""}, {"stream_options seed", ""}, {"model", "model is required"}, {"messages", "messages is required"},
		{"seed seed", "seed is there twice"}, {"stream_option", "did you mean stream_options"}, {"tools", "want some of stream_options, stream, max_tokens"},
	} {
		err := upstream.CheckOmit(strings.Fields(c.names))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", c.names, err, c.want)
		}
	}
}
