// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"os"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Bounds of the attempts to open a file without a free descriptor: about 10 s.
const (
	descriptorAttempts = 100
	descriptorPause    = 100 * time.Millisecond
)

// descriptorFS waits for a free descriptor. Without one the disk is intact, but the failed open
// of a file would end the process.
type descriptorFS struct {
	vfs.FS
	free  func()              // asks others to close descriptors
	pause func(time.Duration) // between two attempts
}

// wait repeats an operation that needs a descriptor. It returns the error of the last attempt.
func (d descriptorFS) wait(operation func() error) error {
	err := operation()
	for attempt := 1; attempt < descriptorAttempts && isWithoutDescriptor(err); attempt++ {
		if d.free(); attempt > 1 { // what was closed may suffice at once
			d.pause(descriptorPause)
		}
		err = operation()
	}
	return err
}

func isWithoutDescriptor(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

func (d descriptorFS) open(open func() (vfs.File, error)) (f vfs.File, err error) {
	err = d.wait(func() error {
		f, err = open()
		return err
	})
	return f, err
}

// Create implements vfs.FS.
func (d descriptorFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return d.open(func() (vfs.File, error) { return d.FS.Create(name, c) })
}

// Open implements vfs.FS.
func (d descriptorFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	return d.open(func() (vfs.File, error) { return d.FS.Open(name, opts...) })
}

// OpenReadWrite implements vfs.FS.
func (d descriptorFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return d.open(func() (vfs.File, error) { return d.FS.OpenReadWrite(name, c, opts...) })
}

// OpenDir implements vfs.FS.
func (d descriptorFS) OpenDir(name string) (vfs.File, error) {
	return d.open(func() (vfs.File, error) { return d.FS.OpenDir(name) })
}

// ReuseForWrite implements vfs.FS. A failed attempt may have renamed the old file, so the next one
// creates the new file instead.
func (d descriptorFS) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.FS.ReuseForWrite(old, name, c)
	if !isWithoutDescriptor(err) {
		return f, err
	}
	if err := d.FS.Remove(old); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return d.Create(name, c)
}

// List implements vfs.FS.
func (d descriptorFS) List(dir string) (names []string, err error) {
	err = d.wait(func() error {
		names, err = d.FS.List(dir)
		return err
	})
	return names, err
}

// Unwrap implements vfs.FS.
func (d descriptorFS) Unwrap() vfs.FS { return d.FS }

// asPrivate returns the real file system, if a store uses it.
func asPrivate(fs vfs.FS) (privateFS, bool) {
	if d, ok := fs.(descriptorFS); ok {
		fs = d.FS
	}
	p, ok := fs.(privateFS)
	return p, ok
}
