// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

func TestInvokeTool(t *testing.T) {
	run := actor.NewCallID(1, 2, 3)
	for body, want := range map[string]struct {
		args, field string
		wait        time.Duration
	}{
		`{}`:                                 {args: `{}`, wait: ToolWaitDefault},
		`{"args":null,"timeout_ms":null}`:    {args: `{}`, wait: ToolWaitDefault},
		`{"args":{"n":1},"timeout_ms":2000}`: {args: `{"n":1}`, wait: 2 * time.Second},
		`{"timeout_ms":0}`:                   {args: `{}`},
		`{"timeout_ms":300000,"run_id":""}`:  {args: `{}`, wait: ToolWaitMax},
		`{"run_id":"` + run.String() + `"}`:  {args: `{}`, wait: ToolWaitDefault},
		`{"run_id":"x"}`:                     {field: "run_id"},
		`{"timeout_ms":300001}`:              {field: "timeout_ms"},
		`{"timeout_ms":"1"}`:                 {field: "timeout_ms"},
		`{"args":"n"}`:                       {field: "args"},
		`{"args":[]}`:                        {field: "args"},
		`{"idempotency_key":1}`:              {field: "idempotency_key"},
	} {
		in, r := InvokeTool(run, "pay", []byte(body))
		if r != nil {
			if r.Reason != actor.Invalid || r.Field != want.field {
				t.Errorf("%s: got %v for field %q, want %q", body, r, r.Field, want.field)
			}
			continue
		}
		if want.field != "" || in.Wait != want.wait || in.Tool.Tool != "pay" || string(in.Tool.Args) != want.args {
			t.Errorf("%s: got %+v, want %+v", body, in, want)
		}
	}
}

func TestDecodeDecision(t *testing.T) {
	for body, want := range map[string]string{
		`{"decision":"approve"}`:              "true ",
		`{"decision":"reject","reason":"no"}`: "false no",
		`{"decision":"Approve"}`:              "decision",
		`{"decision":null}`:                   "decision",
		`{"decision":"reject","reason":"` + strings.Repeat("x", 1025) + `"}`: "reason",
		`{"decision":"reject","by":"alice"}`:                                 "by",
	} {
		d, r := DecodeDecision([]byte(body))
		switch {
		case r != nil && r.Field != want:
			t.Errorf("%s: got %v, want field %s", body, r, want)
		case r == nil && fmt.Sprint(d.Approve, " ", d.Reason) != want:
			t.Errorf("%s: got %+v, want %s", body, d, want)
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
