// SPDX-License-Identifier: Apache-2.0

package ingress_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/signals"
)

func TestTraceAcceptsOnlyValidTraceparent(t *testing.T) {
	const good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for in, want := range map[string]string{
		good: good, "": "", "x": "", strings.ToUpper(good): "", "ff" + good[2:]: "",
		"00-00000000000000000000000000000000-00f067aa0ba902b7-01": "", "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01": "",
	} {
		if got := ingress.Trace([]string{in}, nil); got != want {
			t.Errorf("%q becomes %q", in, got)
		}
	}
	if got := ingress.Trace([]string{good, good}, nil); got != "" {
		t.Errorf("two headers become %q", got)
	}
	if got := ingress.Trace(nil, nil); got != "" {
		t.Errorf("no header becomes %q", got)
	}
}

func TestParseIdempotencyValidatesHeader(t *testing.T) {
	body := []byte("{}")
	for _, headers := range [][]string{{""}, {"a", "a"}, {strings.Repeat("k", 256)}, {"a\x00"}, {"ä"}} {
		if promise, r := ingress.ParseIdempotency("local", "POST /", headers, body); r == nil || r.Field != ingress.IdempotencyKey || !promise.IsZero() {
			t.Errorf("%q: %+v, %v", headers, promise, r)
		}
	}
	if promise, r := ingress.ParseIdempotency("local", "POST /", nil, body); r != nil || !promise.IsZero() {
		t.Errorf("no header: %+v, %v", promise, r)
	}
	want := actor.Idempotency{Principal: "local", Route: "POST /", Key: strings.Repeat("k", 255), Body: actor.HashOf(body)}
	if promise, r := ingress.ParseIdempotency("local", "POST /", []string{want.Key}, body); r != nil || promise != want {
		t.Errorf("%+v, %v", promise, r)
	}
}

func TestRequestBodies(t *testing.T) {
	run, caller := actor.NewCallID(start, 1, 2), actor.NewID("py", "s-1")
	for _, c := range []struct {
		body, want, to string
	}{
		{`{"message":"hi"}`, `{"agent_id":"helper","message":"hi"}`, "helper/s-1"},
		{`{"message":" ","session_id":"s-1","timeout_ms":7}`, `{"agent_id":"helper","message":" ","timeout_ms":7}`, "helper/s-1"},
		{`{"message":{"role":"user","content":"hi"}}`, `{"agent_id":"helper","message":"hi"}`, "helper/s-1"},
		{`{"input_message":{"role":"user","content":"hi"}}`, `{"agent_id":"helper","message":"hi"}`, "helper/s-1"},
		{`{"input_message":{"role":"user","content":[{"type":"text","text":"hi"}]},"content":"hi"}`, `{"agent_id":"helper","message":"hi"}`, "helper/s-1"},
		{`{"input_message":{"role":"user","content":"hi"},"agent_id":"helper","run_id":"` + run.String() + `","session_id":"s-1",` +
			`"messages":[{"role":"system","content":"..."}],"context":{"user_id":"u1"},"timeout_ms":7}`, `{"agent_id":"helper","message":"hi","timeout_ms":7}`, "helper/s-1"},
		{`{"message":"hi","user_id":"local"}`, `{"agent_id":"helper","message":"hi"}`, "helper/s-1"},
		{`{"input_message":{"content":"hi"},"agent_id":null,"run_id":"","messages":null,"context":{}}`, `{"agent_id":"helper","message":"hi"}`, "helper/s-1"},
	} {
		call, to, r := ingress.Invoke(run, caller, "helper", []byte(c.body))
		if r != nil || to.String() != c.to || string(call.Parts[0].Bytes) != c.want || call.To != caller || call.Parent != run || call.Kind != actor.Signal || call.Operation != signals.OpCallAgent {
			t.Errorf("%s: %+v, %v", c.body, call, r)
		}
	}
	for body, field := range map[string]string{`{}`: "content", `{"message":""}`: "message", `{"message":"x","session_id":"a/b"}`: "session_id", `{"message":"x","timeout_ms":-1}`: "timeout_ms", `{"message":"x","agent_id":"y"}`: "agent_id",
		`{"input_message":{"role":"assistant","content":"x"}}`: "input_message", `{"input_message":{"role":"user","content":""}}`: "input_message", `{"input_message":null}`: "content",
		`{"input_message":{"role":"user","content":"x"},"message":"y"}`: "input_message", `{"content":"x","message":"x","input_message":"y"}`: "input_message",
		`{"message":"x","run_id":"run1"}`: "run_id", `{"message":"x","messages":{}}`: "messages", `{"message":"x","context":[]}`: "context",
		`{"message":"x","user_id":"alice"}`: "user_id", `{"message":"x","run":"y"}`: "run", `{"message":"x","message":"x"}`: "message"} {
		if _, _, r := ingress.Invoke(run, caller, "helper", []byte(body)); r == nil || r.Field != field || r.Reason != actor.Invalid {
			t.Errorf("invoke %s: %v", body, r)
		}
	}
	acme := actor.Principal{Tenant: "acme"}
	for body, want := range map[string]string{
		`{"content":[{"type":"text","text":"hi"}]}`:                                          "hi",
		`{"content":[{"type":"text","text":"h"},{"text":"\u0069","type":"text"}]}`:           "hi",
		`{"message":[{"type":"text","text":"hi"}],"content":"hi"}`:                           "hi",
		`{"message":{"role":"user","content":"hi"}}`:                                         "hi",
		`{"message":{"content":[{"type":"text","text":""},{"type":"text","text":"hi"}]}}`:    "hi",
		`{"message":{"content":"hi","role":"user"},"content":[{"type":"text","text":"hi"}]}`: "hi",
	} {
		if call, r := ingress.Message(acme, "helper", []byte(body)); r != nil || actor.TextOf(call.Parts) != want {
			t.Errorf("message %s: got %q, %v", body, actor.TextOf(call.Parts), r)
		}
	}
	for body, want := range map[string]string{
		`{"content":[{"type":"image_url","image_url":{"url":"http://a"}}]}`: `content: part 0 has the type "image_url": want "text"`,
		`{"content":[{"type":"text","text":"a"},{"type":"audio"}]}`:         `content: part 1 has the type "audio": want "text"`,
		`{"content":[{"text":"a"}]}`:                                        `content: part 0 has the type "": want "text"`,
		`{"content":[{"type":7}]}`:                                          `content: part 0: type: wrong JSON type`,
		`{"content":[{"type":"text"}]}`:                                     `content: part 0: text is missing`,
		`{"content":[{"type":"text","text":7}]}`:                            `content: part 0: text: wrong JSON type`,
		`{"content":[{"type":"text","text":"a","name":"b"}]}`:               `content: part 0: name: is unknown; want type, text`,
		`{"content":["a"]}`:                                                 `content: part 0: want a JSON object`,
		`{"content":[{"type":"text","text":"a","text":"b"}]}`:               `content: is a duplicate`,
		`{"content":[]}`:                                                    `content: is empty: want text for the agent`,
		`{"content":7}`:                                                     `content: want text or a list of parts {"type": "text", "text": "text for the agent"}`,
		`{"content":{"role":"user","content":"a"}}`:                         `content: want text or a list of parts {"type": "text", "text": "text for the agent"}`,
		`{"message":{"role":"system","content":"a"}}`:                       `message: the role is "system": want "user"`,
		`{"message":{"role":"user"}}`:                                       `message: content is missing`,
		`{"message":{"role":"user","content":[{"type":"file"}]}}`:           `message: part 0 has the type "file": want "text"`,
		`{"message":{"role":"user","content":"a","name":"b"}}`:              `message: name: is unknown; want role, content`,
		`{"message":{"role":7,"content":"a"}}`:                              `message: role: wrong JSON type`,
		`{"message":{"role":"user","content":"a"},"content":"b"}`:           `message: differs from content, which means the same: want one of them`,
		`{"input_message":{"role":"user","content":"a"}}`:                   `input_message: is unknown; want content, session_id, timeout_ms, priority, project_id, if_busy, user_id`,
	} {
		if _, r := ingress.Message(acme, "helper", []byte(body)); r == nil || r.Detail != want || r.Reason != actor.Invalid {
			t.Errorf("message %s: got %v, want %s", body, r, want)
		}
	}
	for body, want := range map[string]actor.Call{
		`{"content":"hi","session":"s-1","timeout_ms":1500}`: {To: acme.ID("helper", "s-1"), Left: 1500 * time.Millisecond, Parts: actor.Text("hi")},
		`{"content":"hi"}`: {To: acme.ID("helper", ""), Parts: actor.Text("hi")},
	} {
		if call, r := ingress.Message(acme, "helper", []byte(body)); r != nil || !reflect.DeepEqual(call, want) {
			t.Errorf("message %s: %+v, %v", body, call, r)
		}
	}
	for body, field := range map[string]string{`{}`: "content", `{"content":null}`: "content", `{"content":7}`: "content", `{"content":"x","Content":"y"}`: "Content",
		`{"content":"x","content":"y"}`: "content", `{"content":"x","session":"a b"}`: "session", `{"content":"x","timeout_ms":86400001}`: "timeout_ms"} {
		if _, r := ingress.Message(acme, "helper", []byte(body)); r == nil || r.Field != field || r.Reason != actor.Invalid {
			t.Errorf("message %s: %v", body, r)
		}
	}
	for body, want := range map[string]string{`{"name":"go"}`: "", `{"name":"go","payload":null}`: "", `{"name":"go","payload":"x"}`: "text/plain x", `{"name":"go","payload":{"a":[1]}}`: `application/json {"a":[1]}`} {
		signal, r := ingress.DecodeSignal([]byte(body))
		got := ""
		for _, p := range signal.Payload {
			got += p.Media + " " + string(p.Bytes)
		}
		if r != nil || got != want || signal.Name != "go" {
			t.Errorf("signal %s: %s, %v", body, got, r)
		}
	}
	for body, field := range map[string]string{`{"name":""}`: "name", `{}`: "name", `{"name":"a b"}`: "name", `{"name":"go","text":"x"}`: "text", `{"name":"go","Name":"go"}`: "Name"} {
		if _, r := ingress.DecodeSignal([]byte(body)); r == nil || r.Field != field || r.Reason != actor.Invalid {
			t.Errorf("signal %s: %v", body, r)
		}
	}
	for body, wrong := range map[string]bool{"": false, "{}": false, "{ }": false, `{"a":1}`: true, "[]": true, "x": true} {
		if r := ingress.CheckEmpty([]byte(body)); (r != nil) != wrong {
			t.Errorf("empty body %q: %v", body, r)
		}
	}
}

// Every body is either decoded or refused with a detail. A decoded body also
// passes CheckObject.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{`{"content":"x"}`, `{"content":"x","session":"s","timeout_ms":1}`, `{"content":"x"}x`, "{\"a\":\xff}", `{"":{"a":[1,{}]}}`, `{"content":1e999}`,
		strings.Repeat(`{"a":`, 70) + "1" + strings.Repeat("}", 70), `{"name":"go","payload":{"a":1,"a":2}}`,
		`{"name":"go","payload":"\\\"{[{["}`, `{"name":"go","payload":` + strings.Repeat("[", 63) + strings.Repeat("]", 63) + "}",
		`{"name":"go","payload":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + "}", " \n{}", "\ufeff{}", "null", `{"name":"go","payload":"` + "\xff" + `"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		whole := ingress.CheckObject(body)
		if _, r := ingress.DecodeSignal(body); r == nil && whole != nil {
			t.Errorf("%q is decoded, but CheckObject fails: %v", body, whole)
		}
		call, r := ingress.Message(actor.NewPrincipal("", ""), "helper", body)
		switch {
		case r == nil && whole != nil:
			t.Errorf("%q is decoded, but CheckObject fails: %v", body, whole)
		case r == nil:
			if err := call.To.Check(); err != nil || len(call.Parts) != 1 {
				t.Errorf("%q: %v, %+v", body, err, call)
			}
		case r.Reason != actor.Invalid || r.Detail == "" || r.Fit().Detail != r.Detail:
			t.Errorf("%q: %+v", body, r)
		}
	})
}
