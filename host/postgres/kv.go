// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/troupe-run/troupe/store"
)

// The bounds of reading.
const (
	// A Get needs a connection while a Scan of the same goroutine holds one, so both have a pool.
	getConnections, scanConnections = 6, 24
	// readTimeout bounds one statement that reads.
	readTimeout = 30 * time.Second
	// A read waits for a database that is away: that of a cell, whose work continues afterwards, for
	// loadPatience, that of a client for queryPatience.
	loadPatience, queryPatience = 10 * time.Minute, 2 * time.Second
	// readAgain is the time between two attempts.
	readAgain = 250 * time.Millisecond
	// The first page of a scan is small, because most scans end early.
	scanRows, scanRowsMax = 8, 256
)

// keys reads troupe.kv.
type keys struct {
	gets, scans *pgxpool.Pool
	patience    time.Duration
	away        func(error) // is told why a read waits; may be nil
}

func openKeys(ctx context.Context, c *pgx.ConnConfig) (k keys, err error) {
	if k.gets, err = openPool(ctx, c, getConnections); err != nil {
		return k, err
	}
	k.scans, err = openPool(ctx, c, scanConnections)
	k.patience = loadPatience
	return k, err
}

// openPool returns a pool that connects when it is used.
func openPool(ctx context.Context, c *pgx.ConnConfig, connections int32) (*pgxpool.Pool, error) {
	p, err := pgxpool.ParseConfig("")
	if err != nil {
		return nil, err
	}
	p.ConnConfig = c.Copy()
	p.MaxConns = connections
	return pgxpool.NewWithConfig(ctx, p)
}

func (k keys) close() {
	if k.gets != nil {
		k.gets.Close()
	}
	if k.scans != nil {
		k.scans.Close()
	}
}

// read repeats a read until the database answers, or patience ends.
func (k keys) read(f func(ctx context.Context) error) error {
	for began := time.Now(); ; {
		ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
		err := f(ctx)
		cancel()
		switch {
		case err == nil || errors.Is(err, pgx.ErrNoRows) || !passes(err):
			return err
		case time.Since(began) > k.patience:
			return unavailable(err)
		}
		if k.away != nil {
			k.away(err)
		}
		time.Sleep(readAgain)
	}
}

func unavailable(err error) error {
	return store.Unavailable{Err: fmt.Errorf("the database is away: %w", explain(err))}
}

// queries is the store.KV for what clients ask. It accepts no rows.
type queries struct{ keys }

var _ store.ManyGetter = queries{}

// Apply implements store.KV.
func (queries) Apply([]store.Row) error { return errors.New("only for queries") }

// Get implements store.KV.
func (k keys) Get(key []byte) (value []byte, ok bool, err error) {
	err = k.read(func(ctx context.Context) error {
		return k.gets.QueryRow(ctx, "SELECT v FROM troupe.kv WHERE k = $1", key).Scan(&value)
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("key %s: %w", key, err)
	}
	return value, true, nil
}

// GetMany implements store.ManyGetter.
func (k keys) GetMany(all [][]byte) (values map[string][]byte, err error) {
	err = k.read(func(ctx context.Context) error {
		rows, err := k.gets.Query(ctx, "SELECT k, v FROM troupe.kv WHERE k = ANY($1::bytea[])", all)
		if err != nil {
			return err
		}
		values = make(map[string][]byte, len(all))
		var key, value []byte
		_, err = pgx.ForEachRow(rows, []any{&key, &value}, func() error {
			values[string(key)] = bytes.Clone(value)
			return nil
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", all[0], err)
	}
	return values, nil
}

// Scan implements store.KV. It reads a snapshot taken at its start.
func (k keys) Scan(from, to []byte, each func(key, value []byte) bool) error {
	return k.scan("SELECT k, v FROM troupe.kv WHERE k >= $1 AND k < $2 ORDER BY k LIMIT $3", from, to, each,
		func(last []byte) ([]byte, []byte) { return append(bytes.Clone(last), 0), to })
}

// ScanBack implements store.KV. It reads a snapshot taken at its start.
func (k keys) ScanBack(from, to []byte, each func(key, value []byte) bool) error {
	return k.scan("SELECT k, v FROM troupe.kv WHERE k >= $1 AND k < $2 ORDER BY k DESC LIMIT $3", from, to, each,
		func(last []byte) ([]byte, []byte) { return from, bytes.Clone(last) })
}

// scan passes the rows of a range to the callback each, page by page. The callback next returns the
// range that follows a key. A read that fails before the first row was passed on is repeated.
func (k keys) scan(query string, from, to []byte, each func(key, value []byte) bool, next func(last []byte) ([]byte, []byte)) error {
	passed := false
	err := k.read(func(ctx context.Context) error {
		c, err := k.scans.Acquire(ctx)
		if err != nil {
			return err
		}
		defer c.Release()
		err = scanPages(c.Conn(), query, from, to, next, func(key, value []byte) bool {
			passed = true
			return each(key, value)
		})
		if err != nil {
			_ = c.Conn().Close(context.Background()) // its transaction ends with it
			if passed {
				return cut{err}
			}
		}
		return err
	})
	if c, ok := errors.AsType[cut](err); ok {
		err = unavailable(c.err)
	}
	if err != nil {
		return fmt.Errorf("keys from %s: %w", from, err)
	}
	return nil
}

// cut is the error of a scan some of whose rows were passed on, so that it cannot be repeated.
type cut struct{ err error }

func (c cut) Error() string { return c.err.Error() }

type row struct{ key, value []byte }

// scanPages reads a range. One statement shows one state: if it reads all, there is nothing more. Otherwise
// pages follow from the beginning, in a transaction, so that they show one state too.
func scanPages(c *pgx.Conn, query string, from, to []byte, next func([]byte) ([]byte, []byte), each func(key, value []byte) bool) error {
	var page []row
	read := func(b *pgx.Batch, limit int) error {
		page = page[:0]
		b.Queue(query, from, to, limit).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				var r row
				if err := rows.Scan(&r.key, &r.value); err != nil {
					return err
				}
				page = append(page, r)
			}
			return rows.Err()
		})
		return perform(c, b)
	}
	pass := func() bool {
		for _, r := range page {
			if !each(r.key, r.value) {
				return false
			}
		}
		return true
	}
	var b pgx.Batch
	if err := read(&b, scanRows); err != nil {
		return err
	}
	if len(page) < scanRows {
		pass()
		return nil
	}
	for limit, first := 4*scanRows, true; ; limit, first = min(4*limit, scanRowsMax), false {
		var b pgx.Batch
		if first {
			b.Queue("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
		}
		if err := read(&b, limit); err != nil {
			return err
		}
		if !pass() || len(page) < limit {
			return end(c)
		}
		from, to = next(page[len(page)-1].key)
	}
}

func end(c *pgx.Conn) error {
	var b pgx.Batch
	b.Queue("COMMIT")
	return perform(c, &b)
}

// perform sends statements that only read, at most for readTimeout.
func perform(c *pgx.Conn, b *pgx.Batch) error {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	return c.SendBatch(ctx, b).Close()
}

// change is the final effect of rows: ranges are deleted first, then keys, then rows are put. No key
// occurs twice among the deleted keys and the rows.
type change struct {
	ranges    []store.Row
	deleted   [][]byte
	keys      [][]byte // of the rows that are put, in ascending order
	values    [][]byte
	newKeys   [][]byte // of rows that no earlier batch has put
	newValues [][]byte
}

// changeOf returns the effect of rows that are applied in order. Rows under the prefixes fresh are new.
func changeOf(rows []store.Row, fresh [][]byte) (c change) {
	last := make(map[string]int, len(rows))
	for i := range rows {
		row := &rows[i]
		if row.Delete && row.To != nil {
			for key := range last {
				if key >= string(row.Key) && key < string(row.To) {
					delete(last, key)
				}
			}
			c.ranges = append(c.ranges, *row)
			continue
		}
		last[string(row.Key)] = i
	}
	order := make([]int, 0, len(last))
	for _, i := range last {
		order = append(order, i)
	}
	slices.SortFunc(order, func(a, b int) int { return bytes.Compare(rows[a].Key, rows[b].Key) })
	for _, i := range order {
		row := &rows[i]
		value := row.Value
		if value == nil {
			value = []byte{}
		}
		switch {
		case row.Delete:
			c.deleted = append(c.deleted, row.Key)
		case slices.ContainsFunc(fresh, func(prefix []byte) bool { return bytes.HasPrefix(row.Key, prefix) }):
			c.newKeys, c.newValues = append(c.newKeys, row.Key), append(c.newValues, value)
		default:
			c.keys, c.values = append(c.keys, row.Key), append(c.values, value)
		}
	}
	return c
}

// queue adds the statements of a change to a transaction.
func (c *change) queue(b *pgx.Batch) {
	for _, r := range c.ranges {
		b.Queue("DELETE FROM troupe.kv WHERE k >= $1 AND k < $2", r.Key, r.To)
	}
	if len(c.deleted) > 0 {
		b.Queue("DELETE FROM troupe.kv WHERE k = ANY($1::bytea[])", c.deleted)
	}
	if len(c.newKeys) > 0 {
		b.Queue("INSERT INTO troupe.kv SELECT * FROM unnest($1::bytea[], $2::bytea[])", c.newKeys, c.newValues)
	}
	if len(c.keys) > 0 {
		b.Queue("INSERT INTO troupe.kv SELECT * FROM unnest($1::bytea[], $2::bytea[]) ON CONFLICT (k) DO UPDATE SET v = excluded.v", c.keys, c.values)
	}
}
