// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"fmt"
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
	case !strings.Contains(said, "WAL") && strings.ContainsAny(said, "0123456789"): // it names a file
		return fmt.Errorf("folder %s: %w", pebbleDir, err)
	case !strings.Contains(said, "WAL"):
		return fmt.Errorf("folder %s: %w: its MANIFEST, or a marker file, is missing or damaged", pebbleDir, err)
	}
	return fmt.Errorf("log written ahead %s: %w: the newest batches, up to %d, stand there and cannot be read", strings.Join(d.logs(), ", "), err, mark.Batch)
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
