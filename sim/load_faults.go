// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
)

// Load faults: many clients that act at once, or one client that loads many actors.

const (
	stormClientsMax = 16 // clients of one load fault
	poisonClients   = 3  // clients whose message makes the actor panic
	stormRetriesMax = 4  // retries of each client in a retry storm
	fanOutMin       = 4  // calls of a client that fans out
)

// storm is one injection of a load fault. It is counted when the runtime first reacts to
// the calls of its clients as the fault intends.
type storm struct {
	fault    Fault
	detail   string
	required int // number of reactions that make it count
}

// countLoadEffect counts the faults whose effect an event shows.
func (w *Simulation) countLoadEffect(e *history.Event) {
	switch e.Kind {
	case history.Queue: // a call waits behind another turn
		w.feelStorm(LoadHotActor, e.Call)
	case history.Expire:
		w.feelStorm(LoadDeadlineStorm, e.Call)
	case history.Ask:
		w.feelStorm(LoadFanOut, e.Parent)
	case history.RefuseWaitCycle:
		w.feelStorm(LoadDeadlocks, e.Root)
	case history.Reply:
		if w.callFaults[e.Call] == rejectedCall {
			recordChange(w, AgentCallRejected, false, strings.HasSuffix(e.Detail, rejection), "%s", e.Detail)
		}
	}
}

// feelStorm records a reaction of the runtime to a call of a storm of kind f.
func (w *Simulation) feelStorm(f Fault, call actor.CallID) {
	if s := w.storms[call]; s != nil && s.fault == f && s.required > 0 {
		if s.required--; s.required == 0 {
			recordChange(w, f, 1, s.required, "%s", s.detail)
		}
	}
}

// injectLoad injects the load fault f.
func (w *Simulation) injectLoad(f Fault) {
	switch f {
	case LoadHotActor:
		to := newGenerator(w).target()
		if w.acts(f) {
			w.holdTurn(to)
		}
		s := &storm{f, fmt.Sprintf("many clients call %s", to), 1}
		for i, c := range w.startClients(s, 4+w.entropy.Int(2*stormClientsMax), time.Second, func(int) (actor.ID, string, time.Duration) {
			return to, w.trivialMessage(to.Agent), clientLeftMax
		}) {
			c.lane = [...]actor.Lane{actor.Low, actor.High, actor.High, actor.Normal, actor.High, actor.High}[i%6]
		}
	case LoadDeadlineStorm:
		left := w.between(500*time.Millisecond, 4*time.Second)
		n := 4 + w.entropy.Int(stormClientsMax-4)
		s := &storm{f, fmt.Sprintf("the deadlines of %d clients expire in %v", n, left), 1}
		w.startClients(s, n, 0, func(int) (actor.ID, string, time.Duration) {
			to := w.drawNativeActor()
			return to, "sleep 60000", left
		})
	case LoadRetryStorm:
		w.injectRetryStorm()
	case LoadPoison:
		to := w.drawNativeActor()
		poison := w.affectedCount(f, poisonClients)
		w.startClients(nil, 2*poisonClients, 200*time.Millisecond, func(i int) (actor.ID, string, time.Duration) {
			if i < poison {
				return to, script{{{verb: "poison"}}}.String(), clientLeftMax
			}
			return to, w.trivialMessage(to.Agent), clientLeftMax
		})
	case LoadFanOut:
		w.injectFanOut()
	case LoadDeadlocks:
		w.injectDeadlocks()
	}
}

// holdTurn may keep an actor busy, so that its mailbox fills and its messages age. Another
// message arrives after the age limit.
func (w *Simulation) holdTurn(to actor.ID) {
	if w.team != nil || w.agentKind(to.Agent) != actor.Native {
		return
	}
	busy := [...]time.Duration{0, 2 * time.Second, 12 * time.Second}[w.entropy.Int(3)]
	if busy == 0 {
		return
	}
	w.submit(w.addClient(to, script{{{verb: "sleep", ms: int(busy / time.Millisecond)}}}.String(), clientLeftMax))
	w.after(busy/2+2*time.Second, func() {
		if !w.recovering {
			w.submit(w.addClient(to, w.trivialMessage(to.Agent), clientLeftMax))
		}
	})
}

// startClients starts n clients at random times within the given duration, and returns
// them. They belong to the storm, unless it is nil.
func (w *Simulation) startClients(s *storm, n int, within time.Duration, next func(i int) (to actor.ID, text string, left time.Duration)) (all []*client) {
	if s != nil {
		n = w.affectedCount(s.fault, n)
	}
	for i := range n {
		to, text, left := next(i)
		c := w.addClient(to, text, left)
		w.after(w.between(0, within), func() { w.submitStorm(s, c) })
		all = append(all, c)
	}
	return all
}

// submitStorm submits the client's request as part of a storm.
func (w *Simulation) submitStorm(s *storm, c *client) {
	before := c.call
	if w.submit(c); s != nil && c.call != before {
		w.storms[c.call] = s
	}
}

// submitTree submits a request whose tree of calls is wide and deep: it uses up the
// number of calls that a tree may make.
func (w *Simulation) submitTree() {
	names := w.serialAgents()
	levels := min(3, len(names)-1, w.plan.Limits.AgentCallDepthMax)
	if w.team != nil || levels < 1 {
		return
	}
	first := w.entropy.Int(len(names))
	name := func(level int) string { return names[(first+level)%len(names)] }
	w.treesSubmitted++
	var text func(level int, path string) string
	text = func(level int, path string) string {
		if level > levels {
			return w.trivialMessage(name(level - 1))
		}
		var calls []string
		for i := range 4 {
			path := path + "-" + strconv.Itoa(i)
			calls = append(calls, instruction{verb: "call", name: name(level) + "/" + path, script: text(level+1, path)}.String())
		}
		return "all " + strings.Join(calls, " | ")
	}
	path := "tree" + strconv.Itoa(w.treesSubmitted)
	w.submit(w.addClient(newGenerator(w).actor(name(0), path), text(1, path), clientLeftMax))
}

// trivialMessage returns a message that the agent handles at once, in the syntax of
// the agent.
func (w *Simulation) trivialMessage(agent string) string {
	if w.team != nil {
		return w.teamMessageFor(agent)
	}
	if w.agentKind(agent) != actor.Native {
		return "use " + clockTool
	}
	return script{{{verb: "work", name: "w", ms: 1}}}.String()
}

// drawNativeActor draws an actor whose agent runs scripts.
func (w *Simulation) drawNativeActor() actor.ID {
	id := newGenerator(w).target()
	if w.agentKind(id.Agent) != actor.Native {
		id.Agent = w.plan.Agents[0].Name
	}
	return id
}

// injectRetryStorm makes all waiting clients with an idempotency key retry.
func (w *Simulation) injectRetryStorm() {
	var retrying []*client
	for _, r := range w.pending {
		if r.client.key != "" && r.client.tries+stormRetriesMax <= triesMax && !slices.Contains(retrying, r.client) {
			retrying = append(retrying, r.client)
		}
	}
	if len(retrying) == 0 {
		return
	}
	times := 2 + w.entropy.Int(stormRetriesMax-1)
	s := &storm{LoadRetryStorm, fmt.Sprintf("%d clients retry %d times each", len(retrying), times), 1}
	for _, c := range retrying {
		for range w.affectedCount(LoadRetryStorm, times) {
			w.after(w.between(0, 300*time.Millisecond), func() { w.submitStorm(s, c) })
		}
	}
}

// injectCancelStorm makes all waiting clients cancel their runs.
func (w *Simulation) injectCancelStorm() {
	if len(w.pending) == 0 {
		return
	}
	for _, r := range slices.Clone(w.pending[:w.affectedCount(ClientCancelStorm, len(w.pending))]) {
		w.after(w.between(0, 5*time.Millisecond), func() { w.cancelRunAs(ClientCancelStorm, r) })
	}
}

// injectFanOut starts a client whose call becomes a tree of calls, two levels deep. The
// called agent makes 4 to 15 calls, and each scripted callee makes as many. This may
// exceed AgentConcurrentCallsMax.
func (w *Simulation) injectFanOut() {
	width := fanOutMin + w.entropy.Int(12)
	calls := func(keyPrefix string, text func(agent string) string) string {
		all := make([]string, width)
		for i := range all {
			def := &w.plan.Agents[w.entropy.Int(w.plan.Targets)]
			all[i] = instruction{verb: "call", name: def.Name + "/" + keyPrefix + strconv.Itoa(i), script: text(def.Name)}.String()
		}
		return "all " + strings.Join(all, " | ")
	}
	to := w.drawNativeActor()
	text := calls("f", func(agent string) string {
		if w.agentKind(agent) != actor.Native {
			return w.trivialMessage(agent)
		}
		return calls("g", w.trivialMessage)
	})
	s := &storm{LoadFanOut, fmt.Sprintf("%s calls %d agents, each of which calls %d", to, width, width), fanOutMin}
	w.startClients(s, 1, 0, func(int) (actor.ID, string, time.Duration) { return to, text, clientLeftMax })
}

// injectDeadlocks makes each of several agents call each of the others. This creates
// many wait cycles at once, and no single call closes all of them.
func (w *Simulation) injectDeadlocks() {
	d, n, key := newGenerator(w), min(w.plan.Targets, 3+w.entropy.Int(3)), w.drawKey()
	first := w.entropy.Int(w.plan.Targets)
	name := func(i int) string { return w.plan.Agents[(first+i)%w.plan.Targets].Name }
	s := &storm{LoadDeadlocks, fmt.Sprintf("%d agents call each other, with key %s", n, key), 1}
	w.startClients(s, n*(n-1), 20*time.Millisecond, func(k int) (actor.ID, string, time.Duration) {
		i, j := k/(n-1), k%(n-1)
		if j >= i {
			j++
		}
		return d.actor(name(i), key), w.callMessage(name(i), name(j), key), clientLeftMax
	})
}

// rejectWhenDiskFull reports whether the node rejects the client's request because its
// disk has no space. A rejected request does not reach any cell.
func (w *Simulation) rejectWhenDiskFull(n *node, c *client) bool {
	full := n.diskFullUntil > w.now
	if !recordChange(w, DiskFull, false, full, "%s has no disk space and rejects client %d", n.id, c.no) {
		return false
	}
	if c.onReply != nil { // a registry client, which schedules its own retry
		c.onReply(nil)
		return true
	}
	w.scheduleRetry(c, w.between(time.Second, 12*time.Second))
	return true
}

// maybeDecideTwice sometimes sends a second, different decision for a wait that was
// already answered.
func (w *Simulation) maybeDecideTwice(to actor.ID, run actor.CallID, name string) {
	if !w.faultFires(ClientDecidesTwice) {
		return
	}
	w.after(w.between(time.Millisecond, 9*time.Second), func() {
		w.addInputs(ClientDecidesTwice, func() {
			w.sendSignalText(to, run, name, fmt.Sprintf("no, stop %s", run.Short()))
		}, "second decision for run %s", run.Short())
	})
}

// addInputs has fault f send something. The fault counts if a cell receives it.
func (w *Simulation) addInputs(f Fault, send func(), format string, args ...any) {
	before := w.enqueued
	if w.acts(f) {
		send()
	}
	recordChange(w, f, before, w.enqueued, format, args...)
}
