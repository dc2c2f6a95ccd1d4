// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/host/logs"
	"github.com/troupe-run/troupe/host/postgres"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// storage is a store, in a folder or in a database.
type storage interface {
	store.Reader
	Secret() ([]byte, error)
	OldBatches(node actor.NodeID, before actor.Time) (last uint64, err error)
	Newest(node actor.NodeID) (actor.Time, error)
	EachNoted(node actor.NodeID, first, last uint64, each func(batch uint64, of actor.ID, e *runs.Event) bool) error
	EachEntry(node actor.NodeID, first, last uint64, each func(batch uint64, e *store.Entry) bool) error
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

// endsOf returns the numbers of batches and of entries that all logs together had when the store was opened.
func endsOf(log *logs.Log) (batches, entries uint64) {
	for _, l := range log.Ends() {
		batches, entries = batches+l.End.Batch, entries+uint64(l.End.Pos)
	}
	return batches, entries
}

// newestOf returns the time of the newest record in the logs of a store; 0 if it has none.
func newestOf(s storage, log *logs.Log) (newest actor.Time, err error) {
	for _, l := range log.Ends() {
		at, err := s.Newest(l.Node)
		if err != nil {
			return 0, err
		}
		newest = max(newest, at)
	}
	return newest, nil
}

// queriesOf returns the reader for what clients ask.
func queriesOf(s storage) store.Reader {
	if p, ok := s.(*postgres.Store); ok {
		return p.Queries()
	}
	return s
}

// openStorage opens the store of a node and its logs.
func openStorage(c *Config, logger *slog.Logger) (storage, *logs.Log, error) {
	if err := checkPlace(c.Data, c.Store); err != nil {
		return nil, nil, err
	}
	if c.Store != "" {
		s, err := postgres.Open(c.Store, actor.NodeID(c.Name), postgres.Options{Logger: logger, Cluster: c.Cluster})
		if err != nil {
			return nil, nil, err
		}
		if err := MarkPlace(c.Data, c.Store); err != nil {
			return nil, nil, errors.Join(err, s.Close())
		}
		return s, postgres.NewLog(s), nil
	}
	d, err := disk.Open(c.Data, actor.NodeID(c.Name), disk.Options{FreeFloor: c.FreeFloor, Ballast: c.Ballast, WriteBuffer: c.WriteBuffer, OpenFiles: c.OpenFiles,
		ReadCache: readCache(os.DirFS("/")), Descriptors: c.Descriptors, Logger: logger})
	if err != nil {
		return nil, nil, err
	}
	return d, disk.NewLog(d), nil
}

// placeFile names, in a data folder, the database with the store. A start without it would otherwise make
// a second, empty store in the folder.
const placeFile = "STORE"

// Place returns the database with the store of a folder, without its password; "" if the folder names none.
func Place(dir string) string {
	b, err := disk.ReadFile(filepath.Join(dir, placeFile), 4096)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// MarkPlace notes in a folder, which it creates, that its store is in a database.
func MarkPlace(dir, url string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if Place(dir) == postgres.Shown(url) {
		return nil
	}
	return disk.WriteFile(filepath.Join(dir, placeFile), []byte(postgres.Shown(url)+"\n"))
}

// checkPlace refuses a folder whose store is elsewhere.
func checkPlace(dir, url string) error {
	place := Place(dir)
	if url == "" && place != "" {
		return fmt.Errorf("the store of folder %s is in %s: give --store with that URL; to begin with another store, use another --data", dir, place)
	}
	if _, err := os.Stat(filepath.Join(dir, "FORMAT")); url != "" && place == "" && err == nil {
		return fmt.Errorf("folder %s has a store of its own: copy it with `troupe migrate --from %[1]s --to %[2]s`, or use another --data", dir, postgres.Shown(url))
	}
	return nil
}

// errDatabaseBackup is the refusal of a backup of a store in a database.
var errDatabaseBackup = actor.Refuse(actor.Rejected, "the store is in a database, which has backups of its own: use pg_dump, or the archive of its log")
