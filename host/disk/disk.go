// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
)

// FreeFloor is the free space, in bytes, without which a store takes no new work. It
// opens with a quarter of it: what a crash has left lying about goes then.
const FreeFloor = 256 << 20

// Options says how a store is opened. The zero value is that of production.
type Options struct {
	// ReadOnly changes nothing in DIR/pebble and takes no batches.
	ReadOnly bool
	// Damaged, of a store that is only read, has it opened though its anchor, its
	// log or its chain are wrong: what is left can be read, and is whole only so
	// far as each value says.
	Damaged bool
	// FreeFloor is in bytes; 0 is the constant of that name, 1 is none.
	FreeFloor uint64
	// Logger hears what Pebble complains of; nil hears nothing.
	Logger *slog.Logger
	// Fatal is told why the disk can no longer be written, and does not return.
	// Nil prints the line and ends the process.
	Fatal func(line string)

	fs        vfs.FS                         // nil: the real one
	freeSpace func(dir string) (free uint64) // nil: that of fs
}

// Disk is one opened store. It is a store.KV, safe for use by many goroutines.
type Disk struct {
	keys
	dir       string
	node      actor.NodeID
	options   Options
	lock      io.Closer
	anchor    anchor
	end       store.Mark
	closeOnce sync.Once
}

var _ store.KV = (*Disk)(nil)

// Open opens the store of a node in dir, or begins one there if dir is empty or
// absent. A read-only one may leave node empty: it is whose it is.
func Open(dir string, node actor.NodeID, options Options) (d *Disk, err error) {
	d = &Disk{dir: dir, node: node, options: options.withDefaults(dir)}
	defer func() {
		// Pebble panics at some damage that it does not expect.
		if p := recover(); p != nil {
			err = fmt.Errorf("store %s: damaged: %v", dir, p)
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
	if o.fs == nil {
		o.fs = vfs.Default
	}
	if o.freeSpace == nil {
		o.freeSpace = func(dir string) uint64 {
			usage, err := o.fs.GetDiskUsage(dir)
			if err != nil {
				return ^uint64(0) // what cannot be measured is no reason to stop
			}
			return usage.AvailBytes
		}
	}
	if o.Fatal == nil {
		o.Fatal = func(line string) {
			fmt.Fprintln(os.Stderr, "troupe: "+line)
			os.Exit(1)
		}
	}
	return o
}

// open looks first, then locks, then looks again: until the lock is held nothing is written.
func (d *Disk) open() error {
	if _, err := d.inspect(); err != nil {
		return err
	}
	if !d.options.ReadOnly {
		if err := d.options.fs.MkdirAll(d.dir, 0o700); err != nil {
			return err
		}
	}
	if err := d.acquireLock(); err != nil {
		return err
	}
	if !d.options.ReadOnly {
		if err := d.checkFree(d.options.FreeFloor / 4); err != nil {
			return err
		}
	}
	fresh, err := d.inspect()
	if err != nil {
		return err
	}
	if fresh {
		if err := d.initialize(); err != nil {
			return err
		}
	}
	damaged := d.options.ReadOnly && d.options.Damaged
	mark, err := d.readAnchor()
	if err != nil && !damaged {
		return err
	}
	if err := d.preserveWAL(); err != nil {
		return err
	}
	if d.db, err = pebble.Open(d.path(pebbleDir), d.pebbleOptions(mark)); err != nil {
		err = d.openError(err, mark)
		if !damaged || d.openTablesOnly(mark) != nil {
			return err
		}
	}
	if err := d.checkFormat(mark); err != nil {
		return err
	}
	d.end, err = store.Verify(d, d.node, mark)
	switch {
	case damaged:
		return nil
	case err != nil && !d.options.ReadOnly:
		return fmt.Errorf("%w%s", err, d.preservedNote())
	case err != nil:
		return err
	}
	return d.dropPreserved()
}

func (d *Disk) pebbleOptions(mark store.Mark) *pebble.Options {
	fs := d.options.fs
	if d.options.ReadOnly {
		fs = noLockFS{fs}
	}
	return &pebble.Options{
		FS:                 fs,
		FormatMajorVersion: pebble.FormatNewest, // older ones lose synced writes to one flipped bit, and say nothing; this one does seldom, and the anchor says it
		ReadOnly:           d.options.ReadOnly,
		ErrorIfNotExists:   mark.Batch > 0,
		MemTableSize:       32 << 20, // more would make a start after a crash slower
		// What is written is read again seldom, by what is not in memory: it is put in
		// order later, in larger pieces, and so fewer times.
		L0CompactionThreshold: 8,
		L0StopWritesThreshold: 24,
		LBaseMaxBytes:         512 << 20,
		Logger:                logger{d},
		// What is read and damaged is the reader's error, not everybody's end.
		EventListener: &pebble.EventListener{DataCorruption: func(info pebble.DataCorruptionInfo) {
			logger{d}.Errorf("damaged: %s: %v", info.Path, info.Details)
		}},
	}
}

// checkFormat sees that the keys are of the format that FORMAT tells, and says so in a new store.
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

// Node is whose log the store holds.
func (d *Disk) Node() actor.NodeID { return d.node }

// End is where the log ended when the store was opened.
func (d *Disk) End() store.Mark { return d.end }

// VerifyAll follows the chain from its beginning; Open does so for what is recent.
func (d *Disk) VerifyAll() (store.Mark, error) {
	end, err := store.VerifyAll(d, d.node, d.end)
	if err != nil {
		return store.Mark{}, fmt.Errorf("store %s: %w", d.dir, err)
	}
	return end, nil
}

// Full says that new work must wait until there is room; what was begun may end.
func (d *Disk) Full() error { return d.checkFree(d.options.FreeFloor) }

func (d *Disk) checkFree(floor uint64) error {
	if free := d.options.freeSpace(d.dir); free < floor {
		return fmt.Errorf("storage full: %d MiB free, the floor is %d MiB: make room", free>>20, floor>>20)
	}
	return nil
}

// Apply implements store.KV: when it returns, the rows will be there after a crash.
func (d *Disk) Apply(rows []store.Row) error {
	if err := d.Full(); err != nil {
		return err
	}
	return d.keys.Apply(rows)
}

// Close lets go of the store. A Log over it is closed first.
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

// fatal does not return.
func (d *Disk) fatal(format string, args ...any) {
	d.options.Fatal(fmt.Sprintf("store %s: %s; stopping, nothing acknowledged is lost", d.dir, fmt.Sprintf(format, args...)))
	panic("disk: Fatal returned")
}

// logger hears Pebble. Its Fatalf must not return: Pebble would go on with a log that is not synced.
type logger struct{ d *Disk }

func (logger) Infof(string, ...any) {}

func (l logger) Errorf(format string, args ...any) {
	if l.d.options.Logger != nil {
		l.d.options.Logger.LogAttrs(context.Background(), slog.LevelError, fmt.Sprintf(format, args...), slog.String("store", l.d.dir))
	}
}

func (l logger) Fatalf(format string, args ...any) { l.d.fatal(format, args...) }
