// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/placement/placementtest"
)

// The table of the simulator follows the rules of that of the database.
func TestTableConforms(t *testing.T) {
	placementtest.Run(t, func(logs int) placementtest.World {
		now := Origin
		table := &leaseTable{now: func() actor.Time { return now }, logs: make([]tableLog, logs)}
		return placementtest.World{Table: table, Close: func() {}, Expire: func(member string) {
			if at, known := table.find(member); known {
				table.members[at].until = now
			}
		}}
	})
}
