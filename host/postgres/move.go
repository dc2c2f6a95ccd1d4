// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"errors"
	"log/slog"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/store"
)

// progressRows is the number of rows between two reports of progress.
const progressRows = 4096

// relog is a copy of the rows of a store into one with other logs. It reports the number of rows to progress, which
// may be nil.
func relog(r store.Relog, progress func(rows uint64)) func(func(store.Row) error) ([]store.LogEnd, error) {
	r.ShardOf = dispatcher.ShardOf
	return func(each func(store.Row) error) ([]store.LogEnd, error) {
		n := uint64(0)
		return r.Rows(func(row store.Row) error {
			if n++; progress != nil && n%progressRows == 0 {
				progress(n)
			}
			return each(row)
		})
	}
}

// Moved are the last batches of the logs of a copy, by number, at batches of the log of its source.
type Moved map[uint64][]uint64

// FromFolder copies the store of a folder into a database without one, into as many logs as a new store has. It
// returns the end of the log of the folder, and where some of its batches are now.
func FromFolder(url, dir string, batches []uint64, logger *slog.Logger, progress func(rows uint64)) (end store.Mark, moved Moved, err error) {
	r, err := disk.Open(dir, "", disk.Options{ReadOnly: true}) // tells the node
	if err != nil {
		return end, nil, err
	}
	node := r.Node()
	if err := r.Close(); err != nil {
		return end, nil, err
	}
	d, err := disk.Open(dir, node, disk.Options{FreeFloor: 1, Logger: logger}) // its index may have to be written
	if err != nil {
		return end, nil, err
	}
	secret, err := d.Secret()
	from := store.LogEnd{Node: node, Anchor: store.Anchor{End: d.End()}}
	if err == nil {
		from.Origin, err = store.Origin(d, node)
	}
	if err == nil {
		err = disk.FlushIndex(d)
	}
	var logs []ownedLog
	if err == nil {
		logs, err = logsOf(node, NewLogs)
	}
	if err == nil {
		copied := store.Relog{KV: d, From: []store.LogEnd{from}}
		for _, l := range logs {
			copied.To = append(copied.To, l.node)
		}
		moved = movedBy(&copied, batches)
		err = Import(url, Source{Node: node, Secret: secret, Rows: relog(copied, progress)})
	}
	return from.End, moved, errors.Join(err, d.Close())
}

// movedBy lets a copy note where it is at some batches of its only source.
func movedBy(r *store.Relog, batches []uint64) Moved {
	moved, from := Moved{}, r.From[0]
	for _, batch := range batches { // until one of them is copied, and for those that were cut
		moved[batch] = make([]uint64, len(r.To))
		for log := range r.To {
			moved[batch][log] = from.Origin.Batch
		}
	}
	r.Passed = func(_ actor.NodeID, batch uint64, last []uint64) {
		if at, ok := moved[batch]; ok {
			copy(at, last)
		}
	}
	return moved
}

// IntoFolder copies a store that no process writes into a folder, which it creates. It returns the end of
// the log of the folder.
func IntoFolder(dir, url string, logger *slog.Logger, progress func(rows uint64)) (end store.Mark, err error) {
	s, err := Open(url, "", Options{ReadOnly: true, Idle: true})
	if err != nil {
		return end, err
	}
	copied := store.Relog{KV: s, From: s.ends, To: []actor.NodeID{s.node}}
	end, err = disk.Import(dir, s.node, s.secret, disk.Options{Logger: logger}, relog(copied, progress))
	return end, errors.Join(err, s.Close())
}
