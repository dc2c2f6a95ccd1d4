// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"maps"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// auditSummaries checks that each run that the store has accepted is listed once, and its
// summary against its events. The pages have the limit of a client, so cursors are checked
// too.
func (w *Simulation) auditSummaries() {
	missing := w.loadJudge.accepted()
	for i := range w.plan.Namespaces {
		namespaces{w}.auditNamespaceSummaries(namespaceName(i), missing)
	}
	if len(missing) > 0 {
		first := slices.SortedFunc(maps.Keys(missing), actor.CallID.Compare)[0]
		w.fail(SummariesAgree, fmt.Sprintf("%d runs are not listed, the first one %s of %s", len(missing), first, missing[first]))
	}
}

// auditNamespaceSummaries is auditSummaries for one namespace. It removes the runs that are
// listed from those that are missing.
func (w namespaces) auditNamespaceSummaries(tenant string, missing map[actor.CallID]actor.ID) {
	const limit = 7
	var last actor.CallID
	for {
		page, err := w.store.Runs(tenant, runs.Filter{Calls: true, System: true}, last, limit)
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
			if id, ok := missing[s.Run]; !ok || id != s.Actor {
				w.fail(SummariesAgree, fmt.Sprintf("run %s of %s is listed, which the store has accepted of %q", s.Run, s.Actor, id))
			}
			delete(missing, s.Run)
			record, err := w.foldRun(tenant, s.Run)
			if err == nil {
				err = w.checkSummary(s, &record)
			}
			if err != nil && !w.isDropped(err) {
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

// checkSummary compares a stored summary with the record of its run, by the events that
// are stored.
func (w *Simulation) checkSummary(s *runs.Summary, record *runs.Record) error {
	if record.Seq == 0 {
		return nil
	}
	w.Stats.Audit.SummariesAgree++
	want := record.Summary()
	want.Workflow = s.Workflow // no event has it
	if record.Started == 0 {   // only run_started has these
		want.Root, want.Parent, want.Depth = s.Root, s.Parent, s.Depth
	}
	if s.Run != s.Root { // a call has no event before it starts or ends, perhaps under another clock
		if s.Created == 0 {
			return fmt.Errorf("has no time of acceptance")
		}
		want.Created = s.Created
		if record.Started == 0 {
			want.Actor, want.User, want.Project, want.Priority = s.Actor, s.User, s.Project, s.Priority
		}
	}
	if record.Ended == 0 { // an open run has the usage at its last change of status
		if s.Usage.Total > want.Usage.Total || s.Tree.Total > want.Tree.Total {
			return fmt.Errorf("got usage %+v, of its tree %+v, want at most %+v and %+v", s.Usage, s.Tree, want.Usage, want.Tree)
		}
		want.Usage, want.Tree = s.Usage, s.Tree
	}
	if got, want := string(s.AppendJSON(nil)), string(want.AppendJSON(nil)); got != want {
		return fmt.Errorf("got summary %s, want %s", got, want)
	}
	if err := checkListedText(s, record.Text, record.Truncated); err != nil {
		return err
	}
	if err := checkShownRecord(record); err != nil {
		return err
	}
	return checkShownSummary(s)
}

// foldRun returns the record of a run by its stored events.
func (w *Simulation) foldRun(tenant string, run actor.CallID) (runs.Record, error) {
	stored, err := w.store.Events(tenant, run, 0, streamEventsMax)
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
