// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"log/slog"
	"os"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/host/logs"
	"github.com/troupe-run/troupe/host/postgres"
	"github.com/troupe-run/troupe/store"
)

// storage is a store, in a folder or in a database.
type storage interface {
	store.Reader
	Node() actor.NodeID
	End() store.Mark // of the log at the time the store was opened
	Secret() ([]byte, error)
	OldBatches(node actor.NodeID, before actor.Time) (last uint64, err error)
	Newest(node actor.NodeID) (actor.Time, error)
	PurgeOwed() bool
	Purge(context.Context) error
	Close() error
}

// readUsage returns the space that a store takes.
func readUsage(s storage) func() (store.Usage, error) {
	return func() (store.Usage, error) {
		switch s := s.(type) {
		case *disk.Disk:
			return disk.ReadUsage(s)
		case *postgres.Store:
			return s.Usage()
		}
		return store.Usage{}, errors.New("the kind of store is unknown")
	}
}

// queriesOf returns the reader for what clients ask.
func queriesOf(s storage) store.Reader {
	if p, ok := s.(*postgres.Store); ok {
		return p.Queries()
	}
	return s
}

// openStorage opens the store of a node and its log.
func openStorage(c *Config, logger *slog.Logger) (storage, *logs.Log, error) {
	if c.Store != "" {
		if err := os.MkdirAll(c.Data, 0o700); err != nil {
			return nil, nil, err
		}
		s, err := postgres.Open(c.Store, actor.NodeID(c.Name), postgres.Options{Logger: logger})
		if err != nil {
			return nil, nil, err
		}
		return s, postgres.NewLog(s), nil
	}
	d, err := disk.Open(c.Data, actor.NodeID(c.Name), disk.Options{FreeFloor: c.FreeFloor, Ballast: c.Ballast, WriteBuffer: c.WriteBuffer, OpenFiles: c.OpenFiles,
		Descriptors: c.Descriptors, Logger: logger})
	if err != nil {
		return nil, nil, err
	}
	return d, disk.NewLog(d), nil
}

// errDatabaseBackup is the refusal of a backup of a store in a database.
var errDatabaseBackup = errors.New("the store is in a database, which has backups of its own: use pg_dump, or the archive of its log")
