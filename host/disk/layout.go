// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
)

const (
	anchorFile = "ANCHOR"
	lockFile   = "LOCK"
	holderFile = "HOLDER"
	pebbleDir  = "pebble"
	tempSuffix = ".new" // suffix of a file that is still being written
)

func (d *Disk) path(name string) string { return d.options.fs.PathJoin(d.dir, name) }

// inspect checks the files of the directory without writing. fresh reports
// whether the directory holds no store yet, or an incomplete new one.
func (d *Disk) inspect() (fresh bool, err error) {
	names, err := d.options.fs.List(d.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, err
	}
	slices.Sort(names)
	if !slices.Contains(names, formatFile) {
		own := []string{formatFile + tempSuffix, lockFile, holderFile}
		names = slices.DeleteFunc(names, func(n string) bool { return slices.Contains(own, n) })
		switch {
		case len(names) > 0:
			return false, foreignError(names)
		case d.options.ReadOnly:
			return false, errors.New("holds no store")
		}
		if err := actor.CheckName(string(d.node)); err != nil {
			return false, fmt.Errorf("node %w", err)
		}
		return true, nil
	}
	if err := d.checkFormatFile(); err != nil {
		return false, err
	}
	if !slices.Contains(names, anchorFile) {
		if slices.Contains(names, pebbleDir) {
			return false, errors.New("ANCHOR is missing: the expected end of the log is unknown")
		}
		if !d.options.ReadOnly {
			return true, nil // a crash prevented the creation of ANCHOR after FORMAT
		}
		return false, errors.New("holds no store")
	}
	return false, nil
}

func foreignError(names []string) error {
	for _, n := range names {
		if n == "CURRENT" || strings.HasPrefix(n, "MANIFEST-") || strings.HasPrefix(n, "OPTIONS-") || strings.HasPrefix(n, "marker.") {
			return fmt.Errorf("holds a foreign Pebble or RocksDB store (%s): name an empty directory", n)
		}
	}
	shown := names[:min(len(names), 3)]
	return fmt.Errorf("holds other files (%s) and no FORMAT: name an empty directory", strings.Join(shown, ", "))
}

// acquireLock locks the directory.
func (d *Disk) acquireLock() error {
	lock, err := d.options.fs.Lock(d.path(lockFile))
	switch {
	case err == nil:
		d.lock = lock
	case d.options.ReadOnly && (errors.Is(err, os.ErrPermission) || strings.Contains(err.Error(), "read-only file system")):
		return nil // a directory that cannot be written cannot be locked either
	default:
		holder, readErr := d.readFile(holderFile, 4096)
		if readErr != nil {
			holder = []byte("another process")
		}
		return fmt.Errorf("is in use by %s (%w)", strings.TrimSpace(string(holder)), err)
	}
	return nil
}

// writeHolder names this process as the holder of the lock.
func (d *Disk) writeHolder() error {
	if err := d.writeFile(holderFile, fmt.Appendf(nil, "process %d\n", os.Getpid())); err != nil && !d.options.ReadOnly {
		return err
	}
	return nil
}

// noLockFS is the file system of a read-only store. Pebble would take a lock of
// its own in addition to DIR/LOCK, and write a file where nothing may be
// written.
type noLockFS struct{ vfs.FS }

// Lock implements vfs.FS. It does nothing.
func (noLockFS) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

// initialize writes the files that precede the first key. After a crash in
// between, inspect recognizes the result as an incomplete new store.
func (d *Disk) initialize() error {
	d.syncParents()
	if err := d.writeAtomic(formatFile, []byte(formatLine(store.FormatVersion, d.node))); err != nil {
		return err
	}
	slots := make([]byte, store.AnchorFileBytes)
	for i := range 2 {
		copy(slots[i*store.AnchorSlotStride:], store.EncodeAnchor(d.node, store.Anchor{}))
	}
	return d.writeAtomic(anchorFile, slots)
}

// syncParents makes the directory itself durable, as far as its parents can be
// read.
func (d *Disk) syncParents() {
	fs := d.options.fs
	for dir := d.dir; ; {
		parent := fs.PathDir(dir)
		if parent == dir {
			return
		}
		if syncDir(fs, parent) != nil {
			return
		}
		dir = parent
	}
}

// anchor is the open file ANCHOR, the slot to write next, and the anchor in the other.
type anchor struct {
	file vfs.File
	slot int
	last store.Anchor
}

func (d *Disk) readAnchor() (store.Mark, error) {
	b, err := d.readFile(anchorFile, store.AnchorFileBytes)
	if err != nil {
		return store.Mark{}, err
	}
	last, slot, err := store.DecodeAnchor(b, d.node)
	d.anchor.last, d.anchor.slot = last, 1-slot
	return last.End, err
}

// writeAnchor records the ends of the synced log. It is not safe for concurrent
// use.
func (d *Disk) writeAnchor(a store.Anchor) error {
	if a == d.anchor.last {
		return nil
	}
	if d.anchor.file == nil {
		f, err := d.options.fs.OpenReadWrite(d.path(anchorFile), vfs.WriteCategoryUnspecified)
		if err != nil {
			return err
		}
		d.anchor.file = f
	}
	if _, err := d.anchor.file.WriteAt(store.EncodeAnchor(d.node, a), int64(d.anchor.slot*store.AnchorSlotStride)); err != nil {
		return err
	}
	if err := d.anchor.file.SyncData(); err != nil {
		return err
	}
	d.anchor.last, d.anchor.slot = a, 1-d.anchor.slot
	return nil
}

func (d *Disk) closeAnchor() error {
	if d.anchor.file == nil {
		return nil
	}
	err := d.anchor.file.Close()
	d.anchor.file = nil
	return err
}

func (d *Disk) readFile(name string, limit int64) ([]byte, error) {
	f, err := d.options.fs.Open(d.path(name))
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, limit))
	return b, errors.Join(err, f.Close())
}

func (d *Disk) writeFile(name string, content []byte) error {
	f, err := d.options.fs.Create(d.path(name), vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = f.Write(slices.Clone(content)) // a file system under test may overwrite the buffer
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err != nil {
		return fmt.Errorf("file %s: %w", name, cause(err))
	}
	return nil
}

// writeAtomic writes a file such that after a crash the file is either absent
// or complete.
func (d *Disk) writeAtomic(name string, content []byte) error {
	if err := d.writeFile(name+tempSuffix, content); err != nil {
		return err
	}
	return d.install(name)
}

// install renames a complete file to its final name.
func (d *Disk) install(name string) error {
	err := d.options.fs.Rename(d.path(name+tempSuffix), d.path(name))
	if err == nil {
		err = syncDir(d.options.fs, d.dir)
	}
	if err != nil {
		return fmt.Errorf("file %s: %w", name, cause(err))
	}
	return nil
}

// syncDir makes the names of the files in a directory durable.
func syncDir(fs vfs.FS, dir string) error {
	f, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
