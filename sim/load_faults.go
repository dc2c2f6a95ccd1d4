// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// Load faults: many clients that act at once, or one client that loads many actors.

const (
	stormClientsMax = 16 // clients of one load fault
	poisonClients   = 3  // clients whose message makes the actor panic
	stormRetriesMax = 4  // retries of each client in a retry storm
)

// injectLoad injects the load fault f.
func (w *Simulation) injectLoad(f Fault) {
	switch f {
	case LoadHotActor:
		to := generator{w: w}.target()
		w.recordFault(f, "many clients call %s", to)
		w.startClients(4+w.entropy.Int(stormClientsMax-4), time.Second, func(int) (actor.ID, string, time.Duration) {
			return to, w.trivialMessage(to.Agent), clientLeftMax
		})
	case LoadDeadlineStorm:
		left := w.between(500*time.Millisecond, 4*time.Second)
		n := 4 + w.entropy.Int(stormClientsMax-4)
		w.recordFault(f, "the deadlines of %d clients expire in %v", n, left)
		w.startClients(n, 0, func(int) (actor.ID, string, time.Duration) {
			to := w.drawNativeActor()
			return to, "sleep 60000", left
		})
	case LoadRetryStorm:
		w.injectRetryStorm()
	case LoadPoison:
		to := w.drawNativeActor()
		w.recordFault(f, "messages that panic are sent to %s", to)
		w.startClients(2*poisonClients, 200*time.Millisecond, func(i int) (actor.ID, string, time.Duration) {
			if i < poisonClients {
				return to, script{{{verb: "panic"}}}.String(), clientLeftMax
			}
			return to, w.trivialMessage(to.Agent), clientLeftMax
		})
	case LoadFanOut:
		w.injectFanOut()
	case LoadDeadlocks:
		w.injectDeadlocks()
	}
}

// startClients starts n clients at random times within the given duration.
func (w *Simulation) startClients(n int, within time.Duration, next func(i int) (to actor.ID, text string, left time.Duration)) {
	for i := range n {
		to, text, left := next(i)
		c := w.addClient(to, text, left)
		w.after(w.between(0, within), func() { w.submit(c) })
	}
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
	id := generator{w: w}.target()
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
	w.recordFault(LoadRetryStorm, "%d clients retry %d times each", len(retrying), times)
	for _, c := range retrying {
		for range times {
			w.after(w.between(0, 300*time.Millisecond), func() { w.submit(c) })
		}
	}
}

// injectCancelStorm makes all waiting clients cancel their runs.
func (w *Simulation) injectCancelStorm() {
	if len(w.pending) == 0 {
		return
	}
	w.recordFault(ClientCancelStorm, "%d clients cancel", len(w.pending))
	for _, r := range slices.Clone(w.pending) {
		w.after(w.between(0, 5*time.Millisecond), func() { w.cancelRunAs(ClientCancelStorm, r) })
	}
}

// injectFanOut starts a client whose call becomes a tree of calls, two levels deep. The
// called agent makes 4 to 15 calls, and each scripted callee makes as many. This may
// exceed AgentConcurrentCallsMax.
func (w *Simulation) injectFanOut() {
	width := 4 + w.entropy.Int(12)
	calls := func(keyPrefix string, text func(agent string) string) string {
		all := make([]string, width)
		for i := range all {
			def := &w.plan.Agents[w.entropy.Int(w.plan.Targets)]
			all[i] = instruction{verb: "call", name: def.Name + "/" + keyPrefix + strconv.Itoa(i), script: text(def.Name)}.String()
		}
		return "all " + strings.Join(all, " | ")
	}
	to := w.drawNativeActor()
	w.recordFault(LoadFanOut, "%s calls %d agents, each of which calls %d", to, width, width)
	text := calls("f", func(agent string) string {
		if w.agentKind(agent) != actor.Native {
			return w.trivialMessage(agent)
		}
		return calls("g", w.trivialMessage)
	})
	w.submit(w.addClient(to, text, clientLeftMax))
}

// injectDeadlocks makes each of several agents call each of the others. This creates
// many wait cycles at once, and no single call closes all of them.
func (w *Simulation) injectDeadlocks() {
	n, key := min(w.plan.Targets, 3+w.entropy.Int(3)), "s"+strconv.Itoa(w.entropy.Int(w.plan.Keys))
	first := w.entropy.Int(w.plan.Targets)
	name := func(i int) string { return w.plan.Agents[(first+i)%w.plan.Targets].Name }
	w.recordFault(LoadDeadlocks, "%d agents call each other, with key %s", n, key)
	for i := range n {
		for j := range n {
			if i != j {
				c := w.addClient(actor.NewID(name(i), key), w.callMessage(name(i), name(j), key), clientLeftMax)
				w.after(w.between(0, 20*time.Millisecond), func() { w.submit(c) })
			}
		}
	}
}

// rejectWhenDiskFull reports whether the node rejects the client's request because its
// disk has no space. A rejected request does not reach any cell.
func (w *Simulation) rejectWhenDiskFull(n *node, c *client) bool {
	if n.diskFullUntil <= w.now {
		return false
	}
	w.recordFault(DiskFull, "%s has no disk space and rejects client %d", n.id, c.no)
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
		w.recordFault(ClientDecidesTwice, "second decision for run %s", run.Short())
		w.sendSignalText(to, run, name, fmt.Sprintf("no, stop %s", run.Short()))
	})
}
