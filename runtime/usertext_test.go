// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"slices"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// spoken returns the pieces of a run's answer as its user gets them.
func (n *node) spoken(run actor.CallID) (all []string) {
	for _, e := range n.events[run] {
		if e.Type == runs.AgentStreamDelta {
			all = append(all, e.Text)
		}
	}
	return all
}

// A user reads no code of an agent or a capability, in no piece and not in the answer, however a code is cut.
func TestUserTextWithoutCodes(t *testing.T) {
	analyst := agent("analyst", echo(), func(d *actor.Definition) {
		d.Code, d.Provides = "ANL", []actor.Capability{{Code: "ANL_NPV", UserText: "the financial implications"}}
	})
	for policy, want := range map[string]struct {
		pieces   []string
		answer   string
		warnings []string
	}{
		"redact": {[]string{"Routing to ", "a specialist agent for ", "the financial implications."}, "Routing to a specialist agent for the financial implications.", nil},
		"flag":   {[]string{"Routing to A", "NL agent for ANL_", "NPV."}, "Routing to ANL agent for ANL_NPV.", []string{"the answer names ANL, ANL_NPV, which users should not read (user_text)"}},
		"off":    {[]string{"Routing to A", "NL agent for ANL_", "NPV."}, "Routing to ANL agent for ANL_NPV.", nil},
		"":       {[]string{"Routing to A", "NL agent for ANL_", "NPV."}, "Routing to ANL agent for ANL_NPV.", nil},
	} {
		thinker := modelAgent()
		thinker.UserText = policy
		n := newNode(t, 1, thinker, analyst)
		run := n.send("thinker", "why")
		for _, text := range []string{"Routing to A", "NL agent for ANL_", "NPV."} {
			n.sendPiece(n.external[0], actor.Piece{Text: text})
		}
		n.sendOutcome(n.external[0], completion("Routing to ANL agent for ANL_NPV."))
		if got := n.spoken(run); !slices.Equal(got, want.pieces) {
			t.Errorf("%q: got the pieces %q, want %q", policy, got, want.pieces)
		}
		if r := n.replies[run]; actor.TextOf(r.Parts) != want.answer || !slices.Equal(r.Warnings, want.warnings) || r.Status != actor.Succeeded {
			t.Errorf("%q: got %q %q %v, want %q", policy, actor.TextOf(r.Parts), r.Warnings, r.Status, want.answer)
		}
	}
}

// A code at the end of an answer is held back until the end, and other agents read texts as they are.
func TestUserTextAtTheEnd(t *testing.T) {
	thinker := modelAgent()
	thinker.UserText, thinker.Code = "redact", "THK"
	n := newNode(t, 1, thinker, agent("caller", calling("thinker")))
	run := n.send("thinker", "why")
	n.sendPiece(n.external[0], actor.Piece{Text: "ask THK"})
	n.sendOutcome(n.external[0], completion("ask THK"))
	n.want(run, "ask a specialist")
	if got := n.spoken(run); !slices.Equal(got, []string{"ask ", "a specialist"}) {
		t.Errorf("got the pieces %q", got)
	}
	run = n.send("caller", "go")
	n.sendOutcome(n.external[1], completion("ask THK"))
	n.want(run, "caller(ask THK)")
}

// What the model of an orchestrator says is for the orchestrator.
func TestInwardPiecesAreNotShown(t *testing.T) {
	thinker := modelAgent()
	thinker.Inward = true
	n := newNode(t, 1, thinker)
	run := n.send("thinker", "why")
	n.sendPiece(n.external[0], actor.Piece{Text: `{"primary_intent"`})
	n.sendOutcome(n.external[0], completion("done"))
	n.want(run, "done")
	if got := n.spoken(run); got != nil {
		t.Errorf("got the pieces %q", got)
	}
}
