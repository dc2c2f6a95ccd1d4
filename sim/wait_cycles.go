// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/history"
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
		return !n.up || n.pausedUntil > w.now || n.lapsed || n.log.slow || w.net.storeUnreachable(n, w.now) || n.ownersVersion != w.claims.version ||
			slices.ContainsFunc(n.cells, func(c *cell) bool { return c.stopped || c.slowUntil > w.now || c.ownersVersion != n.ownersVersion })
	}) || !w.claims.allOwned()
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

// longWaitCycles are the lengths of long wait cycles. A probe makes at most 32 hops, so
// it finds the cycles up to that length; longer ones end at the deadlines of their calls.
var longWaitCycles = [...]int{12, 24, 31, 32, 33, 40}

// submitLongWaitCycle submits one request for each actor of a long wait cycle. Each actor
// sleeps until all of them are busy, and then calls the next. An agent calls itself
// nowhere in the cycle, because that call would be refused. The actors are those of no
// other client.
func (w *Simulation) submitLongWaitCycle() {
	names := w.serialAgents()
	n := longWaitCycles[w.entropy.Int(len(longWaitCycles))]
	if len(names) < 3 || w.plan.Limits.AgentCallDepthMax < 2 {
		return
	}
	w.longWaitCycles++
	d, first := newGenerator(w), w.entropy.Int(len(names))
	id := func(i int) actor.ID {
		agent := i % 2
		if i == n-1 {
			agent = 2
		}
		return d.actor(names[(first+agent)%len(names)], fmt.Sprintf("ring%d-%d", w.longWaitCycles, i))
	}
	for i := range n {
		next := id((i + 1) % n)
		text := script{{{verb: "sleep", ms: 400}}, {{verb: "call", name: next.Agent + "/" + next.Key, script: w.trivialMessage(next.Agent)}}}.String()
		w.submit(w.addClient(id(i), text, clientLeftMax))
	}
}

// serialAgents returns the agents that run scripts, one turn at a time.
func (w *Simulation) serialAgents() (names []string) {
	for i := range w.plan.Targets {
		if def := &w.plan.Agents[i]; def.Turns == actor.Serial && slices.Contains(agentNames[:], def.Name) {
			names = append(names, def.Name)
		}
	}
	return names
}

// moveBetweenLaps moves the shards of an actor that a probe has visited, so that the
// second lap of the probe meets the actor under another epoch.
func (w *Simulation) moveBetweenLaps(e *history.Event) {
	if e.Kind != history.Probe || e.N < 4 || !w.faultFires(ShardMove) {
		return
	}
	group := w.claims.groupOf(dispatcher.ShardOf(e.Actor))
	w.after(0, func() { w.moveGroupAnywhere(group) })
}

// submitWaitCycle submits two or three requests at once. Each makes its target call
// the target of the next one. Their time limits are long enough for a wait cycle to
// form.
func (w *Simulation) submitWaitCycle() {
	if w.team != nil {
		return
	}
	if w.entropy.Int(4) == 3 {
		w.submitLongWaitCycle()
		return
	}
	n := 2 + w.entropy.Int(2)
	d, first, key := newGenerator(w), w.entropy.Int(w.plan.Targets), w.drawKey()
	id := func(i int) actor.ID {
		return d.actor(w.plan.Agents[(first+i%n)%w.plan.Targets].Name, key)
	}
	for i := range n {
		w.submit(w.addClient(id(i), w.callMessage(id(i).Agent, id(i+1).Agent, key), clientLeftMax))
	}
}
