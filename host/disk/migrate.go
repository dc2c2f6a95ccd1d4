// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/troupe-run/troupe/store"
)

// Bounds of the entries that Migrate holds: the entries of migrateInFlight commits of
// at least migrateBytes each.
const (
	migrateBytes    = 1 << 20
	migrateInFlight = 4
)

// Migrate copies the entries of a store that is not in use into a new store. The
// directory dir MUST NOT exist. The chain of the new store begins
// where that of the old one ends, so the numbers of batches, entries and epochs
// continue. Migrate does not modify the old store. It refuses an old store in which
// Examine finds anything wrong, and returns the examination of the new store.
//
// The new store is made in the directory dir with the suffix .new, and renamed when it
// is complete and verified.
func Migrate(from, dir string, options Options, progress func(keys uint64)) (store.Examination, error) {
	if within(from, dir) {
		return store.Examination{}, fmt.Errorf("directory %s: is in the store %s, which must not change: name one outside", dir, from)
	}
	to := &Disk{dir: dir, options: options.withDefaults(dir)}
	for _, name := range []string{dir, dir + tempSuffix} {
		if _, err := to.options.fs.Stat(name); err == nil {
			if name != dir {
				return store.Examination{}, fmt.Errorf("directory %s: exists already: it is an incomplete copy that an interrupted migration left: remove it and try again", name)
			}
			return store.Examination{}, fmt.Errorf("directory %s: exists already: name one that does not exist yet, or move it away", name)
		} else if !errors.Is(err, os.ErrNotExist) {
			return store.Examination{}, err
		}
	}
	var made store.Examination
	old, err := examineWith(from, options, progress, func(d *Disk, x store.Examination) (err error) {
		made, err = d.migrateTo(dir, x, options, progress)
		return err
	})
	if err == nil && old.Wrong > 0 {
		return old, fmt.Errorf("store %s: %d findings, the first at %s: %s", from, old.Wrong, old.Findings[0].Where, old.Findings[0].What)
	}
	return made, err
}

// within reports whether a file, which need not exist, is in a directory. Symbolic links
// are resolved as far as their paths exist.
func within(dir, name string) bool {
	path, err := filepath.Rel(resolve(dir), resolve(name))
	return err == nil && path != ".." && !strings.HasPrefix(path, ".."+string(filepath.Separator))
}

func resolve(name string) string {
	rest := ""
	if absolute, err := filepath.Abs(name); err == nil {
		name = absolute
	}
	for at := name; ; at, rest = filepath.Dir(at), filepath.Join(filepath.Base(at), rest) {
		if real, err := filepath.EvalSymlinks(at); err == nil {
			return filepath.Join(real, rest)
		}
		if at == filepath.Dir(at) {
			return name
		}
	}
}

// migrateTo copies the store, of which x is the examination, and compares both.
func (d *Disk) migrateTo(dir string, x store.Examination, options Options, progress func(keys uint64)) (store.Examination, error) {
	next, fs := dir+tempSuffix, d.options.fs
	err := d.exportTo(next, x.End, options)
	var made store.Examination
	if err == nil {
		made, err = Examine(next, options, progress)
	}
	if err == nil {
		err = checkMigration(x, made)
	}
	if err == nil {
		err = errors.Join(fs.Rename(next, dir), syncDir(fs, fs.PathDir(dir)))
	}
	if err != nil {
		return made, errors.Join(fmt.Errorf("store %s: %w", dir, err), fs.RemoveAll(next))
	}
	return made, nil
}

// exportTo writes the entries of the store into a new store whose chain begins at origin.
func (d *Disk) exportTo(dir string, origin store.Mark, options Options) (err error) {
	to, err := Open(dir, d.node, options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	if err := to.begin(origin); err != nil {
		return err
	}
	switch secret, err := d.Secret(); {
	case errors.Is(err, os.ErrNotExist): // of a restored backup
	case err != nil:
		return err
	default:
		if err := to.writeSecret(secret); err != nil {
			return err
		}
	}
	l := NewLog(to)
	return errors.Join(l.importFrom(d.Rows), l.Close())
}

// begin makes the chain of an empty store begin at origin.
func (d *Disk) begin(origin store.Mark) error {
	if origin == (store.Mark{}) {
		return nil
	}
	if err := d.Apply([]store.Row{store.OriginRow(d.node, origin)}); err != nil {
		return err
	}
	d.end, d.origin = origin, origin
	return errors.Join(d.writeAnchor(store.Anchor{End: origin, Origin: origin}), d.closeAnchor())
}

// importFrom appends all entries of another log.
func (l *Log) importFrom(from store.Rows) error {
	inFlight := make(chan struct{}, migrateInFlight)
	var entries []store.Entry
	size := 0
	commit := func() error {
		if err := l.Full(); err != nil {
			return err
		}
		inFlight <- struct{}{}
		l.Commit(entries, func() { <-inFlight })
		entries, size = nil, 0
		return nil
	}
	err := from.Export(func(e store.Entry) error {
		entries = append(entries, e)
		if size += e.Size(); size < migrateBytes {
			return nil
		}
		return commit()
	})
	if err == nil && len(entries) > 0 {
		err = commit()
	}
	return err
}

// checkMigration compares the counts of both stores.
func checkMigration(old, made store.Examination) error {
	if made.Wrong > 0 {
		return fmt.Errorf("the new store is damaged; first finding at %s: %s", made.Findings[0].Where, made.Findings[0].What)
	}
	for _, c := range []struct {
		what      string
		old, made uint64
	}{
		{"actors", old.Actors, made.Actors}, {"entries", old.Entries, made.Entries}, {"runs", old.Runs, made.Runs},
		{"open runs", old.Open, made.Open}, {"events", old.Events, made.Events},
	} {
		if c.old != c.made {
			return fmt.Errorf("the new store has %d %s, want %d", c.made, c.what, c.old)
		}
	}
	return nil
}
