// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/tools"
)

// usingFor returns an agent like sending, whose lines are inputs of another tool.
func usingFor(tool string) script {
	return func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		action, err := sending()(b, answers)
		for i := range action.Asks {
			action.Asks[i].Name = tool
		}
		return action, err
	}
}

// Each participant of a debate has a correlation, and its outcome is a message of its own.
func TestDebateAsksEachParticipant(t *testing.T) {
	var got string
	n := newNode(t, 1, agent("a", usingFor(tools.DebateCall)), agent("b", receives(&got, "yes")), agent("c", sleeping(5*time.Second)), agent("d", echo(), func(d *actor.Definition) { d.Skills = []string{"look"} }))
	run := n.send("a/s-1", `{"participants":["b","c"],"topic":"rain","rounds":2,"timeout":9000}`)
	var p struct {
		Status string
		Calls  []struct{ Agent, CorrelationID, TaskID string }
	}
	if err := json.Unmarshal([]byte(n.result(run)), &p, json.MatchCaseInsensitiveNames(true)); err != nil || p.Status != "pending" || len(p.Calls) != 2 || p.Calls[0].Agent != "b" ||
		p.Calls[1].Agent != "c" || p.Calls[0].CorrelationID == p.Calls[1].CorrelationID || p.Calls[0].TaskID != p.Calls[0].CorrelationID {
		t.Fatalf("got %s, %v", n.result(run), err)
	}
	if want := `{"kind":"skill_invocation","skill":"debate","mode":"critique","input":{"topic":"rain","participants":["b","c"],"rounds":2},"correlationId":"` + p.Calls[0].CorrelationID + `","returnTo":"agent:a:s-1","timeout":9000}`; got != want {
		t.Errorf("the participant got\n%s want\n%s", got, want)
	}
	n.advance(10 * time.Second)
	n.wantDelivered("skill_response completed yes", "skill_response completed slept")
	for input, want := range map[string]string{
		`{"participants":["b","b"],"topic":"x"}`:        "Invalid",
		`{"participants":[],"topic":"x"}`:               "Invalid",
		`{"participants":["b","nobody"],"topic":"x"}`:   "NotFound",
		`{"participants":["b","d"],"topic":"x"}`:        "Invalid", // it has no skill debate
		`{"participants":["b"],"topic":"x","rounds":9}`: "Invalid",
	} {
		n.want(n.send("a/s-1", input), want)
	}
	if got := n.delivered(alice); len(got) != 2 { // a refused debate asks nobody
		t.Errorf("delivered %q", got)
	}
}

// A debate has as many rounds as it says.
func TestRoundsOfDebate(t *testing.T) {
	again := func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) == 0 {
			return actor.Action{Asks: []actor.Ask{{Kind: actor.AskTool, Name: tools.DebateCall, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(`{"participants":["b"],"topic":"x","rounds":3}`)}}}}}, nil
		}
		return actor.Complete(actor.Text(detachedText(answers[0][0]))), nil
	}
	n := newNode(t, 1, agent("a", again), agent("b", echo()))
	n.send("a/s-1", "begin")
	n.advance(time.Hour)
	if got := n.delivered(alice); len(got) != 3 {
		t.Errorf("%d rounds, want 3", len(got))
	}
}
