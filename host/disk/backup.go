// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/troupe-run/troupe/host/logs"
	"github.com/troupe-run/troupe/store"
)

// Backup copies the store into an empty or absent directory while commits
// continue. The copy holds everything that was durable at the time of the call.
// It opens like the store itself, but has no secret. During a Cut, batches that the anchor of
// the copy names would be deleted, so the log is not cut meanwhile.
func Backup(d *Disk, l *logs.Log, dir string) error {
	return l.WhileUncut(func() error {
		if err := d.copyTo(dir, l.Synced(0)); err != nil {
			return fmt.Errorf("backup %s: %w", dir, err)
		}
		return nil
	})
}

func (d *Disk) copyTo(dir string, synced store.Anchor) error {
	fs := d.options.fs
	if names, err := fs.List(dir); err == nil && len(names) > 0 {
		return errors.New("is not empty: name a directory that does not exist yet")
	} else if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := fs.MkdirAll(dir, dirMode); err != nil {
		return err
	}
	to := &Disk{dir: dir, node: d.node, options: d.options}
	if err := errors.Join(to.narrow(), to.Full()); err != nil {
		return err
	}
	err := d.db.Checkpoint(to.path(pebbleDir), pebble.WithFlushedWAL())
	if err == nil {
		err = to.initialize() // from here on the directory is recognized as a store
	}
	if err == nil {
		err = errors.Join(to.writeAnchor(synced), to.closeAnchor())
	}
	if err != nil {
		err = errors.Join(err, to.removeFiles())
	}
	return err
}

// removeFiles removes a partial copy from a directory that was empty, so that
// the copy can be retried. FORMAT goes first: without it the rest is not a
// store.
func (d *Disk) removeFiles() error {
	for _, name := range []string{formatFile, formatFile + tempSuffix, anchorFile, anchorFile + tempSuffix, pebbleDir} {
		if err := d.options.fs.RemoveAll(d.path(name)); err != nil {
			return err
		}
	}
	return nil
}

// Restore copies a backup into an empty or absent directory. It refuses a
// backup in which Examine finds anything wrong.
func Restore(from, dir string, options Options, progress func(keys uint64)) (store.Examination, error) {
	to := &Disk{dir: dir, options: options.withDefaults(dir)}
	x, err := examineWith(from, options, progress, func(d *Disk, _ store.Examination) error { return to.copyFrom(from, d.checkUnused) })
	if err == nil && x.Wrong > 0 {
		return x, &DamageError{fmt.Errorf("backup %s: %d findings, the first at %s: %s", from, x.Wrong, x.Findings[0].Where, x.Findings[0].What)}
	}
	return x, err
}

// copyFrom copies the store in from into the disk's directory, durably. It fails if the
// callback unchanged returns an error after the copy.
func (d *Disk) copyFrom(from string, unchanged func() error) error {
	fs := d.options.fs
	if names, err := fs.List(d.dir); err == nil && len(names) > 0 {
		return fmt.Errorf("directory %s: is not empty: name one that does not exist yet, or move its content away", d.dir)
	} else if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := fs.MkdirAll(d.dir, dirMode); err != nil {
		return err
	}
	if err := d.narrow(); err != nil {
		return fmt.Errorf("directory %s: %w", d.dir, err)
	}
	err := copyFiles(fs, fs.PathJoin(from, pebbleDir), d.path(pebbleDir))
	if err == nil {
		err = copyFile(fs, fs.PathJoin(from, anchorFile), d.path(anchorFile))
	}
	if err == nil {
		err = unchanged()
	}
	if err == nil { // last: it marks the directory as a store
		err = copyFile(fs, fs.PathJoin(from, formatFile), d.path(formatFile))
	}
	if err != nil {
		return fmt.Errorf("directory %s: %w", d.dir, errors.Join(err, d.removeFiles()))
	}
	d.syncParents()
	return syncDir(fs, d.dir)
}

// copyFiles copies the files of a directory, which has no others below it, durably.
func copyFiles(fs vfs.FS, from, to string) error {
	names, err := fs.List(from)
	if err != nil {
		return err
	}
	if err := fs.MkdirAll(to, dirMode); err != nil {
		return err
	}
	for _, name := range names {
		if err := copyFile(fs, fs.PathJoin(from, name), fs.PathJoin(to, name)); err != nil {
			return err
		}
	}
	return syncDir(fs, to)
}

func copyFile(fs vfs.FS, from, to string) error {
	in, err := fs.Open(from)
	if err != nil {
		return err
	}
	out, err := fs.Create(to, vfs.WriteCategoryUnspecified)
	if err != nil {
		return errors.Join(err, in.Close())
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Sync(), out.Close(), in.Close())
}
