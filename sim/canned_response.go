// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/upstream"
)

// cannedResponse is a fixed HTTP response that a model server or an external
// agent sends instead of the requested answer.
type cannedResponse struct {
	status  int
	headers []upstream.Header
	body    string
}

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
		{429, headerList("retry-after", "1"), `{"error":{"message":"too many requests","type":"rate_limit_error"}}`},
		{429, headerList("retry-after-ms", "700"), `{"error":{"message":"too many requests","code":"rate_limit_exceeded"}}`},
		{503, headerList("retry-after", "2"), `{"message":"unavailable","code":17}`},
		{529, nil, `{"error":{"type":"overloaded_error"}}`},
		{503, headerList("retry-after", "Thu, 01 Jan 2026 00:00:21 GMT", "date", "Thu, 01 Jan 2026 00:00:20 GMT"), ""},
		{503, headerList("retry-after", "Thu Jan  1 00:00:30 2026"), "{}"},
		{503, headerList("retry-after", "Thursday, 01-Jan-26 00:00:30 GMT"), "[]"},
		{503, headerList("retry-after", "tomorrow"), "unavailable"},
		{503, headerList("retry-after", "Thu, 01 Jan 1970 00:00:00 GMT"), ""}, {503, headerList("retry-after", "Thu, 01 Foo 2026 00:00:00 GMT"), "7"},
		{503, headerList("retry-after", "Thursday, 01-Jan 00:00:30 GMT"), `{"error":[1]}`}, {503, headerList("retry-after", "Saturday, 01-Jan-94 00:00:30 GMT"), `{"message":"a\ud800"}`},
		{503, headerList("retry-after", "99999999999999999999"), strings.Repeat("busy ", 1<<15)},
		{408, nil, ""}, {425, nil, ""}, {409, nil, `{"error":"conflicting request in progress"}`},
		{400, headerList("x-should-retry", "true"), `{"error":{"message":"please retry"}}`},
	}
	errorResponses = [...]cannedResponse{
		{500, nil, `{"error":{"message":"injected failure","type":"server_error"}}`},
		{502, nil, "<html>bad gateway</html>"},
		{500, headerList("x-should-retry", "false"), `{"detail":"do not retry"}`},
		{501, nil, `{"error":null}`}, {505, nil, ""}, {302, headerList("location", "http://elsewhere.example"), ""},
		{200, headerList("content-type", "text/html"), "<html>welcome</html>"},
		{400, nil, `{"error":{"message":7,"code":"context_length_exceeded"}}`},
		{401, nil, `{"error":{"message":"unknown key","code":"invalid_api_key"}}`},
		{404, nil, `{"detail":404}`},
		{409, headerList("x-should-retry", "false"), ""},
		{200, headerList("content-encoding", "gzip"), "\x1f\x8b"}, {200, headerList("content-type", ""), ""},
		{200, nil, `{"choices":[]}`}, {200, nil, `{"choices":[{},{}]}`}, {200, nil, `{"choices":[{"index":7}]}`}, {200, nil, `{"choices":`}, {200, nil, ""}, {200, nil, "null"},
		{200, nil, `{"error":{"message":"internal failure","type":"server_error"}}`}, {200, nil, `{"error":{"message":"invalid key","code":"invalid_api_key"}}`}, {200, nil, strings.Repeat("[", 200)},
		{200, nil, `{"choices":[{"message":{"content":"a"}}],"usage":{"prompt_tokens":1e18}}`},
	}
)

// respondCanned sends one of the responses, drawn at random, and ends the body.
func (s *upstreamConn) respondCanned(after time.Duration, f Fault, all []cannedResponse) {
	r := all[s.exchange.n.w.entropy.Int(len(all))]
	s.sendHead(after, f, r.status, append(slices.Clone(r.headers), headerList("content-type", "application/json")...)...)
	if len(r.body) > 0 {
		s.deliver(0, noFault, upstream.Bytes{Attempt: s.attempt, Bytes: []byte(r.body)})
	}
	s.endBody(0, noFault)
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
