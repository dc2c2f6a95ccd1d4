// SPDX-License-Identifier: Apache-2.0

package agents_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/upstream"
)

func TestModelStepLimit(t *testing.T) {
	var script []upstream.Completion
	for i := range 60 {
		script = append(script, toolCompletion(fmt.Sprintf(`text.echo {"text":"%d"}`, i)))
	}
	f := newLoopFixture(t, script...)
	out := f.execute(compileTOML(t, "name = \"a\"\ntools = [\"text.echo\"]"), "go")
	if out.Refusal == nil || out.Refusal.Reason != actor.Budget || len(f.prompts) != agents.StepsMax || len(f.asks) != 2*agents.StepsMax-1 {
		t.Errorf("%+v after %d prompts and %d asks", out, len(f.prompts), len(f.asks))
	}
	if max := dispatcher.DefaultLimits().StepsPerTurnMax; len(f.answers) > max {
		t.Errorf("the runtime allows %d steps in a turn, this one has %d", max, len(f.answers))
	}
	f = newLoopFixture(t, script...)
	if out := f.execute(compileTOML(t, "name = \"a\"\ntools = [\"text.echo\"]\nlimits.steps = 3"), "go"); out.Refusal == nil || out.Refusal.Reason != actor.Budget || len(f.prompts) != 3 || len(f.asks) != 5 {
		t.Errorf("%+v after %d prompts", out, len(f.prompts))
	}
	// Rejected tool calls issue no asks, and the limit still holds.
	for i := range script {
		script[i] = toolCompletion(`fly {}`)
	}
	f = newLoopFixture(t, script...)
	if out := f.execute(compileTOML(t, `name = "a"`), "go"); out.Refusal == nil || out.Refusal.Reason != actor.Budget || len(f.prompts) != agents.StepsMax {
		t.Errorf("%+v after %d prompts", out, len(f.prompts))
	}
}

func TestThirdIdenticalToolCallIsRejected(t *testing.T) {
	for _, call := range []string{`text.echo {"text":"x"}`, `call_agent {"agent_id":"helper","message":"x"}`} {
		reformatted := strings.Replace(call, ":", ": ", 1) // the same input with another spacing
		f := newLoopFixture(t, toolCompletion(call), toolCompletion(reformatted), toolCompletion(call), textCompletion("no result"))
		out := f.execute(compileTOML(t, "name = \"a\"\ntools = [\"call_agent\", \"text.echo\"]"), "go")
		if out.Status != actor.Succeeded || len(f.asks) != 4+2 || !strings.Contains(f.toolResults(), "was asked for 3 times with the same input") {
			t.Errorf("%s: %+v, %d asks, tool results %s", call, out, len(f.asks), f.toolResults())
		}
	}
}

func TestTurnStateLimitEndsModelLoop(t *testing.T) {
	big := strings.Repeat("x", 300<<10)
	turn := compileTOML(t, "name = \"a\"\ntools = [\"text.echo\"]").Begin(begin("go"))
	var answers []actor.Answer
	for i := range 40 {
		action, err := turn.Next(answers)
		if err != nil {
			t.Fatal(err)
		}
		if action.Done != nil {
			if action.Done.Refusal == nil || action.Done.Refusal.Reason != actor.Budget {
				t.Errorf("%+v", action.Done)
			}
			return
		}
		answers = []actor.Answer{text(big)}
		if action.Asks[0].Kind == actor.AskModel {
			answers = []actor.Answer{completionAnswer(toolCompletion(fmt.Sprintf(`text.echo {"text":"%d"}`, i)))}
		}
	}
	t.Error("the turn did not end")
}

// Refusals do not count towards StateBytesMax, but they enlarge the prompt.
func TestPromptSizeLimitCountsRefusals(t *testing.T) {
	calls := make([]string, 60)
	turn := compileTOML(t, "name = \"a\"\ntools = [\"text.echo\"]").Begin(begin("go"))
	var answers []actor.Answer
	for step := range agents.StepsMax {
		action, err := turn.Next(answers)
		switch {
		case err != nil:
			t.Fatal(err)
		case action.Done != nil:
			if action.Done.Refusal.Reason != actor.Budget || !strings.Contains(action.Done.Refusal.Detail, "send smaller messages") {
				t.Errorf("%+v", action.Done)
			}
			return
		case action.Asks[0].Kind == actor.AskModel:
			if len(action.Asks[0].Body) > upstream.PromptBytesMax {
				t.Fatalf("prompt of %d bytes exceeds the limit", len(action.Asks[0].Body))
			}
			for i := range calls {
				calls[i] = fmt.Sprintf(`text.echo {"text":"%d.%d"}`, step, i)
			}
			answers = []actor.Answer{completionAnswer(toolCompletion(calls...))}
		default:
			answers = make([]actor.Answer, len(action.Asks))
			for i := range answers {
				answers[i].Refusal = actor.Refuse(actor.Unavailable, "%s", strings.Repeat("\x01", actor.TextBytesMax))
			}
		}
	}
	t.Error("the turn did not end")
}

// A message of nearly StateBytesMax, whose JSON is six times as long, is refused or
// leads to a prompt of valid size.
func TestLargestPromptFitsLimit(t *testing.T) {
	bad := strings.Repeat("\x01", agents.StateBytesMax-(64<<10)) // six bytes each in JSON
	turn := compileTOML(t, `name = "a"`).Begin(begin(bad))
	action, err := turn.Next(nil)
	if err != nil || action.Done != nil && action.Done.Refusal.Reason != actor.Budget {
		t.Fatalf("%+v, %v", action, err)
	}
	if action.Done == nil && len(action.Asks[0].Body) > upstream.PromptBytesMax {
		t.Errorf("prompt of %d bytes exceeds the limit", len(action.Asks[0].Body))
	}
}
