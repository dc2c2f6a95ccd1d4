// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// ballastFile takes space that Open releases when the disk is full, for instance
// because another program filled it. The store can then still be opened, and its
// open work completed. New work is refused until more space is free.
const ballastFile = "BALLAST"

// releaseBallast removes the ballast. It reports whether there was one.
func (d *Disk) releaseBallast() bool {
	if err := d.options.fs.Remove(d.path(ballastFile)); err != nil {
		return false
	}
	if d.options.Logger != nil {
		d.options.Logger.Warn("storage full: the ballast was released, free some space", "store", d.dir)
	}
	return true
}

// createBallast creates the ballast if there is none, and if new work has enough
// space without it. A store without ballast is complete, so an error is only logged.
func (d *Disk) createBallast() {
	size := d.options.Ballast
	if size == 0 || d.checkFree(d.options.FreeFloor+size) != nil {
		return
	}
	fs := d.options.fs
	if _, err := fs.Stat(d.path(ballastFile)); !errors.Is(err, os.ErrNotExist) {
		return
	}
	f, err := fs.Create(d.path(ballastFile), vfs.WriteCategoryUnspecified)
	if err == nil {
		err = errors.Join(f.Preallocate(0, int64(size)), f.Sync(), f.Close())
	}
	if err == nil {
		return
	}
	err = errors.Join(err, fs.Remove(d.path(ballastFile)))
	if d.options.Logger != nil {
		d.options.Logger.Info("no ballast: the file system cannot reserve space", "store", d.dir, "error", err.Error())
	}
}
