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
	// Ended reports whether a run has ended. It is false if the run is unknown. It reads no
	// entry, so its cost does not depend on the length of the run.
	Ended(tenant string, run actor.CallID) (bool, error)
	// Events returns at most limit events of a run, in order, with numbers greater than
	// the argument after.
	Events(tenant string, run actor.CallID, after uint64, limit int) ([]RunEvent, error)
	// Result returns the whole content of the answer whose event has this number. Events
	// shorten it. It is nil if the event shows no answer to an earlier ask.
	Result(tenant string, run actor.CallID, seq uint64) ([]actor.Part, error)
	// Runs returns a page of the runs of a tenant that a filter selects: at most limit
	// runs that are older than the argument before. If before is zero, it starts at the
	// newest run. The work for a page is bounded for any filter.
	Runs(tenant string, f runs.Filter, before actor.CallID, limit int) (runs.Page, error)
	// Spendings calls the callback each for the runs of a tenant that were created in the time of a filter and spent
	// something, newest first, with their ID, actor, user and Spent only. It reads at most ListedRowsMax runs, those
	// before the argument before if that is not zero, and returns the run before which it continues, or zero. The
	// summary is valid until each returns.
	Spendings(tenant string, f runs.Filter, before actor.CallID, each func(*runs.Summary)) (next actor.CallID, err error)
	// Blob returns a page of an actor's transcript, or a part that a page refers to.
	Blob(id actor.ID, name actor.Hash) ([]byte, error)
	// Tenants returns the tenants that may have sessions, sorted.
	Tenants() ([]string, error)
	// Sessions returns at most limit names of sessions of a tenant that come after the
	// argument before, if it is not empty. They are in the descending order of their names
	// with a slash at the end. If there are more, next is the name to continue at.
	Sessions(tenant, before string, limit int) (names []string, next string, err error)
	// SessionActors returns the actors of a session, sorted. The error is Gone if the
	// session was deleted.
	SessionActors(tenant, session string) ([]actor.ID, error)
	// SessionEvents returns at most limit events of the runs of a session, without those of
	// the runtime's own actors, that follow a cursor, in the order of the log: those of a call between the event that shows the call
	// and the one that shows its outcome. The order between the logs of several nodes is that
	// of their names. The error is Gone if the session was deleted, and SessionEventsDropped
	// if some of the events may have been cut.
	SessionEvents(tenant, session string, after runs.SessionCursor, limit int) ([]SessionEvent, error)
	// SessionEnd returns a cursor behind all events of a session. The error is Gone if the
	// session was deleted.
	SessionEnd(tenant, session string) (runs.SessionCursor, error)
}

// Unavailable is the error of a Reader whose store cannot be read now, which passes by itself.
type Unavailable struct{ Err error }

// Error implements error.
func (u Unavailable) Error() string { return u.Err.Error() }

// Unwrap returns the reason.
func (u Unavailable) Unwrap() error { return u.Err }

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
