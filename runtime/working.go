// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"slices"

	"github.com/troupe-run/troupe/store"
)

// WorkingRuns returns the runs on which external agents of these names work: those with an open
// invocation, in the namespaces of all users. It returns at most most of them, which the caller needs
// to know that there is exactly one, and reads only the turns of these agents. It reports false while the
// cell is still loading its open runs.
func WorkingRuns(c *Cell, agents []string, most int) (all []store.RunOwner, known bool) {
	for _, agent := range agents {
		for _, t := range c.active.of(agent) {
			if len(all) == most {
				return all, true
			}
			if t.run.Parked == "" && slices.ContainsFunc(t.run.Last(), func(a store.Asked) bool { return a.Invoking() }) {
				all = append(all, store.RunOwner{Run: t.run.Call.ID, Root: t.run.Call.Root, Actor: t.act.id})
			}
		}
	}
	return all, c.booted && c.recovery.done()
}
