// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/upstream"
)

// cannedResponse is a fixed HTTP response that a model server or an external
// agent sends instead of the requested answer.
type cannedResponse struct {
	status  int
	headers []upstream.Header
	body    string // SECRET is replaced by a secret of the request
	means   verdict
}

// verdict is the meaning of a response that is no answer. It follows from the
// documentation of the APIs, and is written down without the code that decodes them.
type verdict struct {
	class        upstream.Class
	model, agent actor.Reason   // reason of the refusal, if a model or an agent sent the response
	after        actor.Duration // requested delay
	until        actor.Time     // requested time, instead of a delay; 0: none
}

// delay returns the delay that the response requests if its head arrives at this time.
func (v *verdict) delay(headAt actor.Time) actor.Duration {
	if v.until != 0 {
		return max(0, v.until.Sub(headAt))
	}
	return v.after
}

// The meanings of the canned responses.
var (
	busyFor = func(d actor.Duration) verdict {
		return verdict{class: upstream.Throttled, model: actor.Busy, agent: actor.Busy, after: d}
	}
	overloaded = func(d actor.Duration) verdict {
		return verdict{class: upstream.Throttled, model: actor.Unavailable, agent: actor.Unavailable, after: d}
	}
	halfMinute  = verdict{class: upstream.Throttled, model: actor.Unavailable, agent: actor.Unavailable, until: Origin.Add(30 * time.Second)}
	failing     = verdict{class: upstream.Broken, model: actor.Unavailable, agent: actor.Unavailable}
	unsupported = verdict{class: upstream.Refused, model: actor.Unavailable, agent: actor.Unavailable}
	rejecting   = verdict{class: upstream.Refused, model: actor.ModelRejected, agent: actor.Rejected}
	wrongKey    = verdict{class: upstream.Refused, model: actor.ModelAuth, agent: actor.Rejected}
	wrongModel  = verdict{class: upstream.Refused, model: actor.ModelNotFound, agent: actor.Unavailable}
)

func headerList(names ...string) (all []upstream.Header) {
	for i := 0; i < len(names); i += 2 {
		all = append(all, upstream.Header{Name: names[i], Value: names[i+1]})
	}
	return all
}

// retryLaterResponses ask the node to retry later. errorResponses report a
// failure, refuse the request, or cannot be parsed.
var (
	retryLaterResponses = [...]cannedResponse{
		{429, headerList("retry-after", "1"), `{"error":{"message":"too many requests","type":"rate_limit_error"}}`, busyFor(time.Second)},
		{429, headerList("retry-after-ms", "700"), `{"error":{"message":"too many requests","code":"rate_limit_exceeded"}}`, busyFor(700 * time.Millisecond)},
		{503, headerList("retry-after", "2"), `{"message":"unavailable","code":17}`, overloaded(2 * time.Second)},
		{529, nil, `{"error":{"type":"overloaded_error"}}`, overloaded(0)},
		{503, headerList("retry-after", "Thu, 01 Jan 2026 00:00:21 GMT", "date", "Thu, 01 Jan 2026 00:00:20 GMT"), "", overloaded(time.Second)},
		{503, headerList("retry-after", "Thu Jan  1 00:00:30 2026"), "{}", halfMinute},
		{503, headerList("retry-after", "Thursday, 01-Jan-26 00:00:30 GMT"), "[]", halfMinute},
		{503, headerList("retry-after", "tomorrow"), "unavailable", overloaded(0)},
		{503, headerList("retry-after", "Thu, 01 Jan 1970 00:00:00 GMT"), "", overloaded(0)}, {503, headerList("retry-after", "Thu, 01 Foo 2026 00:00:00 GMT"), "7", overloaded(0)},
		{503, headerList("retry-after", "Thursday, 01-Jan 00:00:30 GMT"), `{"error":[1]}`, overloaded(0)}, {503, headerList("retry-after", "Saturday, 01-Jan-94 00:00:30 GMT"), `{"message":"a\ud800"}`, overloaded(0)},
		{503, headerList("retry-after", "99999999999999999999"), strings.Repeat("busy ", 1<<15), overloaded(time.Hour)},
		{408, nil, "", overloaded(0)}, {425, nil, "", overloaded(0)}, {409, nil, `{"error":"conflicting request in progress"}`, busyFor(0)},
		{400, headerList("x-should-retry", "true"), `{"error":{"message":"please retry"}}`, verdict{class: upstream.Throttled, model: actor.Rejected, agent: actor.Rejected}},
	}
	errorResponses = [...]cannedResponse{
		{500, nil, `{"error":{"message":"injected failure","type":"server_error"}}`, failing},
		{502, nil, "<html>bad gateway</html>", failing},
		{500, headerList("x-should-retry", "false"), `{"detail":"do not retry"}`, unsupported},
		{501, nil, `{"error":null}`, unsupported}, {505, nil, "", unsupported}, {302, headerList("location", "http://elsewhere.example"), "", rejecting},
		{200, headerList("content-type", "text/html"), "<html>welcome</html>", failing},
		{400, nil, `{"error":{"message":7,"code":"context_length_exceeded"}}`, rejecting},
		{401, nil, `{"error":{"message":"unknown key","code":"invalid_api_key"}}`, wrongKey},
		{404, nil, `{"detail":404}`, wrongModel},
		{409, headerList("x-should-retry", "false"), "", rejecting},
		{200, headerList("content-encoding", "gzip"), `{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}`, failing}, {200, headerList("content-type", ""), "", failing},
		{200, nil, `{"choices":[]}`, failing}, {200, nil, `{"choices":[{},{}]}`, failing}, {200, nil, `{"choices":[{"index":7}]}`, failing}, {200, nil, `{"choices":`, failing}, {200, nil, "", failing}, {200, nil, "null", failing},
		{200, nil, `{"error":{"message":"internal failure","type":"server_error"}}`, failing}, {200, nil, `{"error":{"message":"invalid key","code":"invalid_api_key"}}`, verdict{class: upstream.Refused, model: actor.ModelAuth, agent: actor.Unavailable}}, {200, nil, strings.Repeat("[", 200), failing},
		{400, nil, `{"error":{"message":"SECRET is unknown","code":"SECRET","type":"SECRET"}}`, rejecting},
		{400, nil, `{"error":{"message":"` + strings.Repeat("x", 500) + `SECRET"}}`, rejecting},
		{502, nil, `{"message":"SECRET","code":"SECRET"}`, failing}, {200, nil, `{"SECRET":{"SECRET":}}`, failing},
		{200, headerList("content-type", "SECRET/SECRET"), "", failing}, {200, headerList("content-encoding", "SECRET"), "", failing},
	}
)

// respondCanned sends one of the responses, drawn at random, and ends the body.
func (s *upstreamConn) respondCanned(after time.Duration, f Fault, all []cannedResponse) {
	r := &all[s.exchange.n.w.entropy.Int(len(all))]
	s.served.verdict = &r.means
	headers := append(slices.Clone(r.headers), headerList("content-type", "application/json")...)
	for i := range headers {
		headers[i].Value = s.quoteSecret(headers[i].Value)
	}
	s.sendHead(after, f, r.status, headers...)
	if len(r.body) > 0 {
		s.deliver(0, noFault, upstream.Bytes{Attempt: s.attempt, Bytes: []byte(s.quoteSecret(r.body))})
	}
	s.endBody(0, noFault)
}

// quoteSecret puts a secret of the request into a text, as a server does that quotes
// what it rejects.
func (s *upstreamConn) quoteSecret(text string) string {
	secrets := append(secretsOf(s.request), "no secret")
	return strings.ReplaceAll(text, "SECRET", secrets[0])
}

// completionBody encodes a completion as a single JSON document. Some servers send
// such a document even if the request asked for a stream.
func completionBody(completion upstream.Completion) []byte {
	type function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	}
	type call struct {
		ID       string   `json:"id"`
		Function function `json:"function"`
	}
	calls := []call{}
	for _, c := range completion.Calls {
		calls = append(calls, call{c.ID, function{c.Name, c.Arguments}})
	}
	return invariant.Must(json.Marshal(map[string]any{"model": completion.Model, "usage": map[string]int{"prompt_tokens": 3, "completion_tokens": 4},
		"choices": []any{map[string]any{"index": 0, "message": map[string]any{"content": completion.Text, "tool_calls": calls}, "finish_reason": completion.Finish.String()}}}))
}
