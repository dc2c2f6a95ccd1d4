// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// guardFS is the file system given to Pebble. A failed change of the store's
// files ends the process before Pebble receives the error: Pebble panics on some
// of them, and retries others forever. Files outside of the store, those of a
// backup, return their errors.
//
// Exception: a table that does not fit on the disk. Pebble writes it again later,
// and the node takes no new work until then.
type guardFS struct {
	vfs.FS
	disk *Disk
}

// manifestMarker is the prefix of the marker files that refer to a MANIFEST.
const manifestMarker = "marker.manifest."

// check ends the process if err is set and name is a file of the store.
func (g guardFS) check(operation, name string, err error) error {
	if err == nil || errors.Is(err, os.ErrClosed) {
		return err
	}
	file, ok := strings.CutPrefix(name, g.disk.dir+string(filepath.Separator))
	full := errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
	if !ok || full && strings.HasSuffix(name, ".sst") {
		return err
	}
	g.disk.fatal("cannot %s %s: %v", operation, file, cause(err))
	return err
}

// cause returns an error without the names of its operation and its file.
func cause(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	if l, ok := errors.AsType[*os.LinkError](err); ok {
		return l.Err
	}
	return err
}

func (g guardFS) file(name string, f vfs.File, err error) (vfs.File, error) {
	if g.check("create", name, err) != nil {
		return f, err
	}
	return guardFile{f, g, name}, nil
}

// Create implements vfs.FS. Pebble creates a new MANIFEST, then a marker file whose
// name refers to it, and then syncs the directory once. A file system that persists
// names in any order could keep only the marker after a power failure, and the
// store would not open. Therefore the directory is also synced before the marker.
func (g guardFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasPrefix(filepath.Base(name), manifestMarker) {
		dir := filepath.Dir(name)
		if err := g.check("sync", dir, syncDir(g.FS, dir)); err != nil {
			return nil, err
		}
	}
	f, err := g.FS.Create(name, c)
	return g.file(name, f, err)
}

// ReuseForWrite implements vfs.FS. While a Purge is under way, the old file is not reused:
// it may hold deleted content, which writes replace only as far as they reach.
func (g guardFS) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if g.disk.stale.draining.Load() {
		if err := g.check("remove", old, g.FS.Remove(old)); err != nil {
			return nil, err
		}
		return g.Create(name, c)
	}
	f, err := g.FS.ReuseForWrite(old, name, c)
	return g.file(name, f, err)
}

// OpenReadWrite implements vfs.FS.
func (g guardFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := g.FS.OpenReadWrite(name, c, opts...)
	return g.file(name, f, err)
}

// OpenDir implements vfs.FS. Syncs of the directory are guarded.
func (g guardFS) OpenDir(name string) (vfs.File, error) {
	f, err := g.FS.OpenDir(name)
	if err != nil {
		return f, err
	}
	return guardFile{f, g, name}, nil
}

// Link implements vfs.FS.
func (g guardFS) Link(old, name string) error {
	return g.check("link", name, g.FS.Link(old, name))
}

// Rename implements vfs.FS.
func (g guardFS) Rename(old, name string) error {
	return g.check("rename to", name, g.FS.Rename(old, name))
}

// MkdirAll implements vfs.FS.
func (g guardFS) MkdirAll(dir string, perm os.FileMode) error {
	return g.check("create", dir, g.FS.MkdirAll(dir, perm))
}

// Unwrap implements vfs.FS.
func (g guardFS) Unwrap() vfs.FS { return g.FS }

// guardFile is an open file of a guardFS.
type guardFile struct {
	vfs.File
	fs   guardFS
	name string
}

func (f guardFile) Write(b []byte) (int, error) {
	n, err := f.File.Write(b)
	return n, f.fs.check("write", f.name, err)
}

func (f guardFile) WriteAt(b []byte, at int64) (int, error) {
	n, err := f.File.WriteAt(b, at)
	return n, f.fs.check("write", f.name, err)
}

func (f guardFile) Sync() error     { return f.fs.check("sync", f.name, f.File.Sync()) }
func (f guardFile) SyncData() error { return f.fs.check("sync", f.name, f.File.SyncData()) }

func (f guardFile) SyncTo(length int64) (bool, error) {
	full, err := f.File.SyncTo(length)
	return full, f.fs.check("sync", f.name, err)
}

func (f guardFile) Close() error { return f.fs.check("close", f.name, f.File.Close()) }
