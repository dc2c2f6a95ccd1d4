// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/mutant"
	"github.com/troupe-run/troupe/runs"
)

// ListedRowsMax is the maximum number of index rows that one page reads.
const ListedRowsMax = 2000

// rowsPerFold is the share of ListedRowsMax that a row of version 1 takes, because its
// summary is computed from the events of its run.
const rowsPerFold = 50

// Runs implements Reader. It reads at most ListedRowsMax rows.
func (r Rows) Runs(tenant string, f runs.Filter, before actor.CallID, limit int) (runs.Page, error) {
	prefix := tenantKey(tenant, 'r')
	first, last := f.Range()
	if !before.IsZero() && (last.IsZero() || before.Compare(last) < 0) {
		last = before
	}
	to := prefixEnd(prefix)
	if !last.IsZero() {
		to = runKey(tenant, last)
	}
	l := listing{rows: r, tenant: tenant, filter: f, limit: limit, budget: ListedRowsMax}
	r.with(func(x *Index) { l.forgotten = slices.Clone(x.forgotten) })
	newer := r.newerSummaries(tenant, first, last)
	err := r.KV.ScanBack(runKey(tenant, first), to, func(key, value []byte) bool {
		run, err := actor.ParseCallID(string(key[len(prefix):]))
		for err == nil && len(newer) > 0 && newer[0].Run.Compare(run) > 0 {
			if !l.add(newer[0]) {
				return false
			}
			newer = newer[1:]
		}
		var s runs.Summary
		switch {
		case err != nil:
		case len(newer) > 0 && newer[0].Run == run:
			s, newer = newer[0], newer[1:]
		default:
			s, err = decodeSummary(run, value)
		}
		if err != nil {
			l.failure = fmt.Errorf("key %s: %w", key, err)
			return false
		}
		return l.add(s)
	})
	for err == nil && l.failure == nil && len(newer) > 0 && l.add(newer[0]) {
		newer = newer[1:]
	}
	if err := cmp.Or(l.failure, err); err != nil {
		return runs.Page{}, err
	}
	return l.page, nil
}

// newerSummaries returns the summaries in the Index of runs from first on and before last,
// which may be zero, newest first.
func (r Rows) newerSummaries(tenant string, first, last actor.CallID) (all []runs.Summary) {
	r.with(func(x *Index) {
		for _, key := range x.runIDs {
			if t := x.runs[key]; key.tenant == tenant && t.summary != nil && key.run.Compare(first) >= 0 && (last.IsZero() || key.run.Compare(last) < 0) {
				all = append(all, *t.summary)
			}
		}
	})
	slices.SortFunc(all, func(a, b runs.Summary) int { return b.Run.Compare(a.Run) })
	return all
}

// listing is a page of runs that is being read.
type listing struct {
	rows     Rows
	tenant   string
	filter   runs.Filter
	limit    int
	budget   int
	page     runs.Page
	previous actor.CallID
	failure  error

	forgotten []tombstone // sessions to leave out
}

// add adds a run if the filter selects it. It returns false if the page is complete.
func (l *listing) add(s runs.Summary) bool {
	if len(l.page.All) >= l.limit || l.budget <= 0 {
		if !mutant.On("list-ends-with-its-page") {
			l.page.Next = l.previous
		}
		return false
	}
	l.budget--
	if l.isForgotten(s.Actor) {
		l.previous = s.Run
		return true
	}
	if s.Status == 0 {
		if s, l.failure = l.rows.foldSummary(l.tenant, s); l.failure != nil {
			l.failure = fmt.Errorf("key %s: %w", runKey(l.tenant, s.Run), l.failure)
			return false
		}
		l.budget -= rowsPerFold
	}
	if l.previous = s.Run; l.filter.Selects(&s) {
		l.page.All = append(l.page.All, s)
	}
	return true
}

func (l *listing) isForgotten(id actor.ID) bool {
	of, ok := sessionOf(id)
	return ok && slices.ContainsFunc(l.forgotten, func(t tombstone) bool { return t.tenantSession == of })
}

// foldSummary returns the summary of a run by its events. The argument owner has its
// actor and root.
func (r Rows) foldSummary(tenant string, owner runs.Summary) (runs.Summary, error) {
	record, err := FoldRun(r, tenant, owner.Run)
	if err != nil {
		return owner, err
	}
	if record.Seq == 0 { // accepted
		record.Status, record.Created = runs.Running, owner.Run.Time()
	}
	s := record.Summary()
	s.Run, s.Root, s.Actor = owner.Run, owner.Root, owner.Actor
	return s, nil
}
