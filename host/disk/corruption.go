// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/troupe-run/troupe/store"
)

// DamageError is the error of a store that is damaged. Examine describes all damage.
type DamageError struct{ Err error }

func (e *DamageError) Error() string { return e.Err.Error() }
func (e *DamageError) Unwrap() error { return e.Err }

// damaged returns the error of reading a store as a DamageError, unless the environment
// is its cause.
func damaged(err error) error {
	for _, other := range []error{nil, os.ErrPermission, syscall.ENOSPC, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM} {
		if errors.Is(err, other) {
			return err
		}
	}
	return &DamageError{err}
}

// openError adds to Pebble's error the names of the WAL files and the newest
// batch of the anchor, which Pebble does not report.
func (d *Disk) openError(err error, mark store.Mark) error {
	switch message := err.Error(); {
	case !strings.Contains(message, "WAL") && pebbleFileName.MatchString(message):
		return fmt.Errorf("directory %s: %w", pebbleDir, err)
	case !strings.Contains(message, "WAL"):
		return fmt.Errorf("directory %s: %w: its MANIFEST, its OPTIONS, or a marker file, is missing or damaged", pebbleDir, err)
	}
	return fmt.Errorf("write-ahead log %s: %w: the newest batches, up to %d, cannot be read", strings.Join(d.walFiles(), ", "), err, mark.Batch)
}

// preservedDir holds the original write-ahead log while a store is being
// opened. Pebble moves the readable part of the log into sstables and removes
// the log. Only then can Open verify that no entry is missing. If no entry is
// missing, Open removes the directory.
const preservedDir = "kept"

// preserveWAL links the WAL files into preservedDir, if the file system
// supports links. Files preserved by an earlier failed open are kept: they are
// older and more complete.
func (d *Disk) preserveWAL() error {
	if d.options.ReadOnly || d.preservedNote() != "" {
		return nil
	}
	fs := d.options.fs
	names, err := fs.List(d.path(pebbleDir))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	if err := fs.MkdirAll(d.path(preservedDir), dirMode); err != nil {
		return fmt.Errorf("directory %s: %w", preservedDir, cause(err))
	}
	for _, name := range slices.DeleteFunc(names, func(n string) bool { return !isWAL(n) }) {
		if err := fs.Link(fs.PathJoin(d.path(pebbleDir), name), fs.PathJoin(d.path(preservedDir), name)); err != nil {
			return d.dropPreserved() // continue without a copy: an intact store MUST still open
		}
	}
	return nil
}

// preservedNote returns the end of an error message, which names the preserved
// log. It returns "" if no log is preserved.
func (d *Disk) preservedNote() string {
	if names, err := d.options.fs.List(d.path(preservedDir)); err != nil || len(names) == 0 {
		return ""
	}
	return "; the original log is preserved in " + preservedDir
}

func (d *Disk) dropPreserved() error {
	if d.options.ReadOnly {
		return nil
	}
	return d.options.fs.RemoveAll(d.path(preservedDir))
}

// openTablesOnly opens the sstables of the store, ignoring the write-ahead log.
func (d *Disk) openTablesOnly(mark store.Mark) (err error) {
	options := d.pebbleOptions(mark)
	options.FS = noWALFS{options.FS}
	d.db, err = pebble.Open(d.path(pebbleDir), options)
	return err
}

// noWALFS is a file system that hides the WAL files.
type noWALFS struct{ vfs.FS }

func (f noWALFS) List(dir string) ([]string, error) {
	names, err := f.FS.List(dir)
	return slices.DeleteFunc(names, isWAL), err
}

func isWAL(name string) bool { return strings.HasSuffix(name, ".log") }

// pebbleFileName matches the names that Pebble gives to its files.
var pebbleFileName = regexp.MustCompile(`\b\d{6}\b|MANIFEST-|OPTIONS-|marker\.`)

// walFiles returns the names of the WAL files.
func (d *Disk) walFiles() []string {
	names, err := d.options.fs.List(d.path(pebbleDir))
	if err != nil {
		return []string{pebbleDir}
	}
	names = slices.DeleteFunc(names, func(n string) bool { return !isWAL(n) })
	slices.Sort(names)
	for i := range names {
		names[i] = pebbleDir + "/" + names[i]
	}
	return names
}
