// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// Reader reads a log by entries, actors and runs. Only its implementations know the form
// in which a log is stored.
type Reader interface {
	// Load returns the newest snapshot of an actor and the entries after it. Events of
	// entries have only their run and number.
	Load(id actor.ID) (Saved, error)
	// Outcome returns the outcome in the n-th entry of an actor. It returns an error if
	// that entry is missing or holds no outcome.
	Outcome(id actor.ID, n uint64) (Ended, error)
	// Due calls the callback each for every actor of these shards that has open runs, in
	// order of shard and deadline, and actors with the same deadline in order of their IDs
	// as text.
	Due(shards []uint16, each func(actor.ID)) error
	// Run returns the owner of a run. The bool is false if the run is unknown.
	Run(tenant string, run actor.CallID) (RunOwner, bool, error)
	// Events returns at most limit events of a run, in order, with numbers greater than
	// the argument after.
	Events(tenant string, run actor.CallID, after uint64, limit int) ([]RunEvent, error)
	// Runs returns a page of the runs of a tenant that a filter selects: at most limit
	// runs that are older than the argument before. If before is zero, it starts at the
	// newest run. The work for a page is bounded for any filter.
	Runs(tenant string, f runs.Filter, before actor.CallID, limit int) (runs.Page, error)
}

// EachRun calls the callback each for every run of a tenant that a filter selects,
// newest first.
func EachRun(r Reader, tenant string, f runs.Filter, each func(*runs.Summary)) error {
	const pageRuns = 256
	for before := (actor.CallID{}); ; {
		page, err := r.Runs(tenant, f, before, pageRuns)
		if err != nil {
			return err
		}
		for i := range page.All {
			each(&page.All[i])
		}
		if before = page.Next; before.IsZero() {
			return nil
		}
	}
}

// FoldRun returns the record of a run by its events, which it reads in pages.
func FoldRun(r Reader, tenant string, run actor.CallID) (record runs.Record, err error) {
	const pageEvents = 1000
	for {
		page, err := r.Events(tenant, run, record.Seq, pageEvents)
		if err != nil {
			return record, err
		}
		for _, raw := range page {
			e, err := runs.Decode(raw.Body)
			if err == nil {
				err = record.Apply(&e)
			}
			if err != nil {
				return record, fmt.Errorf("run %s: %w", run, err)
			}
		}
		if len(page) < pageEvents {
			return record, nil
		}
	}
}

// RunOwner is the actor that accepted a run, and the root of its call tree.
type RunOwner struct {
	Run   actor.CallID
	Root  actor.CallID
	Actor actor.ID
}
