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
	// Rows passes all rows to the callback each, those of the index included, until it returns an error. It returns
	// the logs.
	Rows func(each func(store.Row) error) ([]store.LogEnd, error)
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
	ends, err := s.copyRows(ctx, from.Rows)
	if err != nil {
		return err
	}
	if s.keys, err = openKeys(ctx, s.config); err != nil {
		return err
	}
	if s.logs, err = logsOf(s.node, len(ends)); err != nil {
		return err
	}
	s.Rows = store.Rows{KV: s, Index: store.NewIndex(store.IndexConfig{}), Logs: len(ends)}
	for _, l := range ends {
		if end, err := store.VerifyAll(s, l.Node, l.End); err != nil || end != l.End {
			return errors.Join(err, fmt.Errorf("the copied log of %s ends at batch %d, want %d", l.Node, end.Batch, l.End.Batch))
		}
	}
	return s.rebuild(ctx, func(tx pgx.Tx) error {
		for log, l := range ends {
			const write = "INSERT INTO troupe.logs (log, batch, pos, hash, owner) VALUES ($1, $2, $3, $4, $5) ON CONFLICT (log) DO UPDATE SET (batch, pos, hash, owner) = ROW(excluded.batch, excluded.pos, excluded.hash, excluded.owner)"
			if _, err := tx.Exec(ctx, write, log, int64(l.End.Batch), int64(l.End.Pos), l.End.Hash[:], s.owner); err != nil {
				return err
			}
		}
		return insertStore(ctx, tx, s.node, len(ends), from.Secret)
	})
}

// errIncomplete is the error of a database with rows, but without a store.
var errIncomplete = errors.New("holds a part of a store: an import was not completed. Remove it with: DROP SCHEMA troupe CASCADE, then repeat the import")

func (s *Store) copyRows(ctx context.Context, rows func(func(store.Row) error) ([]store.LogEnd, error)) ([]store.LogEnd, error) {
	var page [][]any
	size := 0
	flush := func() error {
		_, err := s.conn.CopyFrom(ctx, pgx.Identifier{"troupe", "kv"}, []string{"k", "v"}, pgx.CopyFromRows(page))
		page, size = nil, 0
		return err
	}
	ends, err := rows(func(r store.Row) error {
		page = append(page, []any{r.Key, append([]byte{}, r.Value...)}) // an empty value is not NULL
		if size += len(r.Key) + len(r.Value); len(page) < importRows && size < importBytes {
			return nil
		}
		return flush()
	})
	if err == nil {
		err = flush()
	}
	return ends, err
}

// insertStore writes the row of a store.
func insertStore(ctx context.Context, q pgx.Tx, node actor.NodeID, logs int, secret []byte) error {
	_, err := q.Exec(ctx, "INSERT INTO troupe.store (node, logs, format, secret) VALUES ($1, $2, $3, $4)", string(node), logs, string(store.FormatRow().Value), secret)
	return err
}
