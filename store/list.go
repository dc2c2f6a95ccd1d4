// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"

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
	var page runs.Page
	var previous actor.CallID
	var failure error
	budget := ListedRowsMax
	err := r.KV.ScanBack(runKey(tenant, first), to, func(key, value []byte) bool {
		if len(page.All) >= limit || budget <= 0 {
			if !mutant.On("list-ends-with-its-page") {
				page.Next = previous
			}
			return false
		}
		var s runs.Summary
		s.Run, failure = actor.ParseCallID(string(key[len(prefix):]))
		if failure == nil {
			s, failure = decodeSummary(s.Run, value)
		}
		budget--
		if failure == nil && s.Status == 0 {
			s, failure = r.foldSummary(tenant, s)
			budget -= rowsPerFold
		}
		if failure != nil {
			failure = fmt.Errorf("key %s: %w", key, failure)
			return false
		}
		if previous = s.Run; f.Selects(&s) {
			page.All = append(page.All, s)
		}
		return true
	})
	if failure != nil {
		err = failure
	}
	if err != nil {
		return runs.Page{}, err
	}
	return page, nil
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
