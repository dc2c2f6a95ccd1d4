// SPDX-License-Identifier: Apache-2.0

package agents_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/tools"
)

// addBroken registers tools that are not available: text.broken, in whose place another tool can be called,
// text.failed, which may have been performed, and text.chain, in whose place text.broken can be called.
func addBroken(f *loopFixture, other string) {
	for name, field := range map[string]string{"text.broken": actor.FallbackField + other, "text.failed": "", "text.chain": actor.FallbackField + "text.broken"} {
		err := f.tools.RegisterBuiltin(tools.Tool{Name: name, Schema: `{"type":"object"}`, Handler: func(context.Context, []byte) tools.Result {
			r := actor.Refuse(actor.Unavailable, "%s is down", name)
			r.Field = field
			return tools.Refused(r)
		}})
		if err != nil {
			f.t.Fatalf("%v", err)
		}
	}
}

// names returns the names of the tools that were called.
func (f *loopFixture) names() string {
	var all []string
	for _, ask := range f.asks {
		if ask.Kind == actor.AskTool {
			all = append(all, ask.Name)
		}
	}
	return strings.Join(all, " ")
}

func TestToolFallsBackInATurn(t *testing.T) {
	const echo = `{"text":"x"}`
	for name, c := range map[string]struct {
		other   string
		calls   []string
		asked   string
		results []string
		failRun string
	}{
		"another tool is called": {"text.echo", []string{"text.broken " + echo}, "text.broken text.echo",
			[]string{echo + "\nwarning: text.broken is not available (text.broken is down), so this is the result of text.echo"}, ""},
		"beside calls that need none": {"text.echo", []string{`text.echo {"text":"1"}`, "text.broken " + echo, "text.failed {}", `text.broken {"text":"2"}`}, "text.echo text.broken text.failed text.broken text.echo text.echo",
			[]string{`{"text":"1"}`, echo + "\nwarning: ", "text.failed is down", `{"text":"2"}` + "\nwarning: "}, "text.failed is down"},
		"what may have been performed is not done twice": {"text.echo", []string{"text.failed {}"}, "text.failed", []string{"text.failed is down"}, "text.failed is down"},
		"it fails too":                             {"text.failed", []string{"text.broken {}"}, "text.broken text.failed", []string{"text.broken is down; then text.failed is down"}, "text.broken is down; then text.failed is down"},
		"it does not take the arguments":           {"text.echo", []string{"text.broken {}"}, "text.broken text.echo", []string{"text.broken is down; then text.echo: text: is missing"}, "text.broken is down; then text.echo: text: is missing"},
		"it does not exist":                        {"text.gone", []string{"text.broken {}"}, "text.broken text.gone", []string{`text.broken is down; then no tool is named "text.gone"`}, `text.broken is down; then no tool is named "text.gone"`},
		"its own one is not called":                {"text.echo", []string{"text.chain " + echo}, "text.chain text.broken", []string{"text.chain is down; then text.broken is down"}, "text.chain is down; then text.broken is down"},
		"a tool of this program does not stand in": {"call_agent", []string{`text.broken {"agent_id":"helper","message":"x"}`}, "text.broken", []string{"text.broken is down"}, "text.broken is down"},
		"nor does the tool itself":                 {"text.broken", []string{"text.broken {}"}, "text.broken", []string{"text.broken is down"}, "text.broken is down"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := "name = \"a\"\ntools = [\"text.echo\", \"text.broken\", \"text.failed\", \"text.chain\"]\nlimits = { steps = 2 }\n"
			f := newLoopFixture(t, toolCompletion(c.calls...), textCompletion("done"))
			addBroken(f, c.other)
			if out := f.execute(compileTOML(t, spec), "x"); out.Status != actor.Succeeded || actor.TextOf(out.Parts) != "done" {
				t.Errorf("%+v", out)
			}
			if got := f.names(); got != c.asked {
				t.Errorf("called %s, want %s", got, c.asked)
			}
			results := f.toolResults()
			for _, want := range c.results {
				if !strings.Contains(results, want) {
					t.Errorf("results\n%s\nwant %s", results, want)
				}
			}
			f = newLoopFixture(t, toolCompletion(c.calls...), textCompletion("done"))
			addBroken(f, c.other)
			out := f.execute(compileTOML(t, spec+"on_failure = \"fail_run\"\n"), "x")
			if (out.Refusal != nil) != (c.failRun != "") || out.Refusal != nil && !strings.Contains(out.Refusal.Detail, c.failRun) {
				t.Errorf("fail_run: %v, want %q", out.Refusal, c.failRun)
			}
			// A Go agent gets the same answers.
			f = newLoopFixture(t)
			addBroken(f, c.other)
			var failed string
			f.execute(agents.Blocking(agents.Func(func(turn *agents.Turn) (string, error) {
				var asks []actor.Ask
				for _, call := range c.calls {
					tool, input, _ := strings.Cut(call, " ")
					asks = append(asks, agents.Tool(tool, []byte(input)))
				}
				for _, answer := range turn.All(asks...) {
					if err := answer.Err(); err != nil && failed == "" {
						failed = err.Error()
					}
				}
				return "", nil
			})), "x")
			if got := f.names(); got != c.asked || (failed == "") != (c.failRun == "") || !strings.Contains(failed, c.failRun) {
				t.Errorf("the Go agent called %s, and got %q", got, failed)
			}
		})
	}
}

// TestModelOfGoAgentFallsBackOnce checks that a model within a Go agent has its tools called in place of others, once.
func TestModelOfGoAgentFallsBackOnce(t *testing.T) {
	f := newLoopFixture(t, toolCompletion(`text.chain {"text":"x"}`), textCompletion("done"))
	addBroken(f, "text.echo")
	f.execute(agents.Blocking(agents.Func(func(turn *agents.Turn) (string, error) {
		answer, err := turn.Model(agents.ModelRequest{Model: "scripted", Message: "x", Tools: []string{"text.chain"}})
		if err != nil || answer != "done" {
			t.Errorf("%q %v", answer, err)
		}
		var refusal *actor.Refusal
		if _, err = turn.Tool("text.chain", nil); !errors.As(err, &refusal) || refusal.Fallback() != "" {
			t.Errorf("%v", err)
		}
		return answer, nil
	})), "x")
	if got := f.names(); got != "text.chain text.broken text.chain text.broken" {
		t.Errorf("called %s", got)
	}
}
