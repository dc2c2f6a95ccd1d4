// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// ListedRowsMax is the maximum number of index rows that one page reads.
const ListedRowsMax = 2000

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
	if session, ok := (actor.ID{Tenant: tenant, Agent: f.Agent, Key: f.Session}).Session(); ok && f.Session != "" {
		if l.readSession(tenantSession{tenant, session}, first, last) {
			return l.page, nil
		}
	}
	newer := r.newerSummaries(tenant, first, last)
	err := r.KV.ScanBack(runKey(tenant, first), to, func(key, value []byte) bool {
		run, err := actor.ParseCallID(string(key[len(prefix):]))
		for err == nil && len(newer) > 0 && newer[0].Run.Compare(run) > 0 {
			if !l.add(&newer[0]) {
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
		return l.add(&s)
	})
	for err == nil && l.failure == nil && len(newer) > 0 && l.add(&newer[0]) {
		newer = newer[1:]
	}
	if err := cmp.Or(l.failure, err); err != nil {
		return runs.Page{}, err
	}
	return l.page, nil
}

// sessionEntriesMax is the maximum number of entries of a session whose runs are found by
// reading them.
const sessionEntriesMax = 16 * ListedRowsMax

// readSession adds the runs of a session, from first on and before last, by its entries. It
// returns false if the session has too many, or if they cannot be read: then the index of
// all runs is read.
func (l *listing) readSession(of tenantSession, first, last actor.CallID) bool {
	entries := uint64(0)
	err := l.rows.eachOfSession(of, func(id actor.ID) error {
		spans, err := l.rows.spans(indexPrefix(id), indexKey(id, 1), l.rows.tail(id))
		for _, s := range spans {
			entries += s.last - s.first + 1
		}
		return err
	})
	if err != nil || entries > sessionEntriesMax {
		return false
	}
	all, err := l.rows.runsOfSession(of)
	if err != nil {
		return false
	}
	var found []runs.Summary
	slices.SortFunc(all, func(a, b actor.CallID) int { return b.Compare(a) })
	for _, run := range slices.Compact(all) {
		if run.Compare(first) < 0 || !last.IsZero() && run.Compare(last) >= 0 {
			continue
		}
		s, ok, err := l.rows.summary(of.tenant, run)
		if err != nil {
			return false
		}
		if ok {
			found = append(found, s)
		}
	}
	for i := range found {
		if !l.add(&found[i]) {
			break
		}
	}
	return l.failure == nil
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
func (l *listing) add(s *runs.Summary) bool {
	if len(l.page.All) >= l.limit || l.budget <= 0 {
		l.page.Next = l.previous
		return false
	}
	l.budget--
	if len(l.forgotten) > 0 && l.isForgotten(s.Actor) {
		l.previous = s.Run
		return true
	}
	if l.previous = s.Run; l.filter.Selects(s) {
		l.page.All = append(l.page.All, *s)
	}
	return true
}

func (l *listing) isForgotten(id actor.ID) bool {
	of, ok := sessionOf(id)
	return ok && slices.ContainsFunc(l.forgotten, func(t tombstone) bool { return t.tenantSession == of })
}
