// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"strconv"
	"time"

	"github.com/troupe-run/troupe/actor"
)

const (
	// ringFoundIn is longer than any probe is under way where nothing is late, and
	// shorter than the time after which a call that waits probes again.
	ringFoundIn = 500 * time.Millisecond
	// ringBreaksIn gives a call that waits the time to probe again, by any clock.
	ringBreaksIn = 3 * time.Second
)

// calmSince is since when nothing can have been lost or late: no fault has
// happened, none still keeps a message or a sync up, every node can be reached,
// and every cell knows who owns what.
func (w *World) calmSince() actor.Time {
	trouble := slices.ContainsFunc(w.nodes, func(n *node) bool {
		return !n.up || n.paused > w.now || n.log.slow || w.net.isCut(n, w.now) || n.view != w.claims.version ||
			slices.ContainsFunc(n.cells, func(c *cell) bool { return c.gone || c.slow > w.now || c.knows != n.view })
	}) || slices.ContainsFunc(w.claims.groups, func(cl claim) bool { return !cl.owned() })
	if trouble || w.net.late > 0 {
		w.trouble = max(w.trouble, w.now)
	}
	return w.trouble
}

// disturbed takes note of a fault, unless it is one outside: that holds up no
// message between cells.
func (w *World) disturbed(f Fault) {
	if int(f) >= faultKinds || !faultTable[f].outside {
		w.trouble = max(w.trouble, w.now)
	}
}

// delayed takes note of a clock that is set back: it stands still for as long, and
// holds up what its cells do by it.
func (w *World) delayed(by time.Duration) { w.trouble = max(w.trouble, w.now.Add(by+time.Second)) }

// callIn tells an agent, in its language, to ask another for something small.
func (w *World) callIn(agent, to, key string) string {
	small := script{{{verb: "work", name: "w", ms: 1}}}.String()
	if w.kindOf(to) != actor.Native {
		small = "use " + clockTool
	}
	if w.kindOf(agent) != actor.Native {
		return askLine(to+"/"+key, small)
	}
	return script{{{verb: "call", name: to + "/" + key, script: small}}}.String()
}

// comeInARing has two or three clients come at one time, each of whom wants an
// actor to ask the next one's. They have time enough for a ring to stand.
func (w *World) comeInARing() {
	if w.team != nil {
		return
	}
	n := 2 + w.choose.Int(2)
	first, key := w.choose.Int(w.plan.Targets), "s"+strconv.Itoa(w.choose.Int(w.plan.Keys))
	id := func(i int) actor.ID {
		return actor.NewID(w.plan.Agents[(first+i%n)%w.plan.Targets].Name, key)
	}
	for i := range n {
		w.ask(w.addClient(id(i), w.callIn(id(i).Agent, id(i+1).Agent, key), clientLeftMax))
	}
}
