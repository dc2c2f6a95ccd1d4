// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"fmt"

	"github.com/troupe-run/troupe/host/logs"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/store"
)

// NewLog returns a Log that continues at the end of the disk's log. A disk MUST
// have only one Log.
func NewLog(d *Disk) *logs.Log { return logs.New(logConfig(d)) }

func logConfig(d *Disk) logs.Config {
	invariant.Check(!d.options.ReadOnly, "disk: log over a read-only store")
	return logs.Config{
		Store: d, Logs: []store.LogEnd{{Node: d.node, Anchor: store.Anchor{End: d.end, Origin: d.origin}}},
		Full: d.Full, Exhausted: func() error { return d.checkFree(d.options.FreeFloor / reservePart) },
		FlushIndex: d.flushIndex,
		Anchor: func(a store.Anchor) error {
			if err := d.writeAnchor(a); err != nil {
				return fmt.Errorf("%s: %w", anchorFile, cause(err))
			}
			return nil
		},
		CloseAnchor: func(a store.Anchor) error {
			if err := d.writeAnchor(a); err != nil {
				return err
			}
			return d.closeAnchor()
		},
		Fatal: d.fatal,
	}
}
