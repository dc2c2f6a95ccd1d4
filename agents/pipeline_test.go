// SPDX-License-Identifier: Apache-2.0

package agents_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/tools"
)

// addPipeline registers a pipeline, whose result is its steps, and tools that it may call.
func addPipeline(f *loopFixture, steps string) {
	answers := map[string]tools.Result{
		"make.plan":   {Parts: []actor.Part{{Media: tools.MediaPipeline, Bytes: []byte(steps)}}},
		"make.nested": {Parts: []actor.Part{{Media: tools.MediaPipeline, Bytes: []byte(`[{"tool":"text.echo"}]`)}}},
		"geo.find":    tools.JSON([]byte(`{"at":{"lat":47.07,"tags/~":["a","b"]},"n":9007199254740993}`)),
		"text.plain":  tools.Text(`not "JSON"`),
	}
	for name, answer := range answers {
		if err := f.tools.RegisterBuiltin(tools.Tool{Name: name, Schema: `{"type":"object"}`, Handler: func(context.Context, []byte) tools.Result { return answer }}); err != nil {
			f.t.Fatalf("%v", err)
		}
	}
}

func TestPipelineCallsItsSteps(t *testing.T) {
	for name, c := range map[string]struct {
		steps, asked, want string
		failed             string
	}{
		"results become arguments": {`[{"tool":"geo.find","from":{"city":"/input/city"}},{"tool":"text.plain"},{"tool":"text.echo","from":{"text":"/1/at/tags~1~0/1"}}]`,
			"make.plan geo.find text.plain text.echo", `{"text":"b"}`, ""},
		"a text is one":     {`[{"tool":"text.plain"},{"tool":"text.echo","from":{"text":"/1"}}]`, "make.plan text.plain text.echo", `{"text":"not \"JSON\""}`, ""},
		"fixed arguments":   {`[{"tool":"text.echo","args":{"text":"x"}}]`, "make.plan text.echo", `{"text":"x"}`, ""},
		"all arguments":     {`[{"tool":"text.plain","from":{"all":"/input"}}]`, "make.plan text.plain", `not "JSON"`, ""},
		"no such member":    {`[{"tool":"geo.find"},{"tool":"text.echo","from":{"text":"/1/at/lon"}}]`, "make.plan geo.find", "", `make.plan: step 2 (text.echo): argument "text": /1/at/lon: there is no member "lon"`},
		"no such item":      {`[{"tool":"geo.find"},{"tool":"text.echo","from":{"text":"/1/at/tags~1~0/01"}}]`, "make.plan geo.find", "", `there is no item "01" of 2`},
		"into a text":       {`[{"tool":"text.plain"},{"tool":"text.echo","from":{"text":"/1/a"}}]`, "make.plan text.plain", "", `there is no "a" in text`},
		"a later step":      {`[{"tool":"text.echo","from":{"text":"/1"}}]`, "make.plan", "", "step 1 (text.echo): argument \"text\": /1: there is no such step"},
		"a step fails":      {`[{"tool":"geo.find"},{"tool":"text.failed"},{"tool":"geo.find"}]`, "make.plan geo.find text.failed", "", "make.plan: step 2 (text.failed): text.failed is down"},
		"a step is invalid": {`[{"tool":"text.echo","args":{"text":1}}]`, "make.plan text.echo", "", "make.plan: step 1 (text.echo): text.echo: text: want string, got number"},
		"a step falls back": {`[{"tool":"text.broken","args":{"text":"x"}},{"tool":"text.echo","from":{"text":"/1/text"}}]`, "make.plan text.broken text.echo text.echo",
			`{"text":"x"}` + "\nwarning: text.broken is not available", ""},
		"a pipeline":             {`[{"tool":"make.nested"}]`, "make.plan make.nested", "", "make.plan: step 1 (make.nested): it is a pipeline itself"},
		"a tool of this program": {`[{"tool":"call_agent","args":{"agent_id":"helper","message":"x"}}]`, "make.plan", "", "it is a tool of this program"},
		"an absent tool":         {`[{"tool":"text.gone"}]`, "make.plan text.gone", "", `step 1 (text.gone): no tool is named "text.gone"`},
	} {
		t.Run(name, func(t *testing.T) {
			f := newLoopFixture(t, toolCompletion(`make.plan {"city":"Graz"}`), textCompletion("done"))
			addBroken(f, "text.echo")
			addPipeline(f, c.steps)
			out := f.execute(compileTOML(t, "name = \"a\"\ntools = [\"make.plan\"]\nlimits = { steps = 2 }"), "x")
			if got := f.toolResults(); actor.TextOf(out.Parts) != "done" || c.failed == "" && !strings.HasPrefix(got, c.want) || !strings.Contains(got, c.failed) || f.names() != c.asked {
				t.Errorf("%+v: called %s, got %s", out, f.names(), got)
			}
			f = newLoopFixture(t)
			addBroken(f, "text.echo")
			addPipeline(f, c.steps)
			f.execute(agents.Blocking(agents.Func(func(turn *agents.Turn) (string, error) {
				all := turn.All(agents.Tool("text.echo", []byte(`{"text":"beside"}`)), agents.Tool("make.plan", []byte(`{"city":"Graz"}`)))
				if b, err := all[0].Bytes(); err != nil || string(b) != `{"text":"beside"}` {
					t.Errorf("%s %v", b, err)
				}
				b, err := all[1].Bytes()
				if (err != nil) != (c.failed != "") || err != nil && !strings.Contains(err.Error(), c.failed) || err == nil && !strings.HasPrefix(c.want, string(b)) {
					t.Errorf("the Go agent got %s %v", b, err)
				}
				return "", nil
			})), "x")
			if got := strings.TrimPrefix(f.names(), "text.echo "); got != c.asked {
				t.Errorf("the Go agent called %s", got)
			}
		})
	}
}

// TestLongPipelineFitsTheStepsOfATurn checks that the last prompt of an agent may have the longest pipeline.
func TestLongPipelineFitsTheStepsOfATurn(t *testing.T) {
	var all []string
	for i := range tools.PipelineStepsMax {
		all = append(all, fmt.Sprintf(`{"tool":"text.broken","args":{"text":"%d"}}`, i))
	}
	steps := "[" + strings.Join(all, ",") + "]"
	f := newLoopFixture(t, toolCompletion(`make.plan {}`), textCompletion("done"))
	addBroken(f, "text.echo")
	addPipeline(f, steps)
	if out := f.execute(compileTOML(t, "name = \"a\"\ntools = [\"make.plan\"]\nlimits = { steps = 2 }"), "x"); actor.TextOf(out.Parts) != "done" || len(f.asks) != 2+1+2*tools.PipelineStepsMax {
		t.Errorf("%+v after %d asks: %s %s", out, len(f.asks), f.names(), f.toolResults())
	}
}
