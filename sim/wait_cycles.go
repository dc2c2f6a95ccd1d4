// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"strconv"
	"time"

	"github.com/troupe-run/troupe/actor"
)

const (
	// waitCycleFoundWithin exceeds the time a probe needs when nothing is delayed,
	// and is shorter than the interval at which a waiting call probes again.
	waitCycleFoundWithin = 500 * time.Millisecond
	// waitCycleBrokenWithin leaves a waiting call enough time to probe again,
	// whatever its clock shows.
	waitCycleBrokenWithin = 3 * time.Second
)

// undisturbedSince returns the time since which no message can have been lost or
// delayed: no fault has occurred, no earlier fault still delays a message or a sync,
// all nodes are reachable, and all cells know the current owners.
func (w *Simulation) undisturbedSince() actor.Time {
	disturbed := slices.ContainsFunc(w.nodes, func(n *node) bool {
		return !n.up || n.pausedUntil > w.now || n.log.slow || w.net.storeUnreachable(n, w.now) || n.ownersVersion != w.claims.version ||
			slices.ContainsFunc(n.cells, func(c *cell) bool { return c.stopped || c.slowUntil > w.now || c.ownersVersion != n.ownersVersion })
	}) || slices.ContainsFunc(w.claims.groups, func(cl claim) bool { return !cl.owned() })
	if disturbed || w.net.delayed > 0 {
		w.lastDisturbance = max(w.lastDisturbance, w.now)
	}
	return w.lastDisturbance
}

// noteDisturbance records a fault as a disturbance. Faults of upstream services are
// ignored, because they delay no message between cells.
func (w *Simulation) noteDisturbance(f Fault) {
	if int(f) >= faultKinds || !faultTable[f].outside {
		w.lastDisturbance = max(w.lastDisturbance, w.now)
	}
}

// noteClockJump records that a clock was set back by the given time, or forward if it
// is negative. A clock that was set back is stopped for that long, which delays the
// work of its cells.
func (w *Simulation) noteClockJump(by time.Duration) {
	w.lastDisturbance = max(w.lastDisturbance, w.now.Add(by+time.Second))
}

// callMessage returns a message that makes agent call another one for a trivial task.
// The form of the message depends on the kind of the agent.
func (w *Simulation) callMessage(agent, to, key string) string {
	task := script{{{verb: "work", name: "w", ms: 1}}}.String()
	if w.agentKind(to) != actor.Native {
		task = "use " + clockTool
	}
	if w.agentKind(agent) != actor.Native {
		return askLine(to+"/"+key, task)
	}
	return script{{{verb: "call", name: to + "/" + key, script: task}}}.String()
}

// submitWaitCycle submits two or three requests at once. Each makes its target call
// the target of the next one. Their time limits are long enough for a wait cycle to
// form.
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
