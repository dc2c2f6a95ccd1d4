// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// Examine looks at all of a store that nobody holds, and finds all that is wrong
// with it where Open stops at the first. It changes nothing. What keeps it from
// looking further is the last finding; only a folder that is no store of ours, or
// is in use, is an error.
func Examine(dir string, options Options, progress func(keys uint64)) (x store.Examination, err error) {
	options.ReadOnly = true
	d := &Disk{dir: dir, options: options.withDefaults(dir)}
	defer func() {
		if p := recover(); p != nil { // Pebble panics at some damage that it does not expect
			x = stuck(x, "pebble", fmt.Errorf("damaged: %v", p))
		}
		d.release() //nolint:errcheck // it was only read
	}()
	if _, err := d.look(); err != nil {
		return x, fmt.Errorf("store %s: %w", dir, err)
	}
	if err := d.take(); err != nil {
		return x, fmt.Errorf("store %s: %w", dir, err)
	}
	mark, err := d.readAnchor()
	if err != nil {
		// Without its anchor a log that was cut short cannot be told from one that was not.
		x = stuck(x, anchorFile, err)
	}
	if d.db, err = pebble.Open(d.path(pebbleDir), d.pebbleOptions(mark)); err != nil {
		return stuck(x, pebbleDir, err), nil
	}
	if err := d.checkFormat(mark); err != nil {
		x = stuck(x, pebbleDir, err)
	}
	before := x
	x, err = store.Examine(d, d.node, mark, func(body []byte) error {
		_, err := runs.Decode(body)
		return err
	}, progress)
	x.Findings, x.Wrong = append(before.Findings, x.Findings...), x.Wrong+before.Wrong
	if err != nil {
		x = stuck(x, pebbleDir, err)
	}
	return x, nil
}

func stuck(x store.Examination, where string, err error) store.Examination {
	x.Wrong++
	x.Findings = append(x.Findings, store.Finding{Where: where, What: err.Error()})
	return x
}
