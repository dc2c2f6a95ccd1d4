// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/failpoint"
	"github.com/troupe-run/troupe/runs"
)

// tooLong is the refusal of a model whose prompt was too long.
func tooLong() *actor.Refusal {
	return &actor.Refusal{Reason: actor.ModelRejected, Field: actor.ContentField, Detail: "model m answers 400: too long"}
}

// promptAfter returns an agent that waits for a signal if its message is "wait", and then asks its model with what
// it heard and its message. It ends as the model does.
func promptAfter() script {
	return func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		text := actor.TextOf(b.Call.Parts)
		if text == "wait" && len(answers) == 0 {
			return actor.Action{Asks: []actor.Ask{{Kind: actor.AskWait, Name: "go", Timeout: time.Minute}}}, nil
		}
		if last := len(answers) - 1; last >= 0 && (text != "wait" || last > 0) {
			if r := answers[last][0].Refusal; r != nil {
				return actor.EndRefused(r), nil
			}
			return actor.Complete(actor.Text("ok")), nil
		}
		return actor.Action{Asks: []actor.Ask{{Kind: actor.AskModel, Name: "m", Parts: actor.Text(text), Body: []byte(heard(b) + " > " + text)}}}, nil
	}
}

// A message whose prompt was too long is left out of all prompts behind its run, which an event says. Every
// other message stays in them, also that of a run whose tools made the prompt too long. None leaves the transcript.
func TestTooLongMessageIsLeftOut(t *testing.T) {
	n := newNode(t, 1, agent("a", promptAfter(), given(actor.TranscriptAll)))
	ask := func(text, prompt string, r *actor.Refusal, ends string) {
		t.Helper()
		run := n.send("a/s", text)
		if text == "wait" {
			n.send("a/s", "yes", signalTo(run))
		}
		if len(n.external) != 1 || string(n.external[0].effect.Op.(Model).Body) != prompt {
			t.Fatalf("%s: got %d requests to the model, want one with the prompt %q", text, len(n.external), prompt)
		}
		n.restart(1) // the replay is given the same
		n.drain()
		last := n.external[len(n.external)-1]
		if got := string(last.effect.Op.(Model).Body); got != prompt {
			t.Errorf("%s: got %q after the restart, want %q", text, got, prompt)
		}
		n.sendOutcome(last, actor.Answer{Refusal: r})
		n.external = nil
		var all []string
		for _, e := range n.events[run] {
			all = append(all, e.Type.String())
		}
		if !strings.HasSuffix(strings.Join(all, " "), " llm_call_done "+ends) {
			t.Errorf("%s: got events %q, want %q at the end", text, all, ends)
		}
		if e := n.events[run][len(all)-2]; e.Type == runs.MessageLeftOut && e.Name != run.String()+".0" {
			t.Errorf("got %+v, want the message of the run", e)
		}
	}
	ask("one", " > one", nil, "run_done")
	ask("long", "u:one a:ok > long", tooLong(), "message_left_out run_failed")
	ask("two", "u:one a:ok > two", actor.Refuse(actor.ModelRejected, "no"), "run_failed")
	ask("wait", "u:one a:ok u:two > wait", tooLong(), "run_failed")
	n.cells[0].failpoints = func(p failpoint.Point) bool { return p == failpoint.SnapshotNow }
	ask("three", "u:one a:ok u:two u:wait > three", nil, "run_done")
	n.restart(1) // from the snapshot
	ask("four", "u:one a:ok u:two u:wait u:three a:ok > four", nil, "run_done")
	want := []string{"user user one", "agent assistant ok", "user user long", "user user two", "user user wait", "user user three", "agent assistant ok", "user user four", "agent assistant ok"}
	if got := n.transcript("a/s"); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
