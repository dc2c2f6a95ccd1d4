// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
)

// PendingCall is a detached call whose actor still has a row.
type PendingCall struct {
	Asker actor.ID
	store.Pending
}

// PendingCalls returns the detached calls that actors of this cell have made in a session of a namespace, in no
// order. The session "" means all of them. It reports false while the cell is still loading its open runs.
func PendingCalls(c *Cell, tenant, session string) (all []PendingCall, known bool) {
	for _, act := range c.actors.ordered() {
		if act.id.Tenant != tenant || session != "" && act.id.Key != session || !act.durable {
			continue
		}
		for _, p := range act.journal.Mail.Rows {
			if isReturn(&p) {
				continue
			}
			all = append(all, PendingCall{act.id, p})
		}
	}
	return all, c.booted && c.recovery.done()
}
