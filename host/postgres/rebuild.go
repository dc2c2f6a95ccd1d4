// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// rebuildEntries is the number of entries whose rows are written at once.
const rebuildEntries = 512

// Rebuild writes the tables for people anew from the log, in one transaction. It undoes changes by hand.
func (s *Store) Rebuild() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	return s.rebuild(context.Background(), func(pgx.Tx) error { return nil })
}

// rebuild performs Rebuild with a last step in the same transaction.
func (s *Store) rebuild(ctx context.Context, last func(pgx.Tx) error) error {
	tx, err := s.conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx) //nolint:errcheck // after the commit it does nothing
	if _, err := tx.Exec(ctx, `TRUNCATE troupe.sessions, troupe.run_rows, troupe.event_rows, troupe.tool_calls, troupe.approvals, troupe.agents, troupe.tools, troupe.context_blobs`); err != nil {
		return err
	}
	write := func(t *tables) error {
		var b pgx.Batch
		t.queue(&b)
		if b.Len() == 0 {
			return nil
		}
		return tx.SendBatch(ctx, &b).Close()
	}
	if err := s.rebuildRuns(write); err != nil {
		return err
	}
	var page []store.Entry
	flush := func() error {
		t, err := tablesOf(page, nil)
		page = page[:0]
		if err != nil {
			return err
		}
		return write(&t)
	}
	for i := range s.logs {
		if err != nil {
			break
		}
		err = s.EachLogged(s.logs[i].node, func(e *store.Entry) error {
			if page = append(page, withoutItems(e)); len(page) < rebuildEntries {
				return nil
			}
			return flush()
		})
	}
	if err == nil {
		err = flush()
	}
	if err == nil {
		err = s.rebuildItems(write)
	}
	if err == nil {
		err = last(tx)
	}
	if err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// withoutItems returns an entry without changes of the state of its actor: they are rebuilt from the
// state at the end, of which the log may have lost the beginning.
func withoutItems(e *store.Entry) store.Entry {
	clean := *e
	switch r := e.Record.(type) {
	case store.Asking:
		r.StateUpdates = nil
		clean.Record = r
	case store.Ended:
		r.StateUpdates = nil
		clean.Record = r
	}
	return clean
}

// rebuildRuns writes the runs, before the tool calls that end with them.
func (s *Store) rebuildRuns(write func(*tables) error) error {
	tenants, err := s.Tenants()
	if err != nil {
		return err
	}
	for _, tenant := range tenants {
		var t tables
		var failure error
		err := store.EachRun(s, tenant, runs.Filter{Calls: true, System: true}, func(r *runs.Summary) {
			if addSummary(&t.runs, tenant, r); failure == nil && len(t.runs) > 0 && len(t.runs[0]) >= rebuildEntries {
				failure = write(&t)
				t = tables{}
			}
		})
		if err := errors.Join(err, failure, write(&t)); err != nil {
			return err
		}
	}
	return nil
}

// rebuildItems writes the sessions, their contexts, and what the registry holds.
func (s *Store) rebuildItems(write func(*tables) error) error {
	var t tables
	if err := s.addState(&t, agents.RegistryID); err != nil {
		return err
	}
	tenants, err := s.Tenants()
	if err != nil {
		return err
	}
	for _, tenant := range tenants {
		for before := ""; ; {
			names, next, err := s.Sessions(tenant, before, rebuildEntries)
			if err != nil {
				return err
			}
			for _, name := range names {
				if err := s.addSession(&t, tenant, name); err != nil {
					return err
				}
			}
			if err := write(&t); err != nil {
				return err
			}
			t = tables{}
			if before = next; next == "" {
				break
			}
		}
	}
	return write(&t)
}

func (s *Store) addSession(t *tables, tenant, name string) error {
	ids, err := s.SessionActors(tenant, name)
	if errors.As(err, new(store.Gone)) {
		return nil
	}
	for _, id := range ids {
		if err == nil && (id.Agent == actor.SessionAgent || id.Agent == actor.ContextAgent) {
			err = s.addState(t, id)
		}
	}
	// The entry that began it may have been cut: its first run that is still known counts then.
	t.found.add(text(name), text(tenant))
	return err
}

// addState adds the items of the state of one of the runtime's own actors.
func (s *Store) addState(t *tables, id actor.ID) error {
	saved, err := s.Load(id)
	if err != nil {
		return err
	}
	j, err := store.Fold(saved)
	if err != nil {
		return err
	}
	t.items(&store.Entry{Actor: id, Record: store.Ended{StateUpdates: j.EffectiveState()}})
	return nil
}
