// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/signals"
)

func TestInvokeTool(t *testing.T) {
	run, caller := actor.NewCallID(1, 2, 3), actor.NewID("outside", "s-1")
	for body, want := range map[string]struct {
		content, field string
		wait           time.Duration
	}{
		`{}`:                                 {content: `{"args":{},"tool_name":"pay"}`, wait: ToolWaitDefault},
		`{"args":null,"timeout_ms":null}`:    {content: `{"args":{},"tool_name":"pay"}`, wait: ToolWaitDefault},
		`{"args":{"n":1},"timeout_ms":2000}`: {content: `{"args":{"n":1},"tool_name":"pay"}`, wait: 2 * time.Second},
		`{"timeout_ms":0}`:                   {content: `{"args":{},"tool_name":"pay"}`},
		`{"timeout_ms":300000,"run_id":""}`:  {content: `{"args":{},"tool_name":"pay"}`, wait: ToolWaitMax},
		`{"run_id":"` + run.String() + `"}`:  {content: `{"args":{},"tool_name":"pay"}`, wait: ToolWaitDefault},
		`{"run_id":"x"}`:                     {field: "run_id"},
		`{"timeout_ms":300001}`:              {field: "timeout_ms"},
		`{"timeout_ms":"1"}`:                 {field: "timeout_ms"},
		`{"args":"n"}`:                       {field: "args"},
		`{"args":[]}`:                        {field: "args"},
		`{"idempotency_key":1}`:              {field: "idempotency_key"},
	} {
		in, r := InvokeTool(run, caller, "pay", []byte(body))
		if r != nil {
			if r.Reason != actor.Invalid || r.Field != want.field {
				t.Errorf("%s: got %v for field %q, want %q", body, r, r.Field, want.field)
			}
			continue
		}
		if c := in.Call; want.field != "" || in.Wait != want.wait || c.Kind != actor.Signal || c.Operation != signals.OpAddTool || c.Parent != run || c.To != caller || string(c.Parts[0].Bytes) != want.content {
			t.Errorf("%s: got %+v with %s, want %+v", body, in, c.Parts[0].Bytes, want)
		}
	}
}

func TestDecideApproval(t *testing.T) {
	id := runs.ToolCallID{Run: actor.NewCallID(1, 2, 3), Step: 2, Index: 1}
	for body, want := range map[string]string{
		`{"decision":"approve"}`:              `{"approval_id":"` + id.Approval() + `","approve":true}`,
		`{"decision":"reject","reason":"no"}`: `{"approval_id":"` + id.Approval() + `","approve":false,"reason":"no"}`,
		`{"decision":"Approve"}`:              "decision",
		`{"decision":null}`:                   "decision",
		`{"decision":"reject","reason":"` + strings.Repeat("x", 1025) + `"}`: "reason",
		`{"decision":"reject","by":"alice"}`:                                 "by",
	} {
		call, r := DecideApproval(id, []byte(body))
		switch {
		case r != nil && r.Field != want:
			t.Errorf("%s: got %v, want field %s", body, r, want)
		case r == nil && (call.Operation != signals.OpDecide || call.Parent != id.Run || string(call.Parts[0].Bytes) != want):
			t.Errorf("%s: got %+v with %s, want %s", body, call, call.Parts[0].Bytes, want)
		}
	}
}

func TestToolValues(t *testing.T) {
	for text, want := range map[string]string{`{"a":1}`: `{"a":1}`, `done`: `"done"`, `{"a":1,"a":2}`: `"{\"a\":1,\"a\":2}"`, "\xff": "\"\uFFFD\"", ``: `""`} {
		if got := string(ToolValue(text)); got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
	for _, c := range []struct {
		parts []actor.Part
		want  string
	}{
		{actor.Text("42"), `"42"`},
		{[]actor.Part{{Media: actor.MediaJSON, Bytes: []byte("42")}}, `42`},
		{[]actor.Part{{Media: actor.MediaJSON, Bytes: []byte("{")}}, `"{"`},
		{append(actor.Text("a"), actor.Text("b")...), `"ab"`},
	} {
		if got := string(ToolResult(c.parts)); got != c.want {
			t.Errorf("%v: got %s, want %s", c.parts, got, c.want)
		}
	}
	for _, s := range runs.ToolStatuses() {
		if got := ToolOutcome(s); (got == ToolPending) == s.Ended() || (got == ToolSucceeded) != s.Advances() {
			t.Errorf("%s: got %s", s, got)
		}
	}
}
