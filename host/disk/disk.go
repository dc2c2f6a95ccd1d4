// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
)

// FreeFloor is the free space, in bytes, below which a store takes no new work.
// Opening a store needs only a quarter of it, because opening removes the
// leftovers of a crash, and so do deletions.
const FreeFloor = 256 << 20

// reservePart is the part of the floor that opens and deletions leave.
const reservePart = 4

// WriteBuffer is the default size of a write buffer in bytes.
const WriteBuffer = 32 << 20

// Options are the options of a store. The zero value is for production.
type Options struct {
	// ReadOnly opens the store without changing DIR/pebble. It accepts no
	// batches.
	ReadOnly bool
	// Damaged opens a read-only store even if its anchor, its log or its chain is
	// corrupt. The intact rest can be read. It is verified only by the checksum of
	// each value.
	Damaged bool
	// FreeFloor is the free space in bytes below which new work is refused. 0
	// means the constant FreeFloor, 1 disables the limit.
	FreeFloor uint64
	// Ballast is the size in bytes of a file that is removed if the disk is too full
	// to open the store. 0 means none.
	Ballast uint64
	// WriteBuffer is the size in bytes of one write buffer, of which up to three are
	// in memory. A larger one makes fewer files, and slows down the start after a
	// crash. 0 means the constant WriteBuffer.
	WriteBuffer uint64
	// ReadCache is the size in bytes of the cache of blocks that were read. It makes actors that left
	// the memory come back sooner. 0 means the 8 MiB of Pebble.
	ReadCache int64
	// IndexEntries is the number of entries between flushes of the index. 0 means
	// store.IndexEntries.
	IndexEntries int
	// OpenFiles is the number of tables that stay open. 0 means 1000.
	OpenFiles int
	// Descriptors is called when a file cannot be opened because the process has no free
	// descriptor. It closes some that can be spared; the store then tries again, for about 10 s.
	// It may be nil.
	Descriptors func()
	// Logger receives Pebble's errors; nil discards them.
	Logger *slog.Logger
	// Fatal receives the reason why the disk can no longer be written. It MUST
	// NOT return. nil prints the line and ends the process.
	Fatal func(line string)

	fs        vfs.FS                         // nil means the real file system
	freeSpace func(dir string) (free uint64) // nil means the free space that fs reports
	tune      func(*pebble.Options)          // changes Pebble's options in a test; may be nil
}

// Disk is an open store. It is a store.KV and a store.Reader, safe for concurrent use, and
// the store.Log of its node.
type Disk struct {
	keys
	store.Rows
	dir       string
	node      actor.NodeID
	options   Options
	lock      io.Closer
	anchor    anchor
	end       store.Mark
	origin    store.Mark // where the chain begins, at the time the store was opened
	unsynced  chan write // appended batches, at most store.BatchesInFlight
	synced    uint64     // number of the last synced batch
	closeOnce sync.Once

	neverLocked bool // opened read-only without LOCK

	indexMu sync.Mutex // protects Rows.Index
	writing sync.Mutex // excludes Append during a step of Erase
	stale   stale
}

var (
	_ store.KV        = (*Disk)(nil)
	_ store.Forgetter = (*Disk)(nil)
	_ store.Reader    = (*Disk)(nil)
)

// Open opens the store of a node in dir. It creates one if dir is empty or
// absent. In a read-only open, node may be empty: then the store of any node is
// accepted.
func Open(dir string, node actor.NodeID, options Options) (d *Disk, err error) {
	d = &Disk{dir: dir, node: node, options: options.withDefaults(dir)}
	d.Rows = store.Rows{KV: d, Index: store.NewIndex(d.indexConfig()), With: d.withIndex}
	d.unsynced = make(chan write, store.BatchesInFlight)
	defer func() {
		// Pebble panics on some kinds of corruption.
		if p := recover(); p != nil {
			err = &DamageError{fmt.Errorf("store %s: damaged: %v", dir, p)}
		}
		if err != nil {
			d.release()
			d = nil
		}
	}()
	if err := d.open(); err != nil {
		return d, fmt.Errorf("store %s: %w", dir, err)
	}
	return d, nil
}

func (o Options) withDefaults(dir string) Options {
	if o.FreeFloor == 0 {
		o.FreeFloor = FreeFloor
	}
	if o.WriteBuffer == 0 {
		o.WriteBuffer = WriteBuffer
	}
	if o.fs == nil {
		o.fs = realFS
	}
	if o.Descriptors != nil {
		o.fs = descriptorFS{o.fs, o.Descriptors, time.Sleep}
	}
	if o.freeSpace == nil {
		o.freeSpace = func(dir string) uint64 {
			usage, err := o.fs.GetDiskUsage(dir)
			if err != nil {
				return ^uint64(0) // unknown free space is treated as unlimited, so the node continues
			}
			return usage.AvailBytes
		}
	}
	if o.Fatal == nil {
		var first sync.Mutex // never released: only the first error is reported
		o.Fatal = func(line string) {
			first.Lock()
			fmt.Fprintln(os.Stderr, "troupe: "+line)
			os.Exit(1)
		}
	}
	return o
}

// open inspects the directory, locks it, and inspects it again. It writes
// nothing before it holds the lock. Exception: it creates the directory.
func (d *Disk) open() error {
	if _, err := d.inspect(); err != nil {
		return err
	}
	if !d.options.ReadOnly {
		if err := d.options.fs.MkdirAll(d.dir, dirMode); err != nil {
			return fmt.Errorf("directory cannot be created: %w", cause(err))
		}
	}
	if err := d.acquireLock(); err != nil {
		return err
	}
	if !d.options.ReadOnly {
		err := d.checkFree(d.options.FreeFloor / reservePart)
		if err != nil && d.releaseBallast() {
			err = d.checkFree(d.options.FreeFloor / reservePart)
		}
		if err != nil {
			return err
		}
	}
	fresh, err := d.inspect()
	if err != nil {
		return err
	}
	if !d.options.ReadOnly {
		if err := d.narrow(); err != nil {
			return err
		}
	}
	if fresh {
		if err := d.initialize(); err != nil {
			return err
		}
	}
	tolerant := d.options.ReadOnly && d.options.Damaged
	mark, err := d.readAnchor()
	if err != nil && !tolerant {
		return damaged(err)
	}
	if err := d.preserveWAL(); err != nil {
		return err
	}
	if d.db, err = pebble.Open(d.path(pebbleDir), d.pebbleOptions(mark)); err != nil {
		err = d.openError(err, mark)
		if !tolerant || d.openTablesOnly(mark) != nil {
			return damaged(err)
		}
	}
	if err := d.checkFormat(mark); err != nil {
		return damaged(err)
	}
	d.end, err = store.Verify(d, d.node, mark)
	d.synced = d.end.Batch
	if err == nil {
		err = store.CheckOrigin(d, d.node, d.anchor.last)
	}
	if err == nil {
		d.origin, err = store.Origin(d, d.node)
	}
	if indexErr := d.recoverIndex(err == nil && !d.options.ReadOnly); err == nil {
		err = indexErr
	}
	switch {
	case tolerant:
		return nil
	case err != nil && !d.options.ReadOnly:
		return damaged(fmt.Errorf("%w%s", err, d.preservedNote()))
	case err != nil:
		return damaged(err)
	}
	if err := d.dropPreserved(); err != nil || d.options.ReadOnly {
		return err
	}
	if err := (purger{d}).recoverPurge(); err != nil {
		return err
	}
	d.createBallast()
	return nil
}

func (d *Disk) pebbleOptions(mark store.Mark) *pebble.Options {
	var fs vfs.FS = guardFS{d.options.fs, d}
	if d.options.ReadOnly {
		fs = noLockFS{d.options.fs}
	}
	o := &pebble.Options{
		FS: fs,
		// After one flipped bit, older format versions can lose synced writes
		// without an error. The newest version seldom loses any, and then the
		// anchor reveals the loss.
		FormatMajorVersion: pebble.FormatNewest,
		ReadOnly:           d.options.ReadOnly,
		ErrorIfNotExists:   mark.Batch > 0,
		MemTableSize:       d.options.WriteBuffer,
		MaxOpenFiles:       d.options.OpenFiles,
		CacheSize:          d.options.ReadCache,
		// Written data is rarely read again, because most reads are served from
		// memory. Compacting later, in larger pieces, rewrites it less often.
		L0CompactionThreshold: 8,
		L0StopWritesThreshold: 24,
		LBaseMaxBytes:         512 << 20,
		Logger:                logger{d},
		// Corruption found by a read fails that read, but does not end the process.
		EventListener: &pebble.EventListener{DataCorruption: func(info pebble.DataCorruptionInfo) {
			logger{d}.Errorf("damaged: %s: %v", info.Path, info.Details)
		}},
	}
	if d.options.tune != nil {
		d.options.tune(o)
	}
	return o
}

// checkFormat checks that the keys have the format given in FORMAT. In a new
// store it writes the format key.
func (d *Disk) checkFormat(mark store.Mark) error {
	if err := store.CheckFormat(d); err != nil {
		return err
	}
	_, ok, err := d.Get([]byte(store.FormatKey))
	switch {
	case err != nil || ok:
		return err
	case mark.Batch > 0:
		return fmt.Errorf("key %s: is missing", store.FormatKey)
	case d.options.ReadOnly:
		return nil
	}
	return d.Apply([]store.Row{store.FormatRow()})
}

// recoverIndex reads the index of the end of the log. Lost rows of the index are written
// again if the store may be changed.
func (d *Disk) recoverIndex(write bool) error {
	flush := d.writeUnsynced
	if !write {
		flush = nil
	}
	index, err := store.RecoverIndex(d, d.indexConfig(), flush)
	d.Index = index
	return err
}

func (d *Disk) indexConfig() store.IndexConfig {
	return store.IndexConfig{Entries: d.options.IndexEntries}
}

// withIndex runs a function that reads the index.
func (d *Disk) withIndex(read func()) {
	d.indexMu.Lock()
	defer d.indexMu.Unlock()
	read()
}

// Erase implements store.Forgetter. It may run at the same time as Append.
func (d *Disk) Erase(node actor.NodeID, durable uint64) (more bool, err error) {
	d.writing.Lock()
	defer d.writing.Unlock()
	r := d.Rows
	r.KV = eraser{d}
	return r.Erase(node, durable)
}

// index adds a written batch to the index, and flushes the index once it is large.
func (d *Disk) index(b *store.Batch) error {
	d.indexMu.Lock()
	full := d.Index.Add(b)
	d.indexMu.Unlock()
	if !full {
		return nil
	}
	return d.writeIndex()
}

// flushIndex flushes the index, so that the log can be cut.
func (d *Disk) flushIndex() error {
	d.writing.Lock()
	defer d.writing.Unlock()
	return d.writeIndex()
}

// writeIndex flushes the index. d.writing is held, so no other goroutine changes the index.
// Readers find the same data in both places until it is cleared.
func (d *Disk) writeIndex() error {
	if err := d.writeUnsynced(d.Index.Rows()); err != nil {
		return err
	}
	d.indexMu.Lock()
	defer d.indexMu.Unlock()
	d.Index.Clear()
	return nil
}

// Node returns the node that the store belongs to.
func (d *Disk) Node() actor.NodeID { return d.node }

// End returns the end of the log at the time the store was opened.
func (d *Disk) End() store.Mark { return d.end }

// VerifyAll verifies the chain from its beginning. Open verifies only the
// recent part.
func (d *Disk) VerifyAll() (store.Mark, error) {
	end, err := store.VerifyAll(d, d.node, d.end)
	if err != nil {
		return store.Mark{}, fmt.Errorf("store %s: %w", d.dir, err)
	}
	return end, nil
}

// Full returns an error while new work must wait for free space. Open work may
// complete.
func (d *Disk) Full() error { return d.checkFree(d.options.FreeFloor) }

func (d *Disk) checkFree(floor uint64) error {
	if free := d.options.freeSpace(d.dir); free < floor {
		return fullError(fmt.Sprintf("storage full: %d MiB free, the minimum is %d MiB: free some space", free>>20, floor>>20))
	}
	return nil
}

// fullError reports that the free space is below the floor.
type fullError string

func (e fullError) Error() string { return string(e) }

// Is makes the error match syscall.ENOSPC.
func (e fullError) Is(target error) bool { return target == syscall.ENOSPC }

// Apply implements store.KV. The rows are durable when it returns.
func (d *Disk) Apply(rows []store.Row) error {
	if err := d.Full(); err != nil {
		return err
	}
	return d.keys.Apply(rows)
}

// Append implements store.Log. It does not wait for the sync.
func (d *Disk) Append(b *store.Batch) error {
	d.writing.Lock()
	defer d.writing.Unlock()
	rows, err := d.StoredRows(b)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(b.Entries, isCut) {
		if err := (purger{d}).owePurge(rows); err != nil {
			return err
		}
	}
	w, err := d.write(rows)
	if err != nil {
		return err
	}
	if err := d.index(b); err != nil {
		return err
	}
	w.batch = b.No
	d.unsynced <- w
	return nil
}

// Sync implements store.Log.
func (d *Disk) Sync(batch uint64) error {
	for d.synced < batch {
		w := <-d.unsynced
		if err := w.sync(); err != nil {
			return err
		}
		d.synced = w.batch
	}
	return nil
}

// Close closes the store. A Log over it MUST be closed first.
func (d *Disk) Close() error {
	var err error
	d.closeOnce.Do(func() { err = d.release() })
	return err
}

func (d *Disk) release() error {
	var errs []error
	if d.db != nil {
		errs = append(errs, d.db.Close())
	}
	if d.lock != nil {
		errs = append(errs, d.lock.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("store %s: %w", d.dir, err)
	}
	return nil
}

// fatal reports an error that the node cannot survive. It does not return.
func (d *Disk) fatal(format string, args ...any) {
	d.options.Fatal(fmt.Sprintf("store %s: %s; stopping, nothing acknowledged is lost", d.dir, fmt.Sprintf(format, args...)))
	panic("disk: Fatal returned")
}

// logger receives Pebble's log. Its Fatalf MUST NOT return: Pebble would
// continue with a log that is not synced.
type logger struct{ d *Disk }

func (logger) Infof(string, ...any) {}

func (l logger) Errorf(format string, args ...any) {
	if l.d.options.Logger != nil {
		l.d.options.Logger.LogAttrs(context.Background(), slog.LevelError, fmt.Sprintf(format, args...), slog.String("store", l.d.dir))
	}
}

func (l logger) Fatalf(format string, args ...any) { l.d.fatal(format, args...) }
