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

// unopened says more of why Pebble does not open a store than it does: of the
// log written ahead it names neither the file nor what stands in it. The mark is
// that of the anchor.
func (d *Disk) unopened(err error, mark store.Mark) error {
	switch said := err.Error(); {
	case !strings.Contains(said, "WAL") && namesFile.MatchString(said):
		return fmt.Errorf("folder %s: %w", pebbleDir, err)
	case !strings.Contains(said, "WAL"):
		return fmt.Errorf("folder %s: %w: its MANIFEST, its OPTIONS, or a marker file, is missing or damaged", pebbleDir, err)
	}
	return fmt.Errorf("log written ahead %s: %w: the newest batches, up to %d, stand there and cannot be read", strings.Join(d.logs(), ", "), err, mark.Batch)
}

// keptDir holds the log written ahead as it was when a store was opened: Pebble
// puts what it can read of it into tables, and takes it away, before anybody has
// seen whether all of it is there. It goes when all is.
const keptDir = "kept"

// keepLogs gives the files of the log a second name, where the file system has
// such a thing. What an opening that failed has kept stays: it is older, and has
// more in it.
func (d *Disk) keepLogs() error {
	if d.options.ReadOnly || d.kept() != "" {
		return nil
	}
	fs := d.options.fs
	names, err := fs.List(d.path(pebbleDir))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	if err := fs.MkdirAll(d.path(keptDir), 0o700); err != nil {
		return err
	}
	for _, name := range slices.DeleteFunc(names, func(n string) bool { return !isLog(n) }) {
		if err := fs.Link(fs.PathJoin(d.path(pebbleDir), name), fs.PathJoin(d.path(keptDir), name)); err != nil {
			return d.dropKept() // a store that is whole must open all the same
		}
	}
	return nil
}

// kept says where the log of before is, if it was kept.
func (d *Disk) kept() string {
	if names, err := d.options.fs.List(d.path(keptDir)); err != nil || len(names) == 0 {
		return ""
	}
	return "; the log as it was before is in " + keptDir
}

func (d *Disk) dropKept() error {
	if d.options.ReadOnly {
		return nil
	}
	return d.options.fs.RemoveAll(d.path(keptDir))
}

// tablesOnly opens what stands in the tables, as if there were no log written ahead.
func (d *Disk) tablesOnly(mark store.Mark) (err error) {
	options := d.pebbleOptions(mark)
	options.FS = withoutLogs{options.FS}
	d.db, err = pebble.Open(d.path(pebbleDir), options)
	return err
}

// withoutLogs is a file system that hides the log written ahead.
type withoutLogs struct{ vfs.FS }

func (f withoutLogs) List(dir string) ([]string, error) {
	names, err := f.FS.List(dir)
	return slices.DeleteFunc(names, isLog), err
}

func isLog(name string) bool { return strings.HasSuffix(name, ".log") }

// namesFile finds what Pebble calls one of its files.
var namesFile = regexp.MustCompile(`\b\d{6}\b|MANIFEST-|OPTIONS-|marker\.`)

// logs names the files of the log written ahead.
func (d *Disk) logs() []string {
	names, err := d.options.fs.List(d.path(pebbleDir))
	if err != nil {
		return []string{pebbleDir}
	}
	names = slices.DeleteFunc(names, func(n string) bool { return !isLog(n) })
	slices.Sort(names)
	for i := range names {
		names[i] = pebbleDir + "/" + names[i]
	}
	return names
}
