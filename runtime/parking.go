// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/store"
)

// Texts of which the reason of each parked run has one.
const (
	divergedText  = "replay diverged"
	unmatchedText = store.UnmatchedText // the external agent made another request than before
	absentText    = "absent: "          // the agent or its model is not there since the start
)

// AbsentField is the field of a refusal because the node lacks a model. It distinguishes that from a
// provider's refusal of the model, which has no field.
const AbsentField = "model"

// ParkedRuns returns the parked runs of an actor that was read from the log. It decodes the
// snapshot only if that may have one.
func (in Loaded) ParkedRuns() (all []store.Parked) {
	found := false
	for _, text := range []string{divergedText, unmatchedText, absentText} {
		found = found || bytes.Contains(in.Saved.Snapshot, []byte(text))
	}
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
type parking struct{ cell *Cell }

// retry replays a parked run with the definition that the run has now. If the replay makes the
// recorded asks, the run continues. Otherwise it stays parked, and the signal is refused with the
// place where they differ. A run that is not parked is unchanged.
func (s received) retry() *actor.Refusal {
	c, t, run := s.cell, s.turn, s.turn.run
	p := parking{c}
	if run.Parked == "" { // a repeat
		s.done(nil)
		return nil
	}
	if t.def = c.definitions.of(run); t.def == nil {
		return actor.Refuse(actor.Rejected, "run %s stays parked: %s", run.Call.ID, absentAgent(t.act.id.Agent))
	}
	t.stopAgent(c)
	if !t.readTranscript(c) {
		return actor.RefuseUnavailable(time.Second, "the conversation of run %s is being read", run.Call.ID)
	}
	if detail := p.divergence(t); detail != "" {
		if t.stopAgent(c); detail != run.Parked {
			t.park(c, detail)
		}
		return actor.Refuse(actor.Rejected, "run %s stays parked: %s", run.Call.ID, detail)
	}
	s.accept()
	t.repetition.accepted = strings.HasPrefix(run.Parked, startedText(t.act.id.Agent)+endedText)
	p.recordParked(t.act, run, "")
	s.done(nil)
	for i := range run.Last() { // operations that a parked run does not repeat
		if phaseOf(&run.Last()[i]) == phaseEffect && c.inFlight[t.effectID(i)] == (actor.ID{}) {
			t.resumeEffect(c, i)
		}
	}
	return nil
}

// absent parks a turn without its agent, and the messages behind it. A run that was parked for
// it before stays so.
func (p parking) absent(t *turn) {
	p.parkAll(t, absentAgent(t.act.id.Agent))
}

func absentAgent(name string) string {
	return absentText + "there is no agent " + name + "; start the server with the files that define it"
}

func (p parking) parkAll(t *turn, detail string) {
	c := p.cell
	if !strings.HasPrefix(t.run.Parked, absentText) {
		t.park(c, detail)
	}
	for _, run := range t.act.journal.Runs {
		if !run.Started() && run.Parked == "" && slices.Contains(t.act.former, run.Call.ID) {
			p.recordParked(t.act, run, detail)
		}
	}
}

// recordParked records that a run is parked for a reason, or with "" that it continues. Its
// clock stops or restarts.
func (p parking) recordParked(act *activation, run *store.Run, detail string) {
	c := p.cell
	holds := run.Holds
	act.record(c, store.Parked{Run: run.Call.ID, At: c.now, Detail: actor.FitText(detail, actor.TextBytesMax)}, store.Shown{})
	e := history.Event{Kind: history.Resume, Actor: act.id, Epoch: act.epoch, Call: run.Call.ID, What: history.Parked, N: run.Holds}
	if !run.Started() {
		e.Why = history.Queued
	}
	if detail != "" {
		e.Kind, e.Until = history.Hold, run.Clock.HeldUntil
	}
	c.emit(e)
	switch t := act.turn(run.Call.ID); {
	case t != nil:
		t.propagateHold(c, holds)
	case run.Holds != holds: // a queued run has no turn to tell its caller
		e.What, e.N = "run", run.Holds
		c.emit(e)
	}
}

// missesModel parks the run of a turn if its model is absent since the start, and reports whether it
// did. The run of a later message fails instead, because its client is present to correct it.
func (p parking) missesModel(t *turn, answer *actor.Answer) bool {
	r := answer.Refusal
	if !t.restored || r == nil || r.Reason != actor.ModelNotFound || r.Field != AbsentField {
		return false
	}
	p.parkAll(t, absentText+r.Detail)
	return true
}

// restored resumes the runs of an actor that were parked because their agent or model was absent at
// an earlier start. Runs that still lack one are parked again.
func (p parking) restored(act *activation) {
	c := p.cell
	for _, run := range act.journal.Runs {
		if strings.HasPrefix(run.Parked, absentText) && c.definitions.of(run) != nil {
			p.recordParked(act, run, "")
		}
	}
}

// divergence replays a turn. It returns "", or where the turn diverges.
func (p parking) divergence(t *turn) string {
	c := p.cell
	t.beginAgent(c)
	var recorded []actor.Answer
	for i, step := range t.run.Steps {
		asks := make([]actor.Ask, 0, len(step.Asks))
		for j := range step.Asks {
			if !step.Asks[j].Added {
				asks = append(asks, step.Asks[j].Ask)
			}
		}
		action, err := t.nextAction(c, recorded)
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
