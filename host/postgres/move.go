// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/store"
)

// progressRows is the number of rows between two reports of progress.
const progressRows = 4096

// counted reports the number of rows to progress, which may be nil.
func counted(progress func(rows uint64), eachRow func(func(store.Row) error) error) func(func(store.Row) error) error {
	return func(each func(store.Row) error) error {
		n := uint64(0)
		return eachRow(func(r store.Row) error {
			if n++; progress != nil && n%progressRows == 0 {
				progress(n)
			}
			return each(r)
		})
	}
}

// FromFolder copies the store of a folder into a database without one. It returns the end of the log.
func FromFolder(url, dir string, logger *slog.Logger, progress func(rows uint64)) (end store.Mark, err error) {
	r, err := disk.Open(dir, "", disk.Options{ReadOnly: true}) // tells the node
	if err != nil {
		return end, err
	}
	node := r.Node()
	if err := r.Close(); err != nil {
		return end, err
	}
	d, err := disk.Open(dir, node, disk.Options{FreeFloor: 1, Logger: logger}) // its index may have to be written
	if err != nil {
		return end, err
	}
	secret, err := d.Secret()
	if err == nil {
		err = Import(url, Source{Node: node, Secret: secret, End: d.End(),
			EachRow: counted(progress, func(each func(store.Row) error) error { return disk.EachRow(d, each) })})
	}
	return d.End(), errors.Join(err, d.Close())
}

// IntoFolder copies a store that no process writes into a folder, which it creates. It returns the end of
// the log.
func IntoFolder(dir, url string, logger *slog.Logger, progress func(rows uint64)) (end store.Mark, err error) {
	s, err := Open(url, "", Options{ReadOnly: true, Idle: true})
	if err != nil {
		return end, err
	}
	if len(s.logs) > 1 {
		return end, errors.Join(fmt.Errorf("store %s: has %d logs, which a cluster shares; a folder has one, so it cannot be copied into a folder", s.url, len(s.logs)), s.Close())
	}
	end = s.ends[0].End
	return end, errors.Join(disk.Import(dir, s.node, s.secret, end, disk.Options{Logger: logger}, counted(progress, s.EachRow)), s.Close())
}
