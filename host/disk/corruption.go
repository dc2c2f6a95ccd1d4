// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/troupe-run/troupe/store"
)

// openError says more of why Pebble does not open a store than it does: of the
// log written ahead it names neither the file nor what stands in it. The mark is
// that of the anchor.
func (d *Disk) openError(err error, mark store.Mark) error {
	switch said := err.Error(); {
	case !strings.Contains(said, "WAL") && pebbleFileName.MatchString(said):
		return fmt.Errorf("folder %s: %w", pebbleDir, err)
	case !strings.Contains(said, "WAL"):
		return fmt.Errorf("folder %s: %w: its MANIFEST, its OPTIONS, or a marker file, is missing or damaged", pebbleDir, err)
	}
	return fmt.Errorf("log written ahead %s: %w: the newest batches, up to %d, stand there and cannot be read", strings.Join(d.walFiles(), ", "), err, mark.Batch)
}

// preservedDir holds the log written ahead as it was when a store was opened: Pebble
// puts what it can read of it into tables, and takes it away, before anybody has
// seen whether all of it is there. It goes when all is.
const preservedDir = "kept"

// preserveWAL gives the files of the log a second name, where the file system has
// such a thing. What an opening that failed has kept stays: it is older, and has
// more in it.
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
	if err := fs.MkdirAll(d.path(preservedDir), 0o700); err != nil {
		return err
	}
	for _, name := range slices.DeleteFunc(names, func(n string) bool { return !isWAL(n) }) {
		if err := fs.Link(fs.PathJoin(d.path(pebbleDir), name), fs.PathJoin(d.path(preservedDir), name)); err != nil {
			return d.dropPreserved() // a store that is whole must open all the same
		}
	}
	return nil
}

// preservedNote says where the log of before is, if it was kept.
func (d *Disk) preservedNote() string {
	if names, err := d.options.fs.List(d.path(preservedDir)); err != nil || len(names) == 0 {
		return ""
	}
	return "; the log as it was before is in " + preservedDir
}

func (d *Disk) dropPreserved() error {
	if d.options.ReadOnly {
		return nil
	}
	return d.options.fs.RemoveAll(d.path(preservedDir))
}

// openTablesOnly opens what stands in the tables, as if there were no log written ahead.
func (d *Disk) openTablesOnly(mark store.Mark) (err error) {
	options := d.pebbleOptions(mark)
	options.FS = noWALFS{options.FS}
	d.db, err = pebble.Open(d.path(pebbleDir), options)
	return err
}

// noWALFS is a file system that hides the log written ahead.
type noWALFS struct{ vfs.FS }

func (f noWALFS) List(dir string) ([]string, error) {
	names, err := f.FS.List(dir)
	return slices.DeleteFunc(names, isWAL), err
}

func isWAL(name string) bool { return strings.HasSuffix(name, ".log") }

// pebbleFileName finds what Pebble calls one of its files.
var pebbleFileName = regexp.MustCompile(`\b\d{6}\b|MANIFEST-|OPTIONS-|marker\.`)

// walFiles names the files of the log written ahead.
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
