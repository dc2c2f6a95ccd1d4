// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/tools"
)

// TestCallsOfStepLeaveTogether checks that a call of a tool with batch names how many leave with it: neither those
// that are refused or wait for a person, nor those of other tools. An approved or repeated call leaves alone.
func TestCallsOfStepLeaveTogether(t *testing.T) {
	listed, single := pay, pay
	listed.Batch, listed.Idempotent, listed.Policy = true, true, "allow"
	single.Name, single.Policy = "payments.check", "allow"
	policy := invariant.Must(tools.NewPolicy([]tools.Rule{{Tool: "*", When: "args.amount > 100", Decision: "require_approval"}}, "", ""))
	ask := func(tool, input string) actor.Ask {
		return actor.Ask{Kind: actor.AskTool, Name: tool, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(input)}}}
	}
	n := newNode(t, 1, agent("payer", func(_ actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) == 0 {
			return actor.Action{Asks: []actor.Ask{ask(listed.Name, `{"amount":1}`), ask(single.Name, `{"amount":1}`), ask(listed.Name, `{"amount":"x"}`), ask(listed.Name, `{"amount":2}`),
				ask(listed.Name, `{"amount":500}`), ask(single.Name, `{"amount":2}`), ask(listed.Name, `{"amount":3}`)}}, nil
		}
		return actor.Complete(nil), nil
	}))
	n.tools = invariant.Must(tools.NewRegistry().With([]tools.Declared{listed, single}, policy))
	n.restart(1)
	performed := func() (text string) {
		for _, e := range n.external {
			text += fmt.Sprintf("%d:%d ", e.effect.ID.Index, e.effect.Op.(Tool).Together)
		}
		n.external = nil
		return text
	}
	n.send("payer/s", "go")
	if got := performed(); got != "0:3 1:0 3:3 5:0 6:3 " {
		t.Errorf("got calls %s", got)
	}
	n.decide(n.pending()[0], true)
	if got := performed(); got != "4:1 " {
		t.Errorf("got calls %s after the approval", got)
	}
	n.restart(1)
	n.advance(time.Second)
	if got := performed(); got != "0:1 3:1 4:1 6:1 " { // payments.check is not idempotent
		t.Errorf("got calls %s after the restart", got)
	}
}
