// SPDX-License-Identifier: Apache-2.0

package tools_test

import (
	"strings"
	"testing"

	"github.com/troupe-run/troupe/tools"
)

func TestPipelineIsChecked(t *testing.T) {
	long := `{"tool":"a.b"}` + strings.Repeat(`,{"tool":"a.b"}`, tools.PipelineStepsMax)
	for fields, want := range map[string]string{
		`"steps":[{"tool":"geo.find","from":{"city":"/input/city"}},{"tool":"weather.get","args":{"unit":"C"},"from":{"at":"/1/at~1~0/0"}}]`: "",
		`"steps":[]`:                                                    "steps: want 1 to 8 tables with tool, args and from, got 0",
		`"url":"http://a/"`:                                             `url: not allowed with via = "pipeline"`,
		`"steps":[` + long + `]`:                                        "steps: want 1 to 8 tables with tool, args and from, got 9",
		`"steps":7`:                                                     "steps: want a list of tables with tool, args and from, got 7",
		`"steps":[{"tool":"a.b","frm":{}}]`:                             "steps: want a list of tables with tool, args and from, got a list",
		`"steps":[{}]`:                                                  "steps: step 1: tool: is missing",
		`"steps":[{"tool":"report.make"}]`:                              "steps: step 1: tool: is the pipeline itself",
		`"steps":[{"tool":"call_agent"}]`:                               "steps: step 1: tool: call_agent is a tool of this program",
		`"steps":[{"tool":"memory_forget"}]`:                            "steps: step 1: tool: memory_forget is a tool of this program",
		`"steps":[{"tool":"a.b","from":{"x":"input/city"}}]`:            `steps: step 1: from.x: "input/city": want a JSON Pointer of at most 256 bytes, like /input/city`,
		`"steps":[{"tool":"a.b","from":{"x":""}}]`:                      `steps: step 1: from.x: "": want a JSON Pointer`,
		`"steps":[{"tool":"a.b","from":{"x":"/input/~2"}}]`:             `steps: step 1: from.x: "/input/~2": want ~0 for '~' and ~1 for '/'`,
		`"steps":[{"tool":"a.b","from":{"x":"/1"}}]`:                    `steps: step 1: from.x: "/1": want a pointer that begins with /input`,
		`"steps":[{"tool":"a.b"},{"tool":"a.b","from":{"x":"/2/a"}}]`:   `steps: step 2: from.x: "/2/a": want a pointer that begins with /input, or with the number of an earlier step, from /1 to /1`,
		`"steps":[{"tool":"a.b"},{"tool":"a.b","from":{"x":"/01/a"}}]`:  `steps: step 2: from.x: "/01/a": want a pointer`,
		`"steps":[{"tool":"a.b","args":{"x":1},"from":{"x":"/input"}}]`: `steps: step 1: "x" is in args and in from; remove one of them`,
		`"steps":[{"tool":"a.b"}],"timeout_ms":7`:                       `timeout_ms: not allowed with via = "pipeline", whose tools have their own; remove it`,
		`"steps":[{"tool":"a.b"}],"fallback":"c.d"`:                     `fallback: not allowed with via = "pipeline"`,
	} {
		d, err := tools.ReadDeclared([]byte(`{"tool_name":"report.make","via":"pipeline",` + fields + `}`))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", fields, err, want)
		}
		if err != nil {
			continue
		}
		if again, err := tools.ReadDeclared(d.Encode()); err != nil || again.Hash() != d.Hash() {
			t.Errorf("%s is read again as %s %v", d.Encode(), again.Encode(), err)
		}
		plan := d.Plan()
		if steps, ok := tools.ReadPlan(&plan); !ok || len(steps) != 2 || steps[1].From["at"] != "/1/at~1~0/0" || len(plan.Parts[0].Bytes) > d.ResultBytesMax() {
			t.Errorf("%v %+v", ok, steps)
		}
	}
	if _, err := tools.ReadDeclared([]byte(`{"tool_name":"a.b","url":"http://127.0.0.1/","steps":[{"tool":"c.d"}]}`)); err == nil || !strings.Contains(err.Error(), `steps: not allowed with via = "http"; remove it, or write via = "pipeline"`) {
		t.Error(err)
	}
}

func TestStepGivesTheArguments(t *testing.T) {
	d := tools.Declared{Steps: []tools.PipelineStep{{Tool: "a.b", From: map[string]string{"x": "/input"}}}}
	for schema, want := range map[string]string{
		`{"type":"object"}`:                      "",
		`{"type":"object","required":["x"]}`:     "",
		`{"type":"object","required":["x","y"]}`: `step 1: a.b requires the argument "y": add it to args or from`,
	} {
		got := ""
		if err := d.CheckStep(0, &tools.Tool{Name: "a.b", Schema: schema}); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", schema, got, want)
		}
	}
	if err := d.CheckStep(0, &tools.Tool{Name: "a.b", Schema: `{"type":"object"}`, Declared: &tools.Declared{Via: tools.ViaPipeline}}); err == nil {
		t.Error("a pipeline is a step of another one")
	}
}
