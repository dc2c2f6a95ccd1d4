// SPDX-License-Identifier: Apache-2.0

package store

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// checkEnded compares the summary of an ended run with its outcome. A call without a
// run has no summary.
func (x *examiner) checkEnded(id actor.ID, r *Ended) {
	s, ok := x.summary(id, r.Call)
	if !ok {
		return
	}
	want := (&Run{}).endSummary(r)
	x.compareSummary(id, &s, &want)
	if s.Ended != r.At || s.Outcome != r.Reply.Status {
		x.report(runKey(id.Tenant, r.Call), "", "shows the end %s at %s, want %s at %s", s.Outcome, runs.FormatTime(s.Ended), r.Reply.Status, runs.FormatTime(r.At))
	}
}

// checkOpen compares the summary of an open run with its state.
func (x *examiner) checkOpen(id actor.ID, run *Run) {
	if s, ok := x.summary(id, run.Call.ID); ok {
		want := run.summary()
		x.compareSummary(id, &s, &want)
	}
}

func (x *examiner) compareSummary(id actor.ID, got, want *runs.Summary) {
	if got.Status != want.Status || got.Waits != want.Waits {
		x.report(runKey(id.Tenant, got.Run), "", "shows status %s, waiting for %q, want %s, waiting for %q", got.Status, got.Waits, want.Status, want.Waits)
	}
}

// summary reads the summary of a run. It is absent if no such run was accepted, or if
// its row has version 1. Damage is reported elsewhere.
func (x *examiner) summary(id actor.ID, run actor.CallID) (runs.Summary, bool) {
	s, ok, err := x.rows().summary(id.Tenant, run)
	return s, ok && err == nil && s.Status != 0
}
