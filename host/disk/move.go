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

// FlushIndex writes the rows of the index that are in memory, so that those of the store are complete.
func FlushIndex(d *Disk) error { return d.flushIndex() }

// importSuffix is the suffix of a folder that is being filled.
const importSuffix = ".importing"

// importRows is the number of rows of one write.
const importRows = 512

// Import creates a store from the rows that a callback passes on, with the secret of the store that they are of. The
// callback returns its log. The folder MUST NOT exist; after a failure it does not.
func Import(dir string, node actor.NodeID, secret []byte, o Options, rows func(each func(store.Row) error) ([]store.LogEnd, error)) (end store.Mark, err error) {
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		return end, fmt.Errorf("directory %s: exists: name one that does not", dir)
	}
	partial := dir + importSuffix
	if err := os.RemoveAll(partial); err != nil { // of an import that a crash ended
		return end, err
	}
	end, err = importInto(partial, node, secret, o, rows)
	if err == nil {
		err = os.Rename(partial, dir)
	}
	if err != nil {
		return end, errors.Join(err, os.RemoveAll(partial))
	}
	return end, syncDir(o.withDefaults(dir).fs, filepath.Dir(dir))
}

func importInto(dir string, node actor.NodeID, secret []byte, o Options, rows func(each func(store.Row) error) ([]store.LogEnd, error)) (end store.Mark, err error) {
	d, err := Open(dir, node, o)
	if err != nil {
		return end, err
	}
	err = d.writeSecret(secret)
	var page []store.Row
	write := func() error {
		err := d.Apply(page)
		page = nil
		return err
	}
	var logs []store.LogEnd
	if err == nil {
		logs, err = rows(func(r store.Row) error {
			if page = append(page, r); len(page) < importRows {
				return nil
			}
			return write()
		})
	}
	if err == nil {
		err = write()
	}
	if err == nil {
		end = logs[0].End
		err = errors.Join(d.writeAnchor(logs[0].Anchor), d.closeAnchor())
	}
	return end, errors.Join(err, d.Close())
}
