// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"fmt"
	"os"

	"github.com/cockroachdb/pebble/v2"

	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// Examine checks all of a store that is not in use. Unlike Open, it does not
// stop at the first finding. It changes nothing. If it cannot continue, the
// last finding gives the reason. It returns an error only if the directory is
// not a store or is in use.
func Examine(dir string, options Options, progress func(keys uint64)) (store.Examination, error) {
	return examineWith(dir, options, progress, func(*Disk, store.Examination) error { return nil })
}

// examineWith examines a store. If nothing is wrong with it, the callback then is
// called before the lock on the store is released. It MUST call checkUnused after it has
// read files.
func examineWith(dir string, options Options, progress func(keys uint64), then func(*Disk, store.Examination) error) (x store.Examination, err error) {
	options.ReadOnly = true
	d := &Disk{dir: dir, options: options.withDefaults(dir)}
	d.Rows = store.Rows{KV: d, Index: store.NewIndex(d.indexConfig()), With: d.withIndex}
	examined := false
	defer func() {
		if p := recover(); p != nil && examined {
			panic(p)
		} else if p != nil { // Pebble panics on some kinds of corruption
			x = appendBlocking(x, pebbleDir, fmt.Errorf("damaged: %v", p))
		}
		d.release() //nolint:errcheck // it was only read
	}()
	if _, err := d.inspect(); err != nil {
		if !errors.Is(err, errFormatDamaged) || !d.nodeOfAnchor() {
			return x, fmt.Errorf("store %s: %w", dir, err)
		}
		x = appendFinding(x, formatFile, err, "")
	}
	if err := d.acquireLock(); err != nil {
		return x, fmt.Errorf("store %s: %w", dir, err)
	}
	mark, err := d.readAnchor()
	if err != nil {
		// Only the anchor distinguishes a truncated log from a complete one.
		x = appendFinding(x, anchorFile, err, "the expected end of the log: a truncated log cannot be detected")
	}
	if _, err := d.Secret(); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrPermission) { // absent in a backup; unreadable for other users
		x = appendFinding(x, secretFile, err, "the tokens of open runs: those given to external agents are refused")
	}
	if d.db, err = pebble.Open(d.path(pebbleDir), d.pebbleOptions(mark)); err != nil {
		x = appendFinding(x, pebbleDir, d.openError(err, mark), "everything that is only in this file")
		if err := d.openTablesOnly(mark); err != nil {
			return appendBlocking(x, pebbleDir, err), nil
		}
	}
	if err := d.checkFormat(mark); err != nil {
		x = appendBlocking(x, pebbleDir, err)
	}
	if err := store.CheckOrigin(d, d.node, d.anchor.last); err != nil && mark != (store.Mark{}) {
		x = appendFinding(x, pebbleDir, err, "batches before that place, unless they were cut")
	}
	before := x
	x, err = store.Examine(d, []store.LogEnd{{Node: d.node, Anchor: store.Anchor{End: mark}}}, func(body []byte) error {
		_, err := runs.Decode(body)
		return err
	}, progress)
	x.Findings, x.Wrong = append(before.Findings, x.Findings...), x.Wrong+before.Wrong
	if err != nil {
		x = appendBlocking(x, pebbleDir, err)
	}
	examined = true
	if err := d.checkUnused(); err != nil {
		return x, fmt.Errorf("store %s: %w", dir, err)
	}
	if x.Wrong > 0 {
		return x, nil
	}
	if err := d.recoverIndex(false); err != nil {
		return x, err
	}
	return x, then(d, x)
}

// nodeOfAnchor sets the node of a store whose FORMAT is damaged. It returns false if the
// anchor is damaged, too.
func (d *Disk) nodeOfAnchor() (ok bool) {
	b, err := d.readFile(anchorFile, store.AnchorFileBytes)
	if err == nil {
		d.node, ok = store.AnchorNode(b)
	}
	return ok
}

// appendBlocking appends a finding that ends the examination: everything after
// it may be lost.
func appendBlocking(x store.Examination, where string, err error) store.Examination {
	return appendFinding(x, where, err, "nothing after this can be read, so the damage there is unknown")
}

func appendFinding(x store.Examination, where string, err error, lost string) store.Examination {
	x.Wrong++
	x.Findings = append(x.Findings, store.Finding{Where: where, What: err.Error(), Lost: lost})
	return x
}
