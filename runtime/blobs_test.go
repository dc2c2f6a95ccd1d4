// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/tools"
)

// TestCutResultIsReadOn checks that an agent reads on in a result of which it was given the head, also after a restart, and
// in no result of another run.
func TestCutResultIsReadOn(t *testing.T) {
	short := pay
	short.Policy, short.MaxResultBytes = "allow", 100
	whole := strings.Repeat("0123456789", 100)
	read := func(ref string) actor.Action {
		return actor.Action{Asks: []actor.Ask{{Kind: actor.AskTool, Name: tools.ReadBlob, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: fmt.Appendf(nil, `{"ref":%q,"offset":990}`, ref)}}}}}
	}
	n := newNode(t, 1, agent("payer", func(_ actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		switch len(answers) {
		case 0:
			return using(pay.Name, `{"amount":1}`)(actor.Begin{}, nil)
		case 1:
			if w := answers[0][0].Warnings; len(w) != 1 || !strings.Contains(w[0], "the ref "+tools.BlobRef([]byte(whole))+" has the rest from offset 97 on") {
				t.Errorf("warnings %q", w)
			}
			return actor.Action{Asks: []actor.Ask{{Kind: actor.AskSleep, Timeout: time.Second}}}, nil
		case 2:
			return read(tools.BlobRef([]byte(whole))), nil
		}
		if r := answers[2][0].Refusal; r != nil {
			return actor.EndRefused(r), nil
		}
		return actor.Complete(answers[2][0].Parts), nil
	}), agent("stranger", func(_ actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) == 0 {
			return read(tools.BlobRef([]byte(whole))), nil
		}
		return actor.EndRefused(answers[0][0].Refusal), nil
	}))
	n.tools = declared(short)
	n.restart(1)
	run := n.send("payer/s", "go")
	n.sendOutcome(n.external[0], actor.Answer{Parts: actor.Text(whole)})
	n.external = nil
	stranger := n.send("stranger/s", "go")
	n.want(stranger, "Rejected")
	n.restart(1) // the turn is replayed from the journal
	n.advance(2 * time.Second)
	if got, want := n.runs[run].Text, `{"text":"0123456789","offset":990,"size":1000}`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestRuleBlocksImmediateTool checks that a rule holds for a tool that the cell answers at once.
func TestRuleBlocksImmediateTool(t *testing.T) {
	n := newNode(t, 1, agent("reader", func(_ actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) == 0 {
			return using(tools.ListAgents, `{}`)(actor.Begin{}, nil)
		}
		return actor.EndRefused(answers[0][0].Refusal), nil
	}))
	policy, err := tools.NewPolicy([]tools.Rule{{Tool: tools.ListAgents, Decision: "block"}}, "", "")
	if err != nil {
		t.Fatal(err)
	}
	if n.tools, err = tools.NewRegistry().With(nil, policy); err != nil {
		t.Fatal(err)
	}
	n.restart(1)
	n.want(n.send("reader/s", "go"), "PolicyBlocked")
}
