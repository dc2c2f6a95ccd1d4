// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/upstream"
)

func newExchangeConfig(kind string, deadline actor.Time) upstream.ExchangeConfig {
	patience := upstream.AttemptLimits{Head: 15 * time.Second, Idle: 5 * time.Second,
		Retry: upstream.RetryPolicy{Tries: 4, Delay: 500 * time.Millisecond, DelayMax: 30 * time.Second, Time: time.Minute}}
	if kind == "model" {
		prompt := upstream.Prompt{Model: "m", Messages: []upstream.Message{{Role: upstream.User}}}
		order, _ := upstream.Model{URL: "http://m", Key: "sk-secret"}.Exchange(prompt, deadline, patience)
		return order
	}
	in := upstream.Invocation{Agent: "helper", Session: "s", Run: "run-1", Token: "sk-secret"}
	order, _ := upstream.Agent{URL: "http://a"}.Exchange(in, kind == "safe agent", deadline, patience)
	return order
}

func formatOp(op upstream.Op) string {
	switch op := op.(type) {
	case upstream.Send:
		return fmt.Sprintf("send %d: %s", op.Attempt, op.Request)
	case upstream.Close:
		return fmt.Sprintf("close %d", op.Attempt)
	case upstream.Forward:
		if op.Delta.State != "" {
			return fmt.Sprintf("forward state %s %s", op.Delta.State, op.Delta.Detail)
		}
		return fmt.Sprintf("forward %q", op.Delta.Text)
	case upstream.Retry:
		return fmt.Sprintf("retry at %v, attempt %d was %s: %s", time.Duration(op.At), op.Attempt, op.Failure.Class, op.Failure.Refusal.Detail)
	case upstream.Ended:
		o := op.Outcome
		text := fmt.Sprintf("ended with %q", o.Completion.Text)
		if o.Refusal != nil {
			text += fmt.Sprintf(", %s", o.Refusal.Error())
			if o.Refusal.RetryAfter > 0 {
				text += fmt.Sprintf(" (retry after %v)", o.Refusal.RetryAfter)
			}
		} else {
			text += ", " + o.Completion.Finish.String()
		}
		for _, w := range o.Warnings {
			text += "\n      warning: " + w
		}
		for i, a := range o.Attempts {
			text += fmt.Sprintf("\n      attempt %d at %v took %v: status %d, %d bytes", i+1, time.Duration(a.At), a.Took, a.Status, a.Bytes)
			if a.Refusal != nil {
				text += ", " + a.Refusal.Reason.String()
			}
		}
		return text
	}
	return fmt.Sprintf("%T", op)
}

// TestExchanges replays the transcripts in testdata/exchanges. Each holds one or
// more consecutive exchanges with the same upstream. An input line has a
// time and a command:
//
//	MS begin model|agent|safe agent DEADLINE_MS
//	MS head ATTEMPT STATUS [NAME: VALUE; …]
//	MS bytes ATTEMPT TEXT          \n in it is a line feed
//	MS end ATTEMPT
//	MS loss ATTEMPT sent|unsent|final DETAIL
//	MS adjust DEADLINE_MS
//	MS cancel
//	MS tick
//
// The indented lines below an input line are the operations of the exchange and its
// next deadline. The jitter of a back-off is always computed from the highest random
// number.
func TestExchanges(t *testing.T) {
	files, _ := filepath.Glob("testdata/exchanges/*.txt")
	if len(files) < 10 {
		t.Fatalf("got %d transcripts, want at least 10", len(files))
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := replay(t, string(text))
			if *rewrite {
				os.WriteFile(file, []byte(got), 0o644)
			} else if got != string(text) {
				t.Errorf("got\n%s\nwant\n%s", got, text)
			}
		})
	}
}

func replay(t *testing.T, transcript string) string {
	var b strings.Builder
	var x *upstream.Exchange
	pace := upstream.NewBackoff(upstream.BackoffConfig{OpenAfter: 3, OpenFor: 5 * time.Second, OpenMax: 2 * time.Minute})
	for line := range strings.Lines(transcript) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, " ") {
			continue
		}
		fmt.Fprintln(&b, line)
		if line == "" || line[0] == '#' {
			continue
		}
		word := strings.SplitN(line, " ", 4)
		ms, err := strconv.Atoi(word[0])
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		word = append(word, "", "", "")
		attempt, _ := strconv.Atoi(word[2])
		var in upstream.Input
		switch word[1] {
		case "begin":
			kind, deadline, _ := strings.Cut(strings.Replace(strings.TrimSpace(word[2]+" "+word[3]), "safe ", "safe_", 1), " ")
			by, _ := strconv.Atoi(deadline)
			x = upstream.NewExchange(newExchangeConfig(strings.Replace(kind, "_", " ", 1), actor.Time(time.Duration(by)*time.Millisecond)))
			in = upstream.Begin{}
		case "head":
			status, fields, _ := strings.Cut(word[3], " ")
			code, _ := strconv.Atoi(status)
			head := upstream.Head{Attempt: attempt, Status: code}
			for f := range strings.SplitSeq(fields, "; ") {
				name, value, _ := strings.Cut(f, ": ")
				head.Headers = append(head.Headers, upstream.Header{Name: name, Value: value})
			}
			in = head
		case "bytes":
			in = upstream.Bytes{Attempt: attempt, Bytes: []byte(strings.ReplaceAll(word[3], `\n`, "\n"))}
		case "end":
			in = upstream.End{Attempt: attempt}
		case "loss":
			how, detail, _ := strings.Cut(word[3], " ")
			in = upstream.Loss{Attempt: attempt, Sent: how == "sent", Final: how == "final", Detail: detail}
		case "adjust":
			in = upstream.Adjust{Deadline: actor.Time(time.Duration(attempt) * time.Millisecond)}
		case "cancel":
			in = upstream.Cancel{Reason: actor.Stopped}
		case "tick":
			in = upstream.Tick{}
		default:
			t.Fatalf("%q: unknown command", line)
		}
		late := x.LateInputs()
		ops := x.Step(actor.Time(time.Duration(ms)*time.Millisecond), in, pace, highest)
		for _, op := range ops {
			fmt.Fprintf(&b, "    %s\n", formatOp(op))
		}
		if x.LateInputs() > late {
			fmt.Fprintf(&b, "    ignored\n")
		}
		if due, ok := x.NextDeadline(); ok {
			fmt.Fprintf(&b, "    due at %v\n", time.Duration(due))
		}
	}
	return b.String()
}

// startsOfRefused returns the starts of the attempts at a model that refuses every
// connection. The draw decides about the delays.
func startsOfRefused(policy upstream.RetryPolicy, draw uint64) (starts []actor.Duration) {
	config := newExchangeConfig("model", actor.Time(time.Hour))
	config.Retry = policy
	x, pace := upstream.NewExchange(config), upstream.NewBackoff(upstream.BackoffConfig{OpenAfter: 1000})
	for in, now, ok := upstream.Input(upstream.Begin{}), actor.Time(0), true; ok; {
		var next upstream.Input = upstream.Tick{}
		for _, op := range x.Step(now, in, pace, draw) {
			if op, ok := op.(upstream.Send); ok {
				starts = append(starts, actor.Duration(now))
				next = upstream.Loss{Attempt: op.Attempt, Detail: "refused"}
			}
		}
		if in = next; next == (upstream.Tick{}) {
			now, ok = x.NextDeadline()
		}
	}
	return starts
}

// Attempts at a model that cannot be reached are bounded by the total time alone. Each
// delay is drawn from its whole range.
func TestRefusedConnectionsAreRetriedForTheTotalTime(t *testing.T) {
	const s, highest = time.Second, ^uint64(0)
	policy := upstream.RetryPolicy{Tries: 2, Delay: 2 * s, DelayMax: 5 * s, Time: 20 * s}
	exact, once := policy, policy
	exact.Exact, once.Tries = true, 1
	for _, c := range []struct {
		policy upstream.RetryPolicy
		draw   uint64
		want   []actor.Duration
	}{
		{policy, highest, []actor.Duration{0, 2 * s, 6 * s, 11 * s, 16 * s, 20 * s}},
		{policy, highest / 2, []actor.Duration{0, s, 3 * s, 5500 * time.Millisecond, 8 * s, 10500 * time.Millisecond, 13 * s, 15500 * time.Millisecond, 18 * s, 20 * s}},
		{exact, 0, []actor.Duration{0, 2 * s, 6 * s, 11 * s, 16 * s, 20 * s}},
		{once, highest, []actor.Duration{0}},
	} {
		got := startsOfRefused(c.policy, c.draw)
		for i := range got {
			got[i] = got[i].Round(time.Millisecond)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%+v: attempts at %v, want %v", c.policy, got, c.want)
		}
	}
}

// Exchanges that an upstream throttles do not delay each other beyond the maximum of their policy.
func TestThrottledExchangesWaitForTheirMaximum(t *testing.T) {
	const delayMax = time.Second
	pace := upstream.NewBackoff(upstream.BackoffConfig{})
	type caller struct {
		*upstream.Exchange
		since actor.Time // begin, or last failure
	}
	var callers []*caller
	now, failures := actor.Time(0), 0
	step := func(c *caller, in upstream.Input) {
		for queue := []upstream.Input{in}; len(queue) > 0; queue = queue[1:] {
			for _, op := range c.Step(now, queue[0], pace, highest) {
				send, ok := op.(upstream.Send)
				if !ok {
					continue
				}
				if wait := now.Sub(c.since); wait > delayMax {
					t.Fatalf("attempt %d starts %v after the failure before it, want at most %v", send.Attempt, wait, delayMax)
				}
				c.since = now
				failures++
				queue = append(queue, upstream.Head{Attempt: send.Attempt, Status: 429}, upstream.End{Attempt: send.Attempt})
			}
		}
	}
	for range 100 { // one begins in each 50 ms
		config := newExchangeConfig("model", actor.Forever)
		config.Retry = upstream.RetryPolicy{Tries: 5, Delay: 100 * time.Millisecond, DelayMax: delayMax, Time: time.Hour}
		callers = append(callers, &caller{upstream.NewExchange(config), now})
		step(callers[len(callers)-1], upstream.Begin{})
		for until := now.Add(50 * time.Millisecond); ; {
			next := callers[0]
			at := actor.Forever
			for _, c := range callers {
				if due, ok := c.NextDeadline(); ok && due < at {
					next, at = c, due
				}
			}
			if at > until {
				now = until
				break
			}
			now = at
			step(next, upstream.Tick{})
		}
	}
	if failures < 200 {
		t.Errorf("%d attempts, want most exchanges to retry", failures)
	}
}

func TestErrorBodyIsBounded(t *testing.T) {
	x, pace := upstream.NewExchange(newExchangeConfig("model", actor.Forever)), upstream.NewBackoff(upstream.BackoffConfig{})
	x.Step(0, upstream.Begin{}, pace, 0)
	x.Step(0, upstream.Head{Attempt: 1, Status: 400}, pace, 0)
	piece := upstream.Bytes{Attempt: 1, Bytes: make([]byte, 60<<10)}
	if ops := x.Step(0, piece, pace, 0); len(ops) != 0 {
		t.Fatalf("after 60 KiB: got %v, want no operations", ops)
	}
	if ops := x.Step(0, piece, pace, 0); len(ops) != 2 || formatOp(ops[0]) != "close 1" {
		t.Fatalf("after 120 KiB: got %v, want close and end", ops)
	}
}

// TestExchangeInvariants steps an exchange with random inputs in random order and
// checks the guarantees that the doc comment of Exchange lists.
func TestExchangeInvariants(t *testing.T) {
	answers := []string{
		"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hello\"}}]}\n\n",
		"data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n",
		"event: delta\ndata: {\"text\":\"Hi\"}\n\n",
		"event: done\ndata: {}\n\n",
		"event: error\ndata: {\"code\":\"x\"}\n\n",
		": ping\n\n", "data: garbage\n\n", "data: {\"choi",
	}
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom([]string{"model", "agent", "safe agent"}).Draw(t, "kind")
		deadline := actor.Time(time.Duration(rapid.IntRange(0, 60_000).Draw(t, "deadline")) * time.Millisecond)
		x := upstream.NewExchange(newExchangeConfig(kind, deadline))
		pace := upstream.NewBackoff(upstream.BackoffConfig{})
		var now actor.Time
		sends, open, ends, passed := 0, 0, 0, false
		step := func(in upstream.Input) {
			for _, op := range x.Step(now, in, pace, rapid.Uint64().Draw(t, "draw")) {
				if ends > 0 {
					t.Fatalf("%s after the end", formatOp(op))
				}
				switch op := op.(type) {
				case upstream.Send:
					if sends++; op.Attempt != sends || open != 0 || passed && kind == "agent" || now >= deadline {
						t.Fatalf("illegal %s at %v: open attempt %d, forwarded %v", formatOp(op), now, open, passed)
					}
					open = sends
				case upstream.Close:
					if op.Attempt != open {
						t.Fatalf("%s, but attempt %d is open", formatOp(op), open)
					}
					open = 0
				case upstream.Forward:
					passed = true
				case upstream.Retry:
					if kind == "agent" && op.Failure.Class == upstream.Broken {
						t.Fatalf("%s, although the request may have been processed", formatOp(op))
					}
				case upstream.Ended:
					ends++
					if open != 0 || (op.Outcome.Refusal == nil) != (op.Outcome.Completion.Finish != upstream.NoFinish) || len(op.Outcome.Attempts) != sends {
						t.Fatalf("%s with attempt %d open, or an inconsistent outcome", formatOp(op), open)
					}
				}
			}
			if _, due := x.NextDeadline(); due == (ends > 0) {
				t.Fatalf("NextDeadline returned %v after %d ends", due, ends)
			}
		}
		step(upstream.Begin{})
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			next := now.Add(time.Duration(rapid.IntRange(0, 6000).Draw(t, "ms")) * time.Millisecond)
			for due, ok := x.NextDeadline(); ok && due <= next; due, ok = x.NextDeadline() {
				now = max(now, due)
				step(upstream.Tick{})
			}
			now = next
			attempt := rapid.SampledFrom([]int{sends, sends, sends, sends - 1, sends + 1, 0}).Draw(t, "attempt")
			switch rapid.IntRange(0, 7).Draw(t, "input") {
			case 0, 1:
				status := rapid.SampledFrom([]int{200, 200, 200, 200, 429, 503, 500, 400}).Draw(t, "status")
				step(upstream.Head{Attempt: attempt, Status: status, Headers: []upstream.Header{{Name: "Content-Type", Value: "text/event-stream"}, {Name: "Retry-After", Value: "1"}}})
			case 2, 3, 4:
				step(upstream.Bytes{Attempt: attempt, Bytes: []byte(rapid.SampledFrom(answers).Draw(t, "bytes"))})
			case 5:
				step(upstream.End{Attempt: attempt})
			case 6:
				sent := rapid.Bool().Draw(t, "sent")
				step(upstream.Loss{Attempt: attempt, Sent: sent, Final: rapid.Bool().Draw(t, "final"), Detail: "reset"})
			case 7:
				if rapid.IntRange(0, 9).Draw(t, "cancel") == 0 {
					step(upstream.Cancel{Reason: actor.Stopped})
				}
			}
		}
		for due, ok := x.NextDeadline(); ok; due, ok = x.NextDeadline() {
			if due > deadline {
				t.Fatalf("due at %v, after the deadline %v", due, deadline)
			}
			now = max(now, due)
			step(upstream.Tick{})
		}
		if ends != 1 {
			t.Fatalf("got %d ends, want 1", ends)
		}
	})
}

// Backoff implements Pacer; hosts wrap it.
var _ upstream.Pacer = (*upstream.Backoff)(nil)
