// SPDX-License-Identifier: Apache-2.0

package tools_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/tools"
)

func TestFallbackTakesTheArguments(t *testing.T) {
	const from = `{"type":"object","required":["city"],"properties":{"city":{"type":"string"},"days":{"type":"integer"},"any":{}}}`
	for to, want := range map[string]string{
		`{"type":"object"}`: "",
		from:                "",
		`{"type":"object","additionalProperties":false,"properties":{"city":{},"days":{"type":"number"},"any":{"type":"string"}}}`: "",
		`{"type":"object","properties":{"days":{"type":["integer","null"]}}}`:                                                      "",
		`{"type":"object","required":["days"]}`:                                                                                    `other requires the argument "days", which this tool does not`,
		`{"type":"object","required":["city","unit"]}`:                                                                             `other requires the argument "unit", which this tool does not`,
		`{"type":"object","additionalProperties":false,"properties":{"city":{"type":"string"}}}`:                                   `other does not know the argument "any"`,
		`{"type":"object","properties":{"city":{"type":"number"}}}`:                                                                `the argument "city" is of type string here, and other takes number`,
		`{"type":"object","properties":{"days":{"type":"string"}}}`:                                                                `the argument "days" is of type integer here, and other takes string`,
	} {
		d := tools.Declared{InputSchema: []byte(from)}
		got := ""
		if err := d.CheckFallback(&tools.Tool{Name: "other", Schema: to}); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", to, got, want)
		}
	}
	d := tools.Declared{InputSchema: []byte(`{"type":"object","properties":{"n":{"type":"number"}}}`)}
	if d.CheckFallback(&tools.Tool{Name: "other", Schema: `{"type":"object","properties":{"n":{"type":"integer"}}}`}) == nil {
		t.Error("an integer takes no number")
	}
}

func TestFallbackIsNamedByUnavailability(t *testing.T) {
	d, none := tools.Declared{Fallback: "b"}, tools.Declared{}
	for _, reason := range actor.Reasons() {
		r := actor.Refuse(reason, "x")
		want := map[actor.Reason]string{actor.Unavailable: "b", actor.NoDevice: "b"}[reason]
		if got := d.FallBack(r).Fallback(); got != want {
			t.Errorf("%v: got %q, want %q", reason, got, want)
		}
		if r.Field != "" || none.FallBack(r) != r {
			t.Errorf("%v was changed", reason)
		}
	}
	for scope, want := range map[actor.Scope]string{actor.ScopeCallee: "b", actor.ScopeCaller: "", actor.ScopeNode: ""} {
		if got := d.FallBack(actor.RefuseBusy(scope, 0, "x")).Fallback(); got != want {
			t.Errorf("busy %v: got %q, want %q", scope, got, want)
		}
	}
	if d.FallBack(nil) != nil {
		t.Error("a success has no refusal")
	}
}

func TestFallbackOfToolIsChecked(t *testing.T) {
	for name, want := range map[string]string{
		"other.tool":                   "",
		"weather.get":                  "fallback: is the tool itself; remove it",
		"call_agent":                   "fallback: call_agent is a tool of this program; choose another name",
		"memory_forget":                "fallback: memory_forget is a tool of this program, which stands in for no other",
		"note_session":                 "fallback: note_session is a tool of this program, which stands in for no other",
		"troupe.route":                 "fallback: ",
		"no such tool":                 "fallback: ",
		"a" + strings.Repeat("b", 200): "fallback: ",
	} {
		_, err := tools.ReadDeclared(fmt.Appendf(nil, `{"tool_name":"weather.get","url":"http://127.0.0.1:1/","fallback":%q}`, name))
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%.80s: %v, want %q", name, err, want)
		}
		if tools.CanStandIn(name) != (want == "" || name == "weather.get") {
			t.Errorf("%.80s: can stand in: %v", name, tools.CanStandIn(name))
		}
	}
	for _, b := range tools.NewRegistry().Tools() {
		if tools.CanStandIn(b.Name) {
			t.Errorf("%s, a tool of this program, can stand in for others", b.Name)
		}
	}
}
