// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"maps"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// checkSummary follows the summary of a run through its entries, and compares it with the
// stored one once the run has ended.
func (x *examiner) checkSummary(a *actorExaminer, e *Entry) {
	c, ok := summaryChangeOf(e)
	before := a.summaries[c.run]
	if !ok || before == nil && c.first == nil { // the outcome of a call that had no run
		return
	}
	after := c.after(before)
	if a.summaries[c.run] = after; c.end != nil {
		delete(a.summaries, c.run)
		x.compareSummary(after)
	}
}

// checkOpenSummaries compares the summaries of the actor's open runs.
func (x *examiner) checkOpenSummaries(a *actorExaminer) {
	for _, run := range slices.SortedFunc(maps.Keys(a.summaries), actor.CallID.Compare) {
		x.compareSummary(a.summaries[run])
	}
}

// compareSummary compares the stored summary of a run with the one of its entries.
// Damaged rows and wrong owners are reported elsewhere.
func (x *examiner) compareSummary(want *runs.Summary) {
	got, ok, err := x.rows().summary(want.Actor.Tenant, want.Run)
	if !ok || err != nil || got.Actor != want.Actor || got.Root != want.Root {
		return
	}
	key := runKey(want.Actor.Tenant, want.Run)
	switch {
	case got.Status != want.Status || got.Waits != want.Waits:
		x.report(key, "", "shows status %s, waiting for %q, want %s, waiting for %q", got.Status, got.Waits, want.Status, want.Waits)
	case got.Ended != want.Ended || got.Outcome != want.Outcome:
		x.report(key, "", "shows the end %s at %s, want %s at %s", got.Outcome, runs.FormatTime(got.Ended), want.Outcome, runs.FormatTime(want.Ended))
	case got.Text != want.Text:
		x.report(key, "", "shows the text %.80q, want %.80q", got.Text, want.Text)
	case !bytes.Equal(appendSummary(nil, &got), appendSummary(nil, want)):
		other := *want
		got.Text, other.Text = "", ""
		x.report(key, "", "shows %s, want %s", got.AppendJSON(nil), other.AppendJSON(nil))
	}
}
