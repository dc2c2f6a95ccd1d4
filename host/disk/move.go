// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
)

// EachRow passes all rows of a store to the callback each, in the order of their keys, until it returns an
// error. The rows of the index are among them: it is flushed first.
func EachRow(d *Disk, each func(store.Row) error) error {
	if err := d.flushIndex(); err != nil {
		return err
	}
	var failure error
	err := d.Scan([]byte{0}, []byte{0xff}, func(key, value []byte) bool {
		failure = each(store.Row{Key: key, Value: value})
		return failure == nil
	})
	if failure != nil {
		return failure
	}
	return err
}

// importSuffix is the suffix of a folder that is being filled.
const importSuffix = ".importing"

// importRows is the number of rows of one write.
const importRows = 512

// Import creates a store from the rows of another store, with its secret and the end of its log. The
// folder MUST NOT exist; after a failure it does not.
func Import(dir string, node actor.NodeID, secret []byte, end store.Mark, o Options, rows func(each func(store.Row) error) error) error {
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("directory %s: exists: name one that does not", dir)
	}
	partial := dir + importSuffix
	if err := os.RemoveAll(partial); err != nil { // of an import that a crash ended
		return err
	}
	err := importInto(partial, node, secret, end, o, rows)
	if err == nil {
		err = os.Rename(partial, dir)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(partial))
	}
	return syncDir(o.withDefaults(dir).fs, filepath.Dir(dir))
}

func importInto(dir string, node actor.NodeID, secret []byte, end store.Mark, o Options, rows func(each func(store.Row) error) error) error {
	d, err := Open(dir, node, o)
	if err != nil {
		return err
	}
	err = d.writeSecret(secret)
	var page []store.Row
	write := func() error {
		err := d.Apply(page)
		page = nil
		return err
	}
	if err == nil {
		err = rows(func(r store.Row) error {
			if page = append(page, r); len(page) < importRows {
				return nil
			}
			return write()
		})
	}
	if err == nil {
		err = write()
	}
	var origin store.Mark
	if err == nil {
		origin, err = store.Origin(d, node)
	}
	if err == nil {
		err = errors.Join(d.writeAnchor(store.Anchor{End: end, Origin: origin}), d.closeAnchor())
	}
	return errors.Join(err, d.Close())
}
