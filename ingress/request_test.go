// SPDX-License-Identifier: Apache-2.0

package ingress_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
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
		{`{"message":" ","session_id":"s-2","timeout_ms":7}`, `{"agent_id":"helper/s-2","message":" ","timeout_ms":7}`, "helper/s-2"},
	} {
		call, to, r := ingress.Invoke(run, caller, "helper", []byte(c.body))
		if r != nil || to.String() != c.to || string(call.Parts[0].Bytes) != c.want || call.To != caller || call.Parent != run || call.Kind != actor.Signal || call.Operation != ingress.CallAgent {
			t.Errorf("%s: %+v, %v", c.body, call, r)
		}
	}
	for body, field := range map[string]string{`{}`: "content", `{"message":""}`: "message", `{"message":"x","session_id":"a/b"}`: "session_id", `{"message":"x","timeout_ms":-1}`: "timeout_ms", `{"message":"x","agent_id":"y"}`: "agent_id"} {
		if _, _, r := ingress.Invoke(run, caller, "helper", []byte(body)); r == nil || r.Field != field || r.Reason != actor.Invalid {
			t.Errorf("invoke %s: %v", body, r)
		}
	}
	acme := actor.Principal{Tenant: "acme"}
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
		call, r := ingress.Signal(run, []byte(body))
		got := ""
		for _, p := range call.Parts {
			got += p.Media + " " + string(p.Bytes)
		}
		if r != nil || got != want || call.Kind != actor.Signal || call.Operation != "go" || call.Parent != run || call.To != (actor.ID{}) {
			t.Errorf("signal %s: %s, %v", body, got, r)
		}
	}
	for body, field := range map[string]string{`{"name":""}`: "name", `{}`: "name", `{"name":"a b"}`: "name", `{"name":"go","text":"x"}`: "text", `{"name":"go","Name":"go"}`: "Name"} {
		if _, r := ingress.Signal(run, []byte(body)); r == nil || r.Field != field || r.Reason != actor.Invalid {
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
		if _, r := ingress.Signal(actor.CallID{}, body); r == nil && whole != nil {
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
