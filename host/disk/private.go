// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// privateFS is the real file system. The files and directories that it creates
// are accessible to their owner only, whatever the umask is.
type privateFS struct {
	vfs.FS
	chmod func(name string, mode os.FileMode) error
}

var realFS = privateFS{vfs.Default, os.Chmod}

const (
	fileMode = 0o600
	dirMode  = 0o700
	wideBits = 0o077 // permissions of the group and of others
)

// Create implements vfs.FS. The file has its mode before anything can be written
// to it.
func (p privateFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	err := p.createEmpty(name)
	for errors.Is(err, os.ErrExist) { // replace the file: it may have other links
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		err = p.createEmpty(name)
	}
	if err != nil {
		return nil, err
	}
	return p.FS.OpenReadWrite(name, c)
}

func (p privateFS) createEmpty(name string) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, fileMode)
	if err != nil {
		return err
	}
	p.setMode(name, fileMode)
	return f.Close()
}

// setMode undoes the effect of an unusual umask on a new file or directory. On a
// file system without modes the error does not matter.
func (p privateFS) setMode(name string, mode os.FileMode) {
	if info, err := os.Lstat(name); err == nil && info.Mode().Perm() != mode {
		_ = p.chmod(name, mode)
	}
}

// Open implements vfs.FS. It refuses everything but a regular file.
func (p privateFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	if err := checkType(name, 0); err != nil {
		return nil, err
	}
	return p.FS.Open(name, opts...)
}

// OpenReadWrite implements vfs.FS. It refuses everything but a regular file.
func (p privateFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	err := p.createEmpty(name)
	if errors.Is(err, os.ErrExist) {
		err = checkType(name, 0)
	}
	if err != nil {
		return nil, err
	}
	return p.FS.OpenReadWrite(name, c, opts...)
}

// ReuseForWrite implements vfs.FS. That of Pebble would open the file past OpenReadWrite.
func (p privateFS) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := checkType(old, 0); err != nil {
		return nil, err
	}
	return p.FS.ReuseForWrite(old, name, c)
}

// MkdirAll implements vfs.FS. It ignores perm.
func (p privateFS) MkdirAll(dir string, _ os.FileMode) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if parent := filepath.Dir(dir); parent != dir {
		if err := p.MkdirAll(parent, dirMode); err != nil {
			return err
		}
	}
	err := os.Mkdir(dir, dirMode)
	if err == nil {
		p.setMode(dir, dirMode)
	}
	if errors.Is(err, os.ErrExist) {
		return p.FS.MkdirAll(dir, dirMode) // created by another process, or a file
	}
	return err
}

// Lock implements vfs.FS. It creates the file, but does not change one that exists.
func (p privateFS) Lock(name string) (io.Closer, error) {
	if err := p.createEmpty(name); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	return lockRegular(name, os.O_RDWR, syscall.F_WRLCK)
}

// lockShared locks a file that exists against Lock.
func (privateFS) lockShared(name string) (io.Closer, error) {
	return lockRegular(name, os.O_RDONLY, syscall.F_RDLCK)
}

// Unwrap implements vfs.FS.
func (p privateFS) Unwrap() vfs.FS { return p.FS }

// narrow takes the permissions of other users from the directory and from
// everything in it, and warns if the directory itself was open to them. It
// returns an error if the directory belongs to another user.
func (d *Disk) narrow() error {
	p, ok := asPrivate(d.options.fs)
	if !ok {
		return nil
	}
	info, err := os.Stat(d.dir)
	if err != nil {
		return err
	}
	if mode := info.Mode().Perm(); mode&wideBits != 0 {
		if err := p.chmod(d.dir, dirMode); err != nil {
			return fmt.Errorf("is open to other users (mode %04o) and its mode cannot be changed (%w): run chmod 700 %s as its owner, or name a directory below it", mode, cause(err), d.dir)
		}
		if d.options.Logger != nil {
			d.options.Logger.Warn("store was open to other users: its mode is 0700 now", "store", d.dir, "mode_before", fmt.Sprintf("%04o", mode))
		}
	}
	return p.narrowContent(d.dir)
}

func (p privateFS) narrowContent(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		path, mode := filepath.Join(dir, entry.Name()), os.FileMode(fileMode)
		if entry.IsDir() {
			mode = dirMode
			if err := p.narrowContent(path); err != nil {
				return err
			}
		}
		info, err := entry.Info()
		switch {
		case errors.Is(err, os.ErrNotExist):
		case err != nil:
			return err
		case (entry.IsDir() || info.Mode().IsRegular()) && info.Mode().Perm()&wideBits != 0:
			_ = p.chmod(path, mode) // the directory protects its files anyway
		}
	}
	return nil
}
