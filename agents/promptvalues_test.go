// SPDX-License-Identifier: Apache-2.0

package agents_test

import (
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/upstream"
)

// A prompt holds who asks and when, from what is recorded with the message: the same in each step and in a replay. Only the
// prompt is filled in, never what a user or a tool says.
func TestPromptHoldsWhoAsksAndWhen(t *testing.T) {
	b := compileTOML(t, "name = \"front\"\nprompt = \"For {{user}} in {{session}} on {{date}}, {{ user }} {{other}} {{\"\ntools = [\"text.echo\"]\n")
	in := begin("{{user}} {{date}}")
	in.Call.Principal, in.Call.To, in.At = "zoë@example.com", actor.NewID("front", "s-1"), actor.Time(time.Date(2027, 1, 31, 23, 59, 59, 0, time.UTC).UnixNano())
	const want = "For zoë@example.com in s-1 on 2027-01-31, {{ user }} {{other}} {{"
	prompt := func(a actor.Action) (system, user string) {
		t.Helper()
		if len(a.Asks) != 1 || a.Asks[0].Kind != actor.AskModel {
			t.Fatalf("%+v", a)
		}
		p, err := upstream.DecodePrompt(a.Asks[0].Body)
		if err != nil {
			t.Fatal(err)
		}
		return p.Messages[0].Text, p.Messages[1].Text
	}
	answers := [][]actor.Answer{{completionAnswer(toolCompletion(`text.echo {"text":"{{user}}"}`))}, {{Parts: actor.Text("{{user}}")}}}
	for range 2 { // the second time is a replay
		actions, err := agents.Replay(b, in, answers)
		if err != nil || len(actions) != 3 {
			t.Fatal(actions, err)
		}
		for _, at := range []int{0, 2} {
			if system, user := prompt(actions[at]); system != want || user != "{{user}} {{date}}" {
				t.Errorf("step %d: %q and %q, want %q", at, system, user, want)
			}
		}
		if p, _ := upstream.DecodePrompt(actions[2].Asks[0].Body); !strings.Contains(p.Messages[len(p.Messages)-1].Text, "{{user}}") {
			t.Errorf("the result of a tool was filled in: %+v", p.Messages)
		}
	}
}
