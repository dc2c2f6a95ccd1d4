// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
)

const (
	anchorFile = "ANCHOR"
	lockFile   = "LOCK"
	holderFile = "HOLDER" // written by earlier programs
	pebbleDir  = "pebble"
	tempSuffix = ".new" // suffix of a file that is still being written
)

// storeFiles are the types of the files of a store.
var storeFiles = map[string]iofs.FileMode{formatFile: 0, anchorFile: 0, secretFile: 0, lockFile: 0, holderFile: 0, ballastFile: 0,
	formatFile + tempSuffix: 0, anchorFile + tempSuffix: 0, secretFile + tempSuffix: 0, pebbleDir: iofs.ModeDir, preservedDir: iofs.ModeDir}

func (d *Disk) path(name string) string { return d.options.fs.PathJoin(d.dir, name) }

// inspect checks the files of the directory without writing. fresh reports
// whether the directory holds no store yet, or an incomplete new one.
func (d *Disk) inspect() (fresh bool, err error) {
	names, err := d.options.fs.List(d.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, err
	}
	slices.Sort(names)
	if err := d.checkTypes(names); err != nil {
		return false, err
	}
	if !slices.Contains(names, formatFile) {
		own := []string{formatFile + tempSuffix, lockFile, holderFile}
		names = slices.DeleteFunc(names, func(n string) bool { return slices.Contains(own, n) })
		switch {
		case err != nil && d.options.ReadOnly:
			return false, noStoreError("does not exist")
		case d.options.ReadOnly && len(names) > 0:
			return false, noStoreError("holds no store, but " + foreignContent(names))
		case d.options.ReadOnly:
			return false, ErrNoStore
		case len(names) > 0:
			return false, fmt.Errorf("holds %s and no FORMAT: name an empty directory", foreignContent(names))
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
			return false, &DamageError{errors.New("ANCHOR is missing: the expected end of the log is unknown")}
		}
		if !d.options.ReadOnly {
			return true, nil // a crash prevented the creation of ANCHOR after FORMAT
		}
		return false, noStoreError("holds no store")
	}
	return false, nil
}

// ErrNoStore is the error of a read-only open of a directory that holds no store.
var ErrNoStore error = noStoreError("holds no store")

// noStoreError describes what a directory holds instead.
type noStoreError string

func (e noStoreError) Error() string { return string(e) }

// Is makes each noStoreError match ErrNoStore.
func (e noStoreError) Is(target error) bool { return target == ErrNoStore }

// foreignContent describes files that do not belong to a store.
func foreignContent(names []string) string {
	for _, n := range names {
		if n == "CURRENT" || strings.HasPrefix(n, "MANIFEST-") || strings.HasPrefix(n, "OPTIONS-") || strings.HasPrefix(n, "marker.") {
			return fmt.Sprintf("a foreign Pebble or RocksDB store (%s)", n)
		}
	}
	return fmt.Sprintf("other files (%s)", strings.Join(names[:min(len(names), 3)], ", "))
}

// checkTypes returns an error if one of the named files of the store is a link, or of
// another type.
func (d *Disk) checkTypes(names []string) error {
	if _, ok := asPrivate(d.options.fs); !ok {
		return nil // a file system in memory has no links
	}
	for _, name := range names {
		want, ok := storeFiles[name]
		if !ok {
			continue
		}
		if err := checkType(d.path(name), want); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("file %s: %w", name, cause(err))
		}
	}
	return nil
}

// acquireLock locks the directory. For a read-only open it creates no file. Without LOCK,
// no process has opened the store before, and none is excluded: see checkUnused.
func (d *Disk) acquireLock() (err error) {
	if d.options.ReadOnly {
		d.lock, err = d.lockToRead()
	} else {
		d.lock, err = d.options.fs.Lock(d.path(lockFile))
	}
	switch held, ok := errors.AsType[InUseError](err); {
	case err == nil:
		return nil
	case ok:
		return held
	case d.options.ReadOnly && (errors.Is(err, os.ErrPermission) || errors.Is(err, syscall.EROFS)):
		return nil // a directory of another user is read without a lock
	}
	return fmt.Errorf("file %s: cannot be locked: %w", lockFile, cause(err))
}

func (d *Disk) lockToRead() (io.Closer, error) {
	p, ok := asPrivate(d.options.fs)
	if !ok {
		return nil, nil
	}
	lock, err := p.lockShared(d.path(lockFile))
	if errors.Is(err, os.ErrNotExist) {
		d.neverLocked = true
		return nil, nil
	}
	return lock, err
}

// checkUnused returns an error if a process has opened the store since a read-only open
// that found no LOCK.
func (d *Disk) checkUnused() error {
	if !d.neverLocked {
		return nil
	}
	if _, err := os.Lstat(d.path(lockFile)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return errors.New("was opened by another process while it was read: repeat the command")
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
