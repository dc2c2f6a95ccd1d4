// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// The error of a model reaches a client as it is, but for secrets, whether it is the response or within a stream.
func TestChatErrorIsPassedOn(t *testing.T) {
	const object = `{"error":{"message":"no","type":"invalid_request_error","param":"messages.0","code":"x","more":{"a":[1.50]}},"request_id":"r"}`
	for _, c := range []struct {
		name   string
		status int
		body   string
		want   string
	}{
		{"a status", 400, object, object},
		{"a text as error", 422, ` {"error":"no"} `, `{"error":"no"}`},
		{"a list of one", 400, "[" + object + "]", object},
		{"a secret", 400, `{"error":{"message":"key sk-\u0073ecret"}}`, `{"error":{"message":"key ***"}}`},
		{"another form", 400, `{"detail":"no"}`, ""},
		{"a null error", 400, `{"error":null,"message":"no"}`, ""},
		{"a text", 500, "down", ""},
		{"too large", 400, `{"error":{"message":"` + strings.Repeat("x", errorObjectMax) + `"}}`, ""},
		{"in a stream", 200, streamPieces + "data: " + object + "\n\n", object},
		{"in a stream, named", 200, streamPieces + "event: error\ndata: " + object + "\n\n", object},
		{"in a stream, an error by its name only", 200, "event: error\ndata: {\"message\":\"no\"}\n\n", ""},
	} {
		chat := readChat(t, `{"model":"m","messages":[{}],"stream":true,"stream_options":{"include_usage":true}}`)
		order, _, _ := Model{URL: "http://m", Key: "sk-secret"}.Chat(&chat, "m", actor.Time(time.Hour), AttemptLimits{Retry: RetryPolicy{Tries: 1}})
		x, pace := NewExchange(order), NewBackoff(BackoffConfig{})
		var out *Outcome
		for _, in := range []Input{Begin{}, Head{Attempt: 1, Status: c.status, Headers: []Header{{Name: "content-type", Value: "text/event-stream"}}}, Bytes{1, []byte(c.body)}, End{1}} {
			for _, op := range x.Step(0, in, pace, 0) {
				if ended, ok := op.(Ended); ok {
					out = &ended.Outcome
				}
			}
		}
		if out == nil || out.Refusal == nil || string(out.Object) != c.want {
			t.Errorf("%s: got %+v, want the error %s", c.name, out, c.want)
		}
	}
}
