// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
)

// Adopted is a log that this process begins to write.
type Adopted struct {
	End store.Anchor
	// Start is greater than that of each earlier process that has written the log: the number of all batches in the
	// store, and the epoch.
	Start uint64
}

// Adopt begins to write a log that the table of the cluster has given to this process under an epoch. It verifies the
// recent part of the log's chain.
func (s *Store) Adopt(log uint16, epoch actor.Epoch) (a Adopted, err error) {
	var heads []head
	err = s.keys.read(func(ctx context.Context) error {
		rows, err := s.gets.Query(ctx, "SELECT log, owner, epoch, batch, pos, hash FROM troupe.logs ORDER BY log")
		if err == nil {
			heads, err = pgx.CollectRows(rows, collectHead)
		}
		return err
	})
	if err != nil {
		return a, fmt.Errorf("store %s: %w", s.url, explain(err))
	}
	if len(heads) != len(s.logs) {
		return a, fmt.Errorf("store %s: troupe.logs has %d rows, want %d", s.url, len(heads), len(s.logs))
	}
	for i := range heads {
		a.Start += heads[i].mark.Batch
	}
	h := &heads[log]
	if h.owner != s.owner || h.epoch != int64(epoch) {
		return a, fmt.Errorf("store %s: log %d belongs to %q under epoch %d", s.url, log, h.owner, h.epoch)
	}
	a.Start += uint64(h.epoch)
	node := s.logs[log].node
	if a.End.End, err = store.Verify(s, node, h.mark); err != nil {
		return a, err
	}
	if a.End.Origin, err = store.Origin(s, node); err != nil {
		return a, err
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	s.logs[log].epoch, s.logs[log].head = h.epoch, h.mark
	return a, nil
}

// Drop writes a log no longer, so that it can be released.
func (s *Store) Drop(log uint16) {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.logs[log].epoch = 0
	s.withIndex(func() { s.Rows.Index.DropForgotten(s.logs[log].node) })
}
