// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"strconv"
	"time"

	"github.com/troupe-run/troupe/actor"
)

const (
	// waitCycleFoundWithin is longer than any probe is under way where nothing is late, and
	// shorter than the time after which a call that waits probes again.
	waitCycleFoundWithin = 500 * time.Millisecond
	// waitCycleBrokenWithin gives a call that waits the time to probe again, by any clock.
	waitCycleBrokenWithin = 3 * time.Second
)

// undisturbedSince is since when nothing can have been lost or late: no fault has
// happened, none still keeps a message or a sync up, every node can be reached,
// and every cell knows who owns what.
func (w *Simulation) undisturbedSince() actor.Time {
	trouble := slices.ContainsFunc(w.nodes, func(n *node) bool {
		return !n.up || n.pausedUntil > w.now || n.log.slow || w.net.storeUnreachable(n, w.now) || n.ownersVersion != w.claims.version ||
			slices.ContainsFunc(n.cells, func(c *cell) bool { return c.stopped || c.slowUntil > w.now || c.ownersVersion != n.ownersVersion })
	}) || slices.ContainsFunc(w.claims.groups, func(cl claim) bool { return !cl.owned() })
	if trouble || w.net.delayed > 0 {
		w.lastDisturbance = max(w.lastDisturbance, w.now)
	}
	return w.lastDisturbance
}

// noteDisturbance takes note of a fault, unless it is one outside: that holds up no
// message between cells.
func (w *Simulation) noteDisturbance(f Fault) {
	if int(f) >= faultKinds || !faultTable[f].outside {
		w.lastDisturbance = max(w.lastDisturbance, w.now)
	}
}

// noteClockJump takes note of a clock that is set back: it stands still for as long, and
// holds up what its cells do by it.
func (w *Simulation) noteClockJump(by time.Duration) {
	w.lastDisturbance = max(w.lastDisturbance, w.now.Add(by+time.Second))
}

// callMessage tells an agent, in its language, to ask another for something small.
func (w *Simulation) callMessage(agent, to, key string) string {
	small := script{{{verb: "work", name: "w", ms: 1}}}.String()
	if w.agentKind(to) != actor.Native {
		small = "use " + clockTool
	}
	if w.agentKind(agent) != actor.Native {
		return askLine(to+"/"+key, small)
	}
	return script{{{verb: "call", name: to + "/" + key, script: small}}}.String()
}

// submitWaitCycle has two or three clients come at one time, each of whom wants an
// actor to ask the next one's. They have time enough for a ring to stand.
func (w *Simulation) submitWaitCycle() {
	if w.team != nil {
		return
	}
	n := 2 + w.entropy.Int(2)
	first, key := w.entropy.Int(w.plan.Targets), "s"+strconv.Itoa(w.entropy.Int(w.plan.Keys))
	id := func(i int) actor.ID {
		return actor.NewID(w.plan.Agents[(first+i%n)%w.plan.Targets].Name, key)
	}
	for i := range n {
		w.submit(w.addClient(id(i), w.callMessage(id(i).Agent, id(i+1).Agent, key), clientLeftMax))
	}
}
