// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runs"
)

// counting returns an agent that makes one ask, and completes with the number of messages
// that its turn is given.
func counting(ask actor.Ask) script {
	return func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) == 0 && actor.TextOf(b.Call.Parts) == "ask" {
			return actor.Action{Asks: []actor.Ask{ask}}, nil
		}
		return actor.Complete(actor.Text(fmt.Sprint(len(b.Transcript)))), nil
	}
}

// newConversation returns a node whose actor a/main has a closed page.
func newConversation(t *testing.T, ask actor.Ask, others ...actor.Definition) *node {
	n := newNode(t, 1, append(others, agent("a", counting(ask), func(d *actor.Definition) { d.Transcript = actor.TranscriptAll }))...)
	n.limits.SnapshotBytes = 1
	n.restart(1)
	for i := 0; len(n.pages.blobs[actor.NewID("a", "")]) == 0; i++ {
		n.want(n.send("a", "hello"), fmt.Sprint(2*i))
	}
	return n
}

// heard returns the number of messages in the transcript of a/main, or -1 if it is not loaded.
func (n *node) heard() int {
	if act := n.cells[0].actors.find(actor.NewID("a", "")); act != nil && act.loaded {
		return int(act.journal.Transcript.Len())
	}
	return -1
}

// stepNext steps the next queued input, also while the node is paused.
func (n *node) stepNext() {
	in := n.inputs[0]
	n.inputs = n.inputs[1:]
	in()
}

// A turn that begins while its pages are read would begin a second time under the next owner
// of its actor, since no entry records the first time.
func TestTurnBeginsOnceItsPagesAreRead(t *testing.T) {
	n := newConversation(t, actor.Ask{Kind: actor.AskSleep, Timeout: time.Second})
	n.failLoads = 1
	starts := n.eventCounts[history.Start]
	id := n.send("a", "ask")
	if started := n.eventCounts[history.Start] - starts; started > 0 || len(n.runs[id].Children) > 0 || n.runs[id].Started != 0 {
		t.Errorf("%d turns began without their pages", started)
	}
	n.advance(n.limits.ResendAfter + time.Second)
	if n.want(id, fmt.Sprint(n.heard()-2)); n.eventCounts[history.Start]-starts != 1 {
		t.Errorf("%d turns began, want 1", n.eventCounts[history.Start]-starts)
	}
	if e := n.events[id]; len(e) < 2 || e[1].Type != runs.RunStarted {
		t.Errorf("events %v, want %s as the second", e, runs.RunStarted)
	}
}

// A restored turn resends its calls at once. Only a replay needs the pages.
func TestRestoredTurnResendsCallsBeforeItsPagesAreRead(t *testing.T) {
	n := newConversation(t, actor.Ask{Kind: actor.AskCall, Name: "b"}, agent("b", sleeping(time.Minute)))
	id := n.send("a", "ask")
	heard, sent := n.heard(), n.eventCounts[history.Send]
	n.paused = true
	for n.restart(1); n.heard() < 0; {
		n.stepNext()
	}
	if n.eventCounts[history.Send] == sent {
		t.Error("the call was not sent again when the actor was loaded")
	}
	n.failLoads, n.paused = 1, false
	n.advance(2 * time.Minute)
	if got := n.runs[id].Text; got != fmt.Sprint(heard) {
		t.Errorf("the turn was given %q messages, want %d", got, heard)
	}
}

// A restored effect that needs a replay is repeated once the pages have been read.
func TestRestoredEffectWaitsForItsPages(t *testing.T) {
	performed := 0
	work := actor.Ask{Kind: actor.AskWork, Name: "w", Idempotent: true, Work: func(context.Context) ([]byte, error) { performed++; return []byte("1"), nil }}
	n := newConversation(t, work)
	n.paused = true
	id := n.send("a", "ask")
	heard := n.heard()
	for performed == 0 {
		n.stepNext()
	}
	n.paused = false
	n.restart(1)
	n.drain()
	if got := n.runs[id].Text; got != fmt.Sprint(heard) || performed != 2 {
		t.Errorf("the turn was given %q messages, want %d; performed %d times, want 2", got, heard, performed)
	}
}
