// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
)

// Source is a store whose content becomes that of a database.
type Source struct {
	Node   actor.NodeID
	Secret []byte
	End    store.Mark // of its log
	// EachRow passes all rows to the callback each, those of the index included, until it returns an error.
	EachRow func(each func(store.Row) error) error
}

// The size of a page of an import.
const (
	importRows  = 2048
	importBytes = 4 << 20
)

// Import fills a database without a store. The row of the store is written last, so a database whose
// import was not completed is recognized and refused.
func Import(url string, from Source) (err error) {
	s := &Store{url: Shown(url), node: from.Node}
	defer func() {
		s.release()
		if err != nil {
			err = fmt.Errorf("store %s: %w", s.url, explain(err))
		}
	}()
	host, _ := os.Hostname()
	s.owner = fmt.Sprintf("an import, process %d at %s", os.Getpid(), host)
	ctx := context.Background()
	if s.config, err = parse(url, applicationName+" "+string(from.Node)); err != nil {
		return err
	}
	if s.conn, err = pgx.ConnectConfig(ctx, s.config); err != nil {
		return err
	}
	if s.pid, err = check(ctx, s.conn); err != nil {
		return err
	}
	if err := errors.Join(checkPooler(ctx, s.config, s.pid), s.lock(ctx)); err != nil {
		return err
	}
	if err := migrate(ctx, s.conn); err != nil {
		return err
	}
	var stores, rows int
	if err := s.conn.QueryRow(ctx, "SELECT (SELECT count(*) FROM troupe.store), (SELECT count(*) FROM (SELECT 1 FROM troupe.kv LIMIT 1) one)").Scan(&stores, &rows); err != nil {
		return err
	}
	switch {
	case stores > 0:
		return errors.New("holds a store already: use another database")
	case rows > 0:
		return errIncomplete
	}
	if err := s.copyRows(ctx, from.EachRow); err != nil {
		return err
	}
	if s.keys, err = openKeys(ctx, s.config); err != nil {
		return err
	}
	if s.logs, err = logsOf(s.node, 1); err != nil {
		return err
	}
	s.Rows = store.Rows{KV: s, Index: store.NewIndex(store.IndexConfig{})}
	if end, err := store.VerifyAll(s, s.node, from.End); err != nil || end != from.End {
		return errors.Join(err, fmt.Errorf("the copied log ends at batch %d, want %d", end.Batch, from.End.Batch))
	}
	return s.rebuild(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "UPDATE troupe.logs SET batch = $1, pos = $2, hash = $3, owner = $4 WHERE log = 0", int64(from.End.Batch), int64(from.End.Pos), from.End.Hash[:], s.owner); err != nil {
			return err
		}
		return insertStore(ctx, tx, s.node, 1, from.Secret)
	})
}

// errIncomplete is the error of a database with rows, but without a store.
var errIncomplete = errors.New("holds a part of a store: an import was not completed. Remove it with: DROP SCHEMA troupe CASCADE, then repeat the import")

func (s *Store) copyRows(ctx context.Context, eachRow func(func(store.Row) error) error) error {
	var page [][]any
	size := 0
	flush := func() error {
		_, err := s.conn.CopyFrom(ctx, pgx.Identifier{"troupe", "kv"}, []string{"k", "v"}, pgx.CopyFromRows(page))
		page, size = nil, 0
		return err
	}
	err := eachRow(func(r store.Row) error {
		value := append([]byte{}, r.Value...)
		page = append(page, []any{append([]byte{}, r.Key...), value})
		if size += len(r.Key) + len(value); len(page) < importRows && size < importBytes {
			return nil
		}
		return flush()
	})
	if err == nil {
		err = flush()
	}
	return err
}

// insertStore writes the row of a store.
func insertStore(ctx context.Context, q pgx.Tx, node actor.NodeID, logs int, secret []byte) error {
	_, err := q.Exec(ctx, "INSERT INTO troupe.store (node, logs, format, secret) VALUES ($1, $2, $3, $4)", string(node), logs, string(store.FormatRow().Value), secret)
	return err
}

// EachRow passes all rows of the store to the callback each, in the order of their keys, until it returns
// an error. No process may write the store meanwhile.
func (s *Store) EachRow(each func(store.Row) error) error {
	var failure error
	err := s.Scan([]byte{0}, []byte{0xff}, func(key, value []byte) bool {
		failure = each(store.Row{Key: key, Value: value})
		return failure == nil
	})
	if failure != nil {
		return failure
	}
	return err
}
