// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// The bounds of writing.
const (
	// writeTimeout is the time after which a transaction counts as lost: its connection is closed and its
	// result is settled.
	writeTimeout = 30 * time.Second
	// The time between two attempts while the database is away.
	againMin, againMax = 50 * time.Millisecond, 2 * time.Second
	// closePatience is the time for which a node that stops waits for a database that is away.
	closePatience = 15 * time.Second
	// lockPatience is the time for which a statement waits for the lock of a log's row.
	lockPatience = "3s"
)

// fence moves the head of the log, if this process still writes the log and the batch continues it.
// Otherwise it divides by zero, which ends the transaction without a further round trip.
const fence = `WITH moved AS (UPDATE troupe.logs SET batch = $4, pos = $5, hash = $6
	WHERE log = 0 AND owner = $1 AND epoch = $2 AND batch = $3 RETURNING 1) SELECT 1 / (count(*) = 1)::int FROM moved`

// divisionByZero is the SQLSTATE of a refusal by fence.
const divisionByZero = "22012"

// transaction is a change with the fence before it, and what follows it. It can be sent again.
type transaction struct {
	owner  string
	epoch  int64
	from   uint64     // batch at the head before it
	to     store.Mark // head after it
	change change
	tables tables
}

// send performs the transaction in one round trip. It reports no error only if the commit was
// acknowledged.
func (t *transaction) send(c *pgx.Conn) error {
	var b pgx.Batch
	b.Queue("BEGIN")
	b.Queue(fence, t.owner, t.epoch, int64(t.from), int64(t.to.Batch), int64(t.to.Pos), t.to.Hash[:])
	t.change.queue(&b)
	t.tables.queue(&b)
	b.Queue("COMMIT")
	ctx := context.Background() // a context that ends would close the connection while the commit is under way
	watchdog := time.AfterFunc(writeTimeout, func() { _ = c.PgConn().Conn().Close() })
	defer watchdog.Stop()
	results := c.SendBatch(ctx, &b)
	var tag pgconn.CommandTag
	var err error
	for range b.Len() {
		if tag, err = results.Exec(); err != nil {
			break
		}
	}
	if closing := results.Close(); err == nil {
		err = closing
	}
	if err == nil && tag.String() != "COMMIT" {
		err = fmt.Errorf("the commit was answered by %q", tag)
	}
	if err != nil && !lost(err) {
		_, rollback := c.Exec(ctx, "ROLLBACK")
		if rollback != nil {
			_ = c.Close(ctx) // a new connection follows
		}
	}
	return err
}

// Append implements store.Log. The batch is durable when it returns nil. While the database is away
// or has no space, it waits.
func (s *Store) Append(b *store.Batch) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.pending == nil || s.pending.to.Batch != b.No {
		rows, err := s.StoredRows(b)
		if err != nil {
			return err
		}
		var summaries columns
		rows = append(rows[:len(rows):len(rows)], s.index.RowsWith(b, func(tenant string, r *runs.Summary) { addSummary(&summaries, tenant, r) })...)
		from, _ := store.LogRange(b.Node)
		t := &transaction{owner: s.owner, epoch: s.epoch, from: b.From.Batch, to: b.Mark(), change: changeOf(rows, from)}
		if t.tables, err = tablesOf(b.Entries, summaries); err == nil {
			err = t.tables.deleteRows(rows)
		}
		if err != nil {
			return err
		}
		s.pending = t
	}
	err := s.perform(s.pending)
	switch {
	case err == nil:
		s.stored(b)
		return nil
	case isFenced(err):
		return s.replaced(b)
	case lost(err):
		s.note(err)
		return store.Unknown{Batch: b.No}
	}
	return fmt.Errorf("%w; if somebody changed the tables, write them anew with: troupe doctor --store %s --tables", explain(err), s.url)
}

// perform sends a transaction until the database performs or refuses it. It does not repeat one whose
// result is lost.
func (s *Store) perform(t *transaction) error {
	for again := againMin; ; again = min(2*again, againMax) {
		err := s.reconnect()
		if err == nil {
			if err = t.send(s.conn); err == nil {
				s.recovered()
				return nil
			}
		}
		if !passes(err) || lost(err) {
			return err
		}
		if s.note(err); !s.wait(again) {
			return err
		}
	}
}

// isFenced reports whether the fence has refused a transaction.
func isFenced(err error) bool {
	var p *pgconn.PgError
	return errors.As(err, &p) && p.Code == divisionByZero
}

// replaced returns the error of a batch that the fence has refused.
func (s *Store) replaced(b *store.Batch) error {
	h, err := s.readHead(context.Background())
	if err != nil {
		return err
	}
	if h.owner != s.owner || h.epoch != s.epoch {
		return s.fenced(b, &h)
	}
	return fmt.Errorf("batch %d does not continue the database, whose log ends at batch %d: was it restored from a backup, or has it failed over and lost work?", b.No, h.mark.Batch)
}

// fenced returns the error of a batch whose log belongs to another process. A process of a cluster ends as
// one whose lease is over.
func (s *Store) fenced(b *store.Batch, h *head) error {
	if c := s.options.Cluster; c != nil {
		c.lose(fmt.Sprintf("%s has taken its log", h.owner))
	}
	s.logger.Error("another process has taken the store", "owner", h.owner)
	return store.Fenced{Shards: b.Shards}
}

// Settle implements store.Log. It waits for the database.
func (s *Store) Settle(b *store.Batch) (stored bool, err error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	var h head
	for again := againMin; ; again = min(2*again, againMax) {
		if err = s.reconnect(); err == nil {
			if h, err = s.readHead(context.Background()); err == nil {
				break
			}
		}
		if !passes(err) {
			return false, explain(err)
		}
		if s.note(err); !s.wait(again) {
			return false, fmt.Errorf("the database is away: %w", explain(err))
		}
	}
	switch {
	case h.owner != s.owner || h.epoch != s.epoch:
		return false, s.fenced(b, &h)
	case h.mark == b.Mark():
		s.stored(b)
		s.recovered()
		return true, nil
	case h.mark == s.head:
		return false, nil
	}
	return false, fmt.Errorf("the log of the database ends at batch %d, not at %d or %d: was it restored from a backup, or has it failed over and lost work?", h.mark.Batch, s.head.Batch, b.No)
}

// Sync implements store.Log. A batch is durable when Append returns.
func (s *Store) Sync(uint64) error { return nil }

// Apply implements store.KV, fenced like a batch. The rows are durable when it returns. It is repeated
// when its result is lost, which the same rows allow.
func (s *Store) Apply(rows []store.Row) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	return s.apply(rows)
}

func (s *Store) apply(rows []store.Row) error {
	t := transaction{owner: s.owner, epoch: s.epoch, from: s.head.Batch, to: s.head, change: changeOf(rows, nil)}
	if err := t.tables.deleteRows(rows); err != nil {
		return err
	}
	for {
		err := s.perform(&t)
		switch {
		case lost(err):
			if s.note(err); !s.wait(againMin) {
				return explain(err)
			}
			continue
		case isFenced(err):
			return errors.New("another process has taken the store")
		case err != nil:
			return explain(err)
		}
		return nil
	}
}
