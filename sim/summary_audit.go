// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// auditSummaries checks the stored summary of every run against the events of the run.
// The pages have the limit of a client, so cursors are checked too: each run MUST be
// listed once.
func (w *Simulation) auditSummaries() {
	const limit = 7
	var last actor.CallID
	for {
		page, err := w.store.Runs(actor.DefaultTenant, runs.Filter{Calls: true, System: true}, last, limit)
		if err != nil {
			w.fail(StoreReads, fmt.Sprintf("list of runs: %v", err))
			return
		}
		for i := range page.All {
			s := &page.All[i]
			if !last.IsZero() && s.Run.Compare(last) >= 0 {
				w.fail(SummariesAgree, fmt.Sprintf("run %s is listed after run %s", s.Run, last))
			}
			last = s.Run
			if err := w.auditSummary(s); err != nil {
				w.fail(SummariesAgree, fmt.Sprintf("run %s: %v", s.Run, err))
			}
			w.Stats.Points[SummaryAudited]++
		}
		if page.Next.IsZero() {
			return
		}
		last = page.Next
	}
}

func (w *Simulation) auditSummary(s *runs.Summary) error {
	record, err := w.foldRun(s.Run)
	if err != nil || record.Seq == 0 {
		return err
	}
	want := record.Summary()
	want.Workflow, want.Until = s.Workflow, s.Until // no event has the former; a change of the clock moves the latter
	if record.Started == 0 {                        // only run_started has these
		want.Root, want.Parent, want.Depth = s.Root, s.Parent, s.Depth
	}
	if s.Run != s.Root { // a call has no event before it starts or ends, perhaps under another clock
		if s.Created == 0 {
			return fmt.Errorf("has no time of acceptance")
		}
		want.Created = s.Created
		if record.Started == 0 {
			want.Actor, want.Project, want.Priority = s.Actor, s.Project, s.Priority
		}
	}
	if got, want := string(s.AppendJSON(nil)), string(want.AppendJSON(nil)); got != want {
		return fmt.Errorf("got summary %s, want %s", got, want)
	}
	return nil
}

// foldRun returns the record of a run by its stored events.
func (w *Simulation) foldRun(run actor.CallID) (runs.Record, error) {
	stored, err := w.store.Events(actor.DefaultTenant, run, 0, streamEventsMax)
	if err != nil {
		return runs.Record{}, err
	}
	events := make([]runs.Event, len(stored))
	for i := range stored {
		if events[i], err = runs.Decode(stored[i].Body); err != nil {
			return runs.Record{}, fmt.Errorf("event %d: %w", stored[i].Seq, err)
		}
	}
	return runs.Fold(events)
}
