// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bytes"
	"fmt"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
)

// Retry is the operation of a signal that replays a parked run again. It has no content.
const Retry = "troupe.retry"

// divergedText is part of the reason of each parked run.
const divergedText = "replay diverged"

// ParkedRuns returns the parked runs of an actor that was read from the log. It decodes the
// snapshot only if that may have one.
func (in Loaded) ParkedRuns() (all []store.Parked) {
	found := bytes.Contains(in.Saved.Snapshot, []byte(divergedText))
	for i := range in.Saved.Entries {
		_, parks := in.Saved.Entries[i].Record.(store.Parked)
		found = found || parks
	}
	if !found {
		return nil
	}
	journal, err := store.Fold(in.Saved)
	if err != nil {
		return nil // the cell reports it
	}
	for _, run := range journal.Runs {
		if run.Parked != "" {
			all = append(all, store.Parked{Run: run.Call.ID, Detail: run.Parked})
		}
	}
	return all
}

// parking resumes parked runs.
type parking struct{ *Cell }

// retry replays a parked run with the definition that the run has now. If the replay makes the
// recorded asks, the run continues. Otherwise it stays parked, and the signal is refused with the
// place where they differ. A run that is not parked is unchanged.
func (c parking) retry(t *turn, call *actor.Call, durable bool) {
	run := t.run
	done := actor.Reply{Call: call.ID, Run: call.Parent, Status: actor.Succeeded, Budget: call.Budget}
	if run.Parked == "" { // a repeat
		c.recordOutcome(t.act, call, &done, true)
		return
	}
	if t.def = c.definitions.of(run); t.def == nil {
		c.refuse(t.act, call, actor.Refuse(actor.Rejected, "run %s stays parked: agent %s no longer exists", run.Call.ID, t.act.id.Agent))
		return
	}
	c.stopAgent(t)
	if !(transcripts(c)).readTranscript(t) {
		c.refuse(t.act, call, actor.RefuseUnavailable(time.Second, "the conversation of run %s is being read", run.Call.ID))
		return
	}
	if detail := c.divergence(t); detail != "" {
		if c.stopAgent(t); detail != run.Parked {
			c.park(t, detail)
		}
		c.refuse(t.act, call, actor.Refuse(actor.Rejected, "run %s stays parked: %s", run.Call.ID, detail))
		return
	}
	t.taint = t.taint || durable
	c.record(t.act, store.Parked{Run: run.Call.ID, At: c.now}, store.Shown{})
	c.recordOutcome(t.act, call, &done, true)
	for i := range run.Last() { // operations that a parked run does not repeat
		if a := &run.Last()[i]; a.Open() && !a.IsCall() && !a.Waits() && a.Out().RunsOutsideCell() && c.inFlight[t.effectID(i)] == (actor.ID{}) {
			c.resumeEffect(t, i)
		}
	}
}

// divergence replays a turn. It returns "", or where the turn diverges.
func (c parking) divergence(t *turn) string {
	c.beginAgent(t)
	var recorded []actor.Answer
	for i, step := range t.run.Steps {
		asks := make([]actor.Ask, 0, len(step.Asks))
		for j := range step.Asks {
			if !step.Asks[j].Added {
				asks = append(asks, step.Asks[j].Ask)
			}
		}
		action, err := c.nextAction(t, recorded)
		if err == nil && action.Done != nil {
			err = fmt.Errorf("the turn now ends")
		}
		if err == nil {
			err = actor.SameAsks(asks, action.Asks)
		}
		if err != nil {
			return fmt.Sprintf("step %d: %s: %v", i+1, divergedText, err)
		}
		t.rawAsks = action.Asks
		if i < len(t.run.Steps)-1 {
			recorded = collectAnswers(step.Asks)
		}
	}
	return ""
}
