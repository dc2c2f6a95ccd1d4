// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// fence moves the heads of logs, if this process still writes each of them and its batch continues it.
// Otherwise it divides by zero, which ends the transaction without a further round trip.
const fence = `WITH moved AS (UPDATE troupe.logs l SET batch = n.batch, pos = n.pos, hash = n.hash
	FROM unnest($2::int2[], $3::int8[], $4::int8[], $5::int8[], $6::int8[], $7::bytea[]) AS n(log, epoch, prev, batch, pos, hash)
	WHERE l.log = n.log AND l.owner = $1 AND l.epoch = n.epoch AND l.batch = n.prev RETURNING 1)
	SELECT 1 / (count(*) = cardinality($2::int2[]))::int FROM moved`

// fenceOne is fence for one log. Its plan does not depend on the arguments, so the server does not plan it anew each
// time, which costs a store with one log a fifth of its rate.
const fenceOne = `WITH moved AS (UPDATE troupe.logs SET batch = $5, pos = $6, hash = $7
	WHERE log = $2 AND owner = $1 AND epoch = $3 AND batch = $4 RETURNING 1) SELECT 1 / (count(*) = 1)::int FROM moved`

// divisionByZero is the SQLSTATE of a refusal by fence.
const divisionByZero = "22012"

// transaction is a change with the fence before it, and what follows it. It can be sent again.
type transaction struct {
	owner  string
	moves  []move // by log
	change change
	tables tables
}

// move is what a transaction does to the head of a log.
type move struct {
	log   int16
	epoch int64
	from  uint64     // batch at the head before it
	to    store.Mark // head after it
}

// queueFence adds the statement that moves the heads.
func (t *transaction) queueFence(b *pgx.Batch) {
	if len(t.moves) == 1 {
		m := &t.moves[0]
		b.Queue(fenceOne, t.owner, m.log, m.epoch, int64(m.from), int64(m.to.Batch), int64(m.to.Pos), m.to.Hash[:])
		return
	}
	var logs []int16
	var epochs, froms, batches, positions []int64
	var hashes [][]byte
	for i := range t.moves {
		m := &t.moves[i]
		logs, epochs, froms = append(logs, m.log), append(epochs, m.epoch), append(froms, int64(m.from))
		batches, positions, hashes = append(batches, int64(m.to.Batch)), append(positions, int64(m.to.Pos)), append(hashes, m.to.Hash[:])
	}
	b.Queue(fence, t.owner, logs, epochs, froms, batches, positions, hashes)
}

// send performs the transaction in one round trip. It reports no error only if the commit was
// acknowledged.
func (t *transaction) send(c *pgx.Conn) error {
	var b pgx.Batch
	b.Queue("BEGIN")
	t.queueFence(&b)
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

// Append implements store.Log; see AppendAll.
func (s *Store) Append(b *store.Batch) error { return s.AppendAll(oneBatch(b)) }

// oneBatch returns a transaction of one batch.
func oneBatch(b *store.Batch) *store.Transaction {
	return &store.Transaction{No: b.No, Batches: []store.Batch{*b}}
}

// AppendAll implements store.Logs. The transaction is durable when it returns nil. While the database is
// away or has no space, it waits.
func (s *Store) AppendAll(all *store.Transaction) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if moves := s.moves(all); s.pending == nil || !slices.Equal(s.pending.moves, moves) {
		t, err := s.transactionOf(all, moves)
		if err != nil {
			return err
		}
		s.pending = t
	}
	err := s.perform(s.pending)
	switch {
	case err == nil:
		s.stored(all)
		return nil
	case isFenced(err):
		return s.replaced(all)
	case lost(err):
		s.note(err)
		return store.Unknown{Batch: all.No}
	}
	return fmt.Errorf("%w; if somebody changed the tables, write them anew with: troupe doctor --store %s --tables", explain(err), s.url)
}

// moves returns what a transaction does to the heads of its logs.
func (s *Store) moves(all *store.Transaction) (moves []move) {
	for i := range all.Batches {
		b := &all.Batches[i]
		moves = append(moves, move{int16(b.Log), s.logs[b.Log].epoch, b.From.Batch, b.Mark()})
	}
	return moves
}

// transactionOf returns the statements of a transaction. Each key belongs to one log, so those of its batches
// differ.
func (s *Store) transactionOf(all *store.Transaction, moves []move) (*transaction, error) {
	t := &transaction{owner: s.owner, moves: moves}
	var rows []store.Row
	var fresh [][]byte
	var summaries columns
	entries, count := all.Batches[0].Entries, 0
	for i := range all.Batches {
		count += len(all.Batches[i].Entries)
	}
	if len(all.Batches) > 1 {
		entries = make([]store.Entry, 0, count)
	}
	for i := range all.Batches {
		b := &all.Batches[i]
		stored, err := s.StoredRows(b)
		if err != nil {
			return nil, err
		}
		rows = append(append(rows, stored...), s.index.RowsWith(b, func(tenant string, r *runs.Summary) { addSummary(&summaries, tenant, r) })...)
		from, _ := store.LogRange(b.Node)
		fresh = append(fresh, from)
		if len(all.Batches) > 1 {
			entries = append(entries, b.Entries...)
		}
	}
	t.change = changeOf(rows, fresh)
	var err error
	if t.tables, err = tablesOf(entries, summaries); err == nil {
		err = t.tables.deleteRows(rows)
	}
	return t, err
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

// replaced returns the error of a transaction that the fence has refused.
func (s *Store) replaced(all *store.Transaction) error {
	heads, err := s.readHeads(context.Background(), s.moves(all))
	if err != nil {
		return err
	}
	if h := s.foreign(heads); h != nil {
		return s.fenced(all, h)
	}
	for i := range all.Batches {
		if b, h := &all.Batches[i], &heads[i]; h.mark.Batch != b.From.Batch {
			return fmt.Errorf("batch %d of %s does not continue the database, whose log ends at batch %d: was it restored from a backup, or has it failed over and lost work?", b.No, b.Node, h.mark.Batch)
		}
	}
	return errors.New("the fence refused a transaction that it should accept")
}

// foreign returns the first of some heads that another process has; nil if there is none.
func (s *Store) foreign(heads []head) *head {
	for i := range heads {
		if h := &heads[i]; h.owner != s.owner || h.epoch != s.logs[h.log].epoch {
			return h
		}
	}
	return nil
}

// fenced returns the error of a transaction with a log that belongs to another process. A process of a
// cluster ends as one whose lease is over: its cells may have acted on what the others hold back.
func (s *Store) fenced(all *store.Transaction, h *head) error {
	if c := s.options.Cluster; c != nil {
		c.lose(fmt.Sprintf("%s has taken its log", h.owner))
	}
	s.logger.Error("another process has taken the store", "owner", h.owner)
	var fenced store.Fenced
	for i := range all.Batches {
		if b := &all.Batches[i]; int16(b.Log) == h.log {
			fenced.Shards = b.Shards
		}
	}
	return fenced
}

// Settle implements store.Log; see SettleAll.
func (s *Store) Settle(b *store.Batch) (stored bool, err error) { return s.SettleAll(oneBatch(b)) }

// SettleAll implements store.Logs. It waits for the database. The heads moved together or not at all.
func (s *Store) SettleAll(all *store.Transaction) (stored bool, err error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	moves := s.moves(all)
	var heads []head
	for again := againMin; ; again = min(2*again, againMax) {
		if err = s.reconnect(); err == nil {
			if heads, err = s.readHeads(context.Background(), moves); err == nil {
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
	if h := s.foreign(heads); h != nil {
		return false, s.fenced(all, h)
	}
	after, before := 0, 0
	for i, m := range moves {
		switch heads[i].mark {
		case m.to:
			after++
		case s.logs[m.log].head:
			before++
		default:
			return false, fmt.Errorf("log %d of the database ends at batch %d, not at %d or %d: was it restored from a backup, or has it failed over and lost work?", m.log, heads[i].mark.Batch, s.logs[m.log].head.Batch, m.to.Batch)
		}
	}
	switch {
	case after == len(moves):
		s.stored(all)
		s.recovered()
		return true, nil
	case before == len(moves):
		return false, nil
	}
	return false, fmt.Errorf("%d of %d logs of a transaction were written: were the tables changed by hand?", after, len(moves))
}

// Sync implements store.Log. A batch is durable when Append returns.
func (s *Store) Sync(uint64) error { return nil }

// Apply implements store.KV, fenced like a batch of each log that this process has. The rows are durable when it
// returns. It is repeated when its result is lost, which the same rows allow.
func (s *Store) Apply(rows []store.Row) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	return s.apply(rows, func(*ownedLog) bool { return true })
}

// apply is Apply, fenced like a batch of some logs.
func (s *Store) apply(rows []store.Row, of func(*ownedLog) bool) error {
	t := transaction{owner: s.owner, change: changeOf(rows, nil)}
	for log := range s.logs {
		if l := &s.logs[log]; l.epoch != 0 && of(l) {
			t.moves = append(t.moves, move{int16(log), l.epoch, l.head.Batch, l.head})
		}
	}
	if len(t.moves) == 0 {
		return errors.New("this process writes no log of the store")
	}
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
