// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/upstream"
)

const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestInvokeRequest(t *testing.T) {
	a := upstream.Agent{URL: "http://127.0.0.1:9000/agents/helper/", Auth: "key"}
	in := upstream.Invocation{
		Agent: "helper", Session: "s-42", Run: "run-1", Input: "hi\xff", User: "u-1", Project: "p-1", Trace: trace, Token: "tok",
		Messages: []upstream.Message{
			{Role: upstream.System, Text: "be brief"},
			{Role: upstream.User, Text: "before"},
			{Role: upstream.Assistant, Text: "after", Calls: []upstream.ToolCall{{ID: "a", Name: "f"}}},
			{Role: upstream.Tool, CallID: "a", Text: "not the agent's"},
		},
	}
	request, refusal := a.Invoke(in)
	if refusal != nil {
		t.Fatal(refusal)
	}
	want := `{"agent_id":"helper","session_id":"s-42","run_id":"run-1","input_message":{"role":"user","content":"hi` + "\uFFFD" + `"},` +
		`"messages":[{"role":"system","content":"be brief"},{"role":"user","content":"before"},{"role":"assistant","content":"after"}],"context":{"user_id":"u-1","project_id":"p-1"}}`
	if string(request.Body) != want {
		t.Errorf("body: got\n%s\nwant\n%s", request.Body, want)
	}
	if request.Method != "POST" || request.URL != "http://127.0.0.1:9000/agents/helper/invoke" {
		t.Errorf("wrong method or URL: %s", request)
	}
	headers := "[content-type: application/json accept: text/event-stream x-session-id: s-42 x-run-id: run-1 traceparent: " + trace + " x-run-token: *** authorization: ***]"
	if got := fmt.Sprint(request.Headers); got != headers {
		t.Errorf("headers: got\n%s\nwant\n%s", got, headers)
	}
	if got := request.Headers[5].Value; got != "tok" {
		t.Errorf("x-run-token: got %q, want tok", got)
	}
	if got := request.Headers[6].Value; got != "Bearer key" {
		t.Errorf("authorization: got %q, want Bearer key", got)
	}
	in.Of = actor.Provenance{Tool: "agent_call", Correlation: actor.NewCallID(1, 2, 3)}
	delivered, _ := a.Invoke(in)
	if want := `"provenance":{"kind":"tool_response","sourceTool":"agent_call","correlationId":"` + in.Of.Correlation.String() + `"}}`; !strings.Contains(string(delivered.Body), want) {
		t.Errorf("delivered: got\n%s\nwant\n%s", delivered.Body, want)
	}
	bare, _ := upstream.Agent{URL: "http://h"}.Invoke(upstream.Invocation{Agent: "helper", Session: "s", Run: "r"})
	if got := string(bare.Body); got != `{"agent_id":"helper","session_id":"s","run_id":"r","input_message":{"role":"user","content":""},"messages":[],"context":{"user_id":""}}` || len(bare.Headers) != 4 {
		t.Errorf("minimal invocation: got body %s, headers %v", got, bare.Headers)
	}
	poll, _ := a.HealthRequest()
	if poll.String() != "GET http://127.0.0.1:9000/agents/helper/health, 0 bytes" || len(poll.Headers) != 1 || poll.Headers[0].Value != "Bearer key" {
		t.Errorf("health request: got %s, headers %v", poll, poll.Headers)
	}
}

func TestInvocationOfCall(t *testing.T) {
	root, id := actor.NewCallID(0, 1, 2), actor.NewCallID(actor.Time(time.Second), 3, 4)
	call := actor.Call{ID: id, Root: root, To: actor.NewID("helper", "s-42"), Principal: "u-1", Parts: actor.Text("hi")}
	in := upstream.InvocationOf("helper", &call, "tok")
	if in.Session != "s-42" || in.Run != id.String() || in.Input != "hi" || in.User != "u-1" || in.Token != "tok" || in.Agent != "helper" {
		t.Errorf("got invocation %+v", in)
	}
	if want := "00-" + strings.ReplaceAll(root.String(), "-", "") + "-8000000000000004-00"; in.Trace != want {
		t.Errorf("got trace %s, want %s", in.Trace, want)
	}
	call.Trace = trace
	call.Parts = []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(`{"a":1}`)}}
	if in := upstream.InvocationOf("helper", &call, ""); in.Trace != trace || in.Input != `{"a":1}` {
		t.Errorf("got invocation %+v", in)
	}
}

func TestInvokeRejectsInvalid(t *testing.T) {
	a := upstream.Agent{URL: "http://h"}
	for _, c := range []struct {
		in   upstream.Invocation
		want string
	}{
		{upstream.Invocation{Session: "a\r\nx-admin: 1"}, "header x-session-id: control character at byte 1"},
		{upstream.Invocation{Run: "\n"}, "header x-run-id"},
		{upstream.Invocation{Token: "\x7f"}, "header x-run-token"},
		{upstream.Invocation{Messages: make([]upstream.Message, 4097)}, "4097 messages"},
		{upstream.Invocation{Input: strings.Repeat("x", 8<<20)}, "exceeds the maximum of 8388608"},
	} {
		if _, refusal := a.Invoke(c.in); refusal == nil || refusal.Reason != actor.Invalid || !strings.Contains(refusal.Detail, c.want) {
			t.Errorf("got refusal %v, want %q", refusal, c.want)
		}
	}
	if _, refusal := (upstream.Agent{URL: "gopher://h"}).HealthRequest(); refusal == nil {
		t.Error("HealthRequest accepts a gopher URL")
	}
}

func TestInvokeSendsOnlyValidTraceparent(t *testing.T) {
	for _, c := range []struct {
		trace string
		sent  bool
	}{
		{trace, true},
		{"01" + trace[2:] + "-what-comes-later", true},
		{"", false},
		{trace + "-00", false},
		{strings.ToUpper(trace), false},
		{"ff" + trace[2:], false},
		{"00-" + strings.Repeat("0", 32) + "-b7ad6b7169203331-01", false},
		{"00-0af7651916cd43dd8448eb211c80319c-" + strings.Repeat("0", 16) + "-01", false},
		{trace[:54], false},
		{trace + "\r\nx: y", false},
	} {
		request, refusal := upstream.Agent{URL: "http://h"}.Invoke(upstream.Invocation{Trace: c.trace})
		if refusal != nil || strings.Contains(fmt.Sprint(request.Headers), "traceparent") != c.sent {
			t.Errorf("%q: got headers %v, refusal %v", c.trace, request.Headers, refusal)
		}
	}
}

// An agent that reports no total used the sum of its input and output.
func TestAgentUsageTotal(t *testing.T) {
	for data, want := range map[string]upstream.Usage{
		`{}`: {},
		`{"usage":{"input_tokens":2,"output_tokens":3}}`:             {Known: true, Input: 2, Output: 3, Total: 5},
		`{"usage":{"input_tokens":2,"output_tokens":3,"tokens":1}}`:  {Known: true, Input: 2, Output: 3, Total: 1},
		`{"usage":{"input_tokens":2,"output_tokens":3,"tokens":12}}`: {Known: true, Input: 2, Output: 3, Total: 12},
		`{"usage":{"prompt_tokens":2,"completion_tokens":3}}`:        {Known: true, Input: 2, Output: 3, Total: 5},
		`{"usage":{"total_tokens":7}}`:                               {Known: true, Total: 7},
		`{"usage":{"tokens":123}}`:                                   {Known: true, Total: 123},
		`{"usage":null}`:                                             {},
		`{"usage":{"cost":0.5}}`:                                     {},
	} {
		d, failure := upstream.NewAgentDecoder("agent helper", "run-1", nil, "text/event-stream")
		if failure != nil {
			t.Fatal(failure)
		}
		if _, failure := d.Decode([]byte("event: done\ndata: " + data + "\n\n")); failure != nil || !d.Done() || d.Completion().Usage != want {
			t.Errorf("%s: got %+v, %v, want %+v", data, d.Completion().Usage, failure, want)
		}
	}
}

func TestHealth(t *testing.T) {
	second := func(n int) actor.Time { return actor.Time(time.Duration(1000+n) * time.Second) }
	h := upstream.NewHealth(second(0), dispatcher.AgentBreaker())
	for _, c := range []struct {
		at      int
		status  int // of a poll; -1: heartbeat, -2: neither
		healthy bool
		poll    int
		since   int // start of the unhealthy time; 0: healthy
	}{
		{0, -2, true, 15, 0},
		{15, 0, true, 30, 0},
		{30, 0, true, 45, 0},
		{45, -2, true, 45, 0},
		{46, -2, false, 45, 45},
		{50, 200, true, 65, 0},
		{60, 503, false, 75, 60},
		{61, 0, false, 76, 60},
		{62, 503, false, 77, 60},
		{63, -1, true, 77, 0},
		{64, 404, true, 79, 0},
		{65, 405, true, 80, 0},
		{108, -2, true, 80, 0},
		{109, -2, false, 80, 108},
		{110, 503, false, 125, 108},
	} {
		switch {
		case c.status == -1:
			h.Heartbeat(second(c.at))
		case c.status >= 0:
			h.RecordPoll(second(c.at), c.status)
		}
		pass := h.Admit(second(c.at))
		refusal := pass.Refusal
		if h.Healthy(second(c.at)) != c.healthy || (refusal == nil) != c.healthy || h.NextPoll() != second(c.poll) {
			t.Errorf("at %d after %d: got healthy %v, next poll %v, refusal %v", c.at, c.status, h.Healthy(second(c.at)), time.Duration(h.NextPoll()), refusal)
		}
		if refusal != nil && (refusal.Reason != actor.Unavailable || refusal.RetryAfter <= 0) {
			t.Errorf("at %d: got refusal %+v, want Unavailable with RetryAfter", c.at, refusal)
		}
		since := actor.Time(0)
		if c.since != 0 {
			since = second(c.since)
		}
		if pass.Since != since {
			t.Errorf("at %d: unhealthy since %v, want %d s", c.at, time.Duration(pass.Since), c.since)
		}
	}
}

// An invocation of an unhealthy agent waits for its health, at most the time of its
// retries after the agent became unhealthy.
func TestInvocationWaitsForHealth(t *testing.T) {
	second := func(n float64) actor.Time { return actor.Time(n * float64(time.Second)) }
	for _, c := range []struct {
		name        string
		begin, beat float64 // times of the invocation and of a heartbeat
		tries       int
		ends        float64 // time of the request, or of the refusal
		sent        bool
	}{
		{"heartbeat during the wait", 46, 60.5, 5, 61, true},
		{"no heartbeat in time", 46, 999, 5, 75, false},
		{"unhealthy for longer", 76, 999, 5, 76, false},
		{"no retries", 46, 60.5, 1, 46, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			health := upstream.NewHealth(second(0), dispatcher.AgentBreaker())
			in := upstream.Invocation{Agent: "helper", Session: "s", Run: "run-1"}
			order, _ := upstream.Agent{URL: "http://a"}.Exchange(in, true, second(1000), upstream.AttemptLimits{Retry: upstream.RetryPolicy{Tries: c.tries}})
			pacer := &upstream.InvocationPacer{Pacer: upstream.NewBackoff(upstream.BackoffConfig{}), Gate: &health}
			x, now, beaten := upstream.NewExchange(order), second(c.begin), false
			ops := x.Step(now, upstream.Begin{}, pacer, 0)
			for len(ops) == 0 {
				due, ok := x.NextDeadline()
				if !ok || due <= now {
					t.Fatalf("at %v: next deadline %v, %v", time.Duration(now), time.Duration(due), ok)
				}
				if now = due; now >= second(c.beat) && !beaten {
					beaten = true
					health.Heartbeat(second(c.beat))
				}
				ops = x.Step(now, upstream.Tick{}, pacer, 0)
			}
			_, sent := ops[0].(upstream.Send)
			if now != second(c.ends) || sent != c.sent {
				t.Errorf("at %v: %s; want it at %v s", time.Duration(now), formatOp(ops[0]), c.ends)
			}
			if !sent {
				refusal := ops[0].(upstream.Ended).Outcome.Refusal
				if refusal.Reason != actor.Unavailable || !strings.HasPrefix(refusal.Detail, "agent helper: unhealthy: last contact ") {
					t.Errorf("%v", refusal)
				}
				return
			}
			// The retries of an admitted invocation do not wait for another poll.
			health.RecordPoll(now, 503)
			ops = x.Step(now, upstream.Loss{Attempt: 1, Detail: "refused"}, pacer, 0) // the drawn delay is 0
			if _, sent := ops[len(ops)-1].(upstream.Send); !sent {
				t.Errorf("after a refused connection: %s", formatOp(ops[len(ops)-1]))
			}
		})
	}
}

// An agent that could not be reached gets no invocation for one second.
func TestUnreachedAgentIsSparedForASecond(t *testing.T) {
	at := actor.Time(1000 * time.Second)
	h := upstream.NewHealth(at, dispatcher.AgentBreaker())
	h.Record(at, &upstream.Outcome{Evidence: dispatcher.Unreached, Attempts: []upstream.Attempt{{At: at}}}, false)
	if pass := h.Admit(at.Add(time.Second - 1)); pass.Refusal == nil || pass.Refusal.RetryAfter <= 0 {
		t.Errorf("within the second: got %+v, want a refusal", pass)
	}
	if pass := h.Admit(at.Add(time.Second)); pass.Refusal != nil {
		t.Errorf("after the second: got %+v", pass)
	}
}

// The head of a response shows that an agent can be reached, and closes a circuit that opened because it
// could not. A circuit that failures opened waits for the whole answer.
func TestProbeClosesCircuit(t *testing.T) {
	at := func(s int) actor.Time { return actor.Time(time.Duration(1000+s) * time.Second) }
	for name, c := range map[string]struct {
		evidence    dispatcher.Evidence
		calls       int
		head, ended dispatcher.Circuit
	}{
		"unreachable": {dispatcher.Unreached, 3, dispatcher.Closed, dispatcher.Closed},
		"failures":    {dispatcher.Failed, 10, dispatcher.HalfOpen, dispatcher.Closed},
	} {
		health := upstream.NewHealth(at(0), dispatcher.AgentBreaker())
		for range c.calls {
			health.Record(at(0), &upstream.Outcome{Evidence: c.evidence, Attempts: []upstream.Attempt{{At: at(0)}}}, false)
		}
		order, _ := upstream.Agent{URL: "http://a"}.Exchange(upstream.Invocation{Agent: "helper", Session: "s", Run: "run-1"}, true, at(100), upstream.AttemptLimits{})
		begin := func(s int) (*upstream.Exchange, *upstream.InvocationPacer, []upstream.Op) {
			x, pacer := upstream.NewExchange(order), &upstream.InvocationPacer{Pacer: upstream.NewBackoff(upstream.BackoffConfig{NoCircuit: true}), Gate: &health}
			return x, pacer, x.Step(at(s), upstream.Begin{}, pacer, 0)
		}
		if _, _, ops := begin(4); ops[0].(upstream.Ended).Outcome.Refusal.RetryAfter != time.Second {
			t.Errorf("%s: while the circuit is open: %s", name, formatOp(ops[0]))
		}
		x, pacer, ops := begin(5)
		if _, sent := ops[0].(upstream.Send); !sent {
			t.Fatalf("%s: the probe: %s", name, formatOp(ops[0]))
		}
		if _, _, ops := begin(5); ops[0].(upstream.Ended).Outcome.Refusal == nil {
			t.Errorf("%s: beside the probe: %s", name, formatOp(ops[0]))
		}
		x.Step(at(6), upstream.Head{Attempt: 1, Status: 200, Headers: []upstream.Header{{Name: "content-type", Value: "text/event-stream"}}}, pacer, 0)
		if got, _ := health.Circuit(at(6)); got != c.head {
			t.Errorf("%s: after the head the circuit is %s", name, got)
		}
		ops = x.Step(at(7), upstream.Bytes{Attempt: 1, Bytes: []byte("event: done\ndata: {}\n\n")}, pacer, 0)
		outcome := ops[len(ops)-1].(upstream.Ended).Outcome
		pacer.End(at(7), &outcome)
		if got, opened := health.Circuit(at(7)); got != c.ended || opened != 1 {
			t.Errorf("%s: after the answer the circuit is %s and opened %d times", name, got, opened)
		}
	}
}

// An invocation waits for an agent that is unhealthy, but not for one whose circuit is open.
func TestOpenCircuitIsNotWaitedFor(t *testing.T) {
	at := actor.Time(1000 * time.Second)
	health := upstream.NewHealth(at, dispatcher.AgentBreaker())
	health.RecordPoll(at, 503)
	if pass := health.Admit(at); pass.Refusal == nil || pass.Since == 0 {
		t.Errorf("unhealthy: got %+v, want a wait", pass)
	}
	for range 10 {
		health.Record(at, &upstream.Outcome{Evidence: dispatcher.Failed, Attempts: []upstream.Attempt{{Status: 500}}}, false)
	}
	if pass := health.Admit(at); pass.Refusal == nil || pass.Since != 0 || pass.Refusal.RetryAfter != 5*time.Second {
		t.Errorf("open: got %+v, want no wait", pass)
	}
}

// What the end of an invocation states about its agent; the guide has the table.
func TestEvidenceOfInvocations(t *testing.T) {
	const begun = actor.Time(1000 * time.Second)
	stream := []upstream.Header{{Name: "content-type", Value: "text/event-stream"}}
	status := func(s int) []upstream.Input {
		return []upstream.Input{upstream.Head{Attempt: 1, Status: s}, upstream.End{Attempt: 1}}
	}
	answer := func(body string) []upstream.Input {
		return []upstream.Input{upstream.Head{Attempt: 1, Status: 200, Headers: stream}, upstream.Bytes{Attempt: 1, Bytes: []byte(body)}}
	}
	for _, c := range []struct {
		name   string
		inputs []upstream.Input
		after  actor.Duration // until the last input
		want   dispatcher.Evidence
	}{
		{"answer", answer("event: done\ndata: {}\n\n"), 0, dispatcher.Succeeded},
		{"error event", answer("event: error\ndata: {\"code\":\"agent_unavailable\"}\n\n"), 0, dispatcher.Reached},
		{"malformed event", answer("event: delta\ndata: x\n\n"), 0, dispatcher.Failed},
		{"400", status(400), 0, dispatcher.Reached},
		{"401", status(401), 0, dispatcher.Reached},
		{"404", status(404), 0, dispatcher.Failed},
		{"409", status(409), 0, dispatcher.Reached},
		{"429", status(429), 0, dispatcher.Reached},
		{"500", status(500), 0, dispatcher.Failed},
		{"501", status(501), 0, dispatcher.Failed},
		{"502", status(502), 0, dispatcher.Failed},
		{"503", status(503), 0, dispatcher.Reached},
		{"529", status(529), 0, dispatcher.Reached},
		{"302", status(302), 0, dispatcher.Reached},
		{"no connection", []upstream.Input{upstream.Loss{Attempt: 1, Detail: "refused"}}, 0, dispatcher.Unreached},
		{"forbidden address", []upstream.Input{upstream.Loss{Attempt: 1, Final: true, Detail: "not allowed"}}, 0, dispatcher.NoEvidence},
		{"lost connection", []upstream.Input{upstream.Loss{Attempt: 1, Sent: true, Detail: "reset"}}, 0, dispatcher.Failed},
		{"cancelled", []upstream.Input{upstream.Cancel{Reason: actor.Stopped}}, 9 * time.Second, dispatcher.NoEvidence},
		{"cancelled after a silence", []upstream.Input{upstream.Cancel{Reason: actor.Stopped}}, 10 * time.Second, dispatcher.NoEvidence},
		{"deadline", []upstream.Input{upstream.Tick{}}, 60 * time.Second, dispatcher.Failed},
		{"soon deadline", []upstream.Input{upstream.Adjust{Deadline: begun.Add(9 * time.Second)}}, 9 * time.Second, dispatcher.NoEvidence},
		{"deadline before it begins", nil, 0, dispatcher.NoEvidence},
	} {
		deadline := begun.Add(time.Minute)
		if c.inputs == nil {
			deadline = begun
		}
		order, _ := upstream.Agent{URL: "http://a"}.Exchange(upstream.Invocation{Agent: "helper", Session: "s", Run: "run-1"}, true, deadline,
			upstream.AttemptLimits{Retry: upstream.RetryPolicy{Tries: 1}})
		health := upstream.NewHealth(begun, dispatcher.AgentBreaker())
		x, pacer := upstream.NewExchange(order), &upstream.InvocationPacer{Pacer: upstream.NewBackoff(upstream.BackoffConfig{NoCircuit: true}), Gate: &health}
		ops := x.Step(begun, upstream.Begin{}, pacer, 0)
		for i, in := range c.inputs {
			now := begun
			if i == len(c.inputs)-1 {
				now = begun.Add(c.after)
			}
			ops = x.Step(now, in, pacer, 0)
		}
		ended, ok := ops[len(ops)-1].(upstream.Ended)
		if !ok || ended.Outcome.Evidence != c.want {
			t.Errorf("%s: got evidence %d in %s, want %d", c.name, ended.Outcome.Evidence, formatOp(ops[len(ops)-1]), c.want)
		}
	}
}

// An agent that repeats its credential does not disclose it, in whatever pieces.
func TestAgentAnswerHasNoCredential(t *testing.T) {
	const secret = "s3cr3t-of-the-agent"
	for name, body := range map[string]string{
		"a piece":  "event: delta\ndata: {\"text\":\"it is " + secret + " again\"}\n\n",
		"pieces":   "event: delta\ndata: {\"text\":\"it is s3cr\"}\n\nevent: delta\ndata: {\"text\":\"3t-of-the-agent again\"}\n\n",
		"the end":  "event: delta\ndata: {\"text\":\"it is s3cr\"}\n\nevent: done\ndata: {\"text\":\"it is " + secret + " again\"}\n\n",
		"no piece": "event: done\ndata: {\"text\":\"it is " + secret + " again\"}\n\n",
	} {
		d, f := upstream.NewAgentDecoder("helper", "run", upstream.Secrets{"Bearer " + secret, secret}, "text/event-stream")
		if f != nil {
			t.Fatal(f)
		}
		streamed := ""
		deltas, f := d.Decode([]byte("event: state\ndata: {\"state\":\"has " + secret + "\",\"detail\":{\"x\":\"" + secret + "\"}}\n\n" + body + "event: done\ndata: {}\n\n"))
		for _, delta := range deltas {
			streamed += delta.State + delta.Detail + delta.Text
		}
		text := d.Completion().Text
		if f != nil || strings.Contains(streamed+text, secret) || !strings.HasPrefix(text, "it is ") || !strings.HasSuffix(text, " again") || !strings.HasSuffix(streamed, text) {
			t.Errorf("%s: got %q, streamed %q, %v", name, text, streamed, f)
		}
	}
}

// An event state that names no state ends the answer with the event and the rule. What the agent sent before stays, and
// nothing of the event is passed on. A member that is there twice has its last value.
func TestStatesThatAreNone(t *testing.T) {
	for name, c := range map[string]struct{ data, shown, want string }{
		"null":                    {`{"state":null}`, "", "event 2, state: want a state of 1 to"},
		"no member":               {`{"detail":{"n":1}}`, "", "event 2, state: want a state of 1 to"},
		"an empty text":           {`{"state":"","detail":1}`, "", "event 2, state: want a state of 1 to"},
		"a long text":             {`{"state":"` + strings.Repeat("x", 4096) + `"}`, "", "event 2, state: want a state of 1 to"},
		"a number":                {`{"state":7}`, "", "event 2, state: "},
		"an object":               {`{"state":{"name":"searching"}}`, "", "event 2, state: "},
		"a list of events":        {`[{"state":"searching"}]`, "", "event 2, state: "},
		"no JSON":                 {`searching`, "", "event 2, state: "},
		"half of it":              {`{"state":"searching"`, "", "event 2, state: "},
		"two values":              {`{"state":"a"}{"state":"b"}`, "", "event 2, state: "},
		"a long detail":           {`{"state":"x","detail":"` + strings.Repeat("y", 8<<10) + `"}`, "", "event 2, state: detail of 8194 bytes exceeds the maximum of 4096"},
		"twice":                   {`{"state":"a","state":"b"}`, "b ", ""},
		"twice, the last is null": {`{"state":"a","state":null}`, "", "event 2, state: want a state of 1 to"},
		"a detail twice":          {`{"state":"a","detail":1,"detail":2}`, "a 2", ""},
		"a detail of null":        {`{"state":"a","detail":null}`, "a ", ""},
	} {
		d, f := upstream.NewAgentDecoder("agent helper", "run-1", nil, "text/event-stream")
		if f != nil {
			t.Fatal(f)
		}
		deltas, f := d.Decode([]byte("event: delta\ndata: {\"text\":\"so far\"}\n\nevent: state\ndata: " + c.data + "\n\nevent: delta\ndata: {\"text\":\", more\"}\n\nevent: done\ndata: {}\n\n"))
		shown, text := "", "so far"
		for _, delta := range deltas[1:] {
			shown += delta.State + " " + delta.Detail + delta.Text
		}
		if c.want == "" {
			c.shown, text = c.shown+" , more", "so far, more"
		}
		if shown != c.shown || d.Completion().Text != text || d.Done() != (c.want == "") {
			t.Errorf("%s: shows %q, answers %q", name, shown, d.Completion().Text)
		}
		if (f == nil) != (c.want == "") || f != nil && (!strings.Contains(f.Refusal.Detail, c.want) || len(f.Refusal.Detail) > 1<<10) {
			t.Errorf("%s: got %v, want %q", name, f, c.want)
		}
	}
}
