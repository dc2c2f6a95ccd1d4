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

// What many clients do at once, or one of them to many.

const (
	crowdMax   = 16 // clients of a storm
	poisoners  = 3  // who bring a message that panics
	retriesMax = 4  // of each client in a storm of retries
)

// storms has a fault of load begin.
func (w *World) storms(f Fault) {
	switch f {
	case LoadHotActor:
		to := drawer{w: w}.target()
		w.hit(f, "everybody wants %s", to)
		w.crowd(4+w.choose.Int(crowdMax-4), time.Second, func(int) (actor.ID, string, time.Duration) {
			return to, w.small(to.Agent), clientLeftMax
		})
	case LoadDeadlineStorm:
		left := w.between(500*time.Millisecond, 4*time.Second)
		n := 4 + w.choose.Int(crowdMax-4)
		w.hit(f, "the time of %d clients is over in %v", n, left)
		w.crowd(n, 0, func(int) (actor.ID, string, time.Duration) {
			to := w.native()
			return to, "sleep 60000", left
		})
	case LoadRetryStorm:
		w.retryStorm()
	case LoadPoison:
		to := w.native()
		w.hit(f, "a message panics wherever it comes, at %s", to)
		w.crowd(2*poisoners, 200*time.Millisecond, func(i int) (actor.ID, string, time.Duration) {
			if i < poisoners {
				return to, script{{{verb: "panic"}}}.String(), clientLeftMax
			}
			return to, w.small(to.Agent), clientLeftMax
		})
	case LoadFanOut:
		w.fanOut()
	case LoadDeadlocks:
		w.deadlocks()
	}
}

// crowd has clients come within a time.
func (w *World) crowd(n int, within time.Duration, next func(i int) (to actor.ID, text string, left time.Duration)) {
	for i := range n {
		to, text, left := next(i)
		c := w.addClient(to, text, left)
		w.after(w.between(0, within), func() { w.ask(c) })
	}
}

// small is something that takes an agent no time, in its language.
func (w *World) small(agent string) string {
	if w.team != nil {
		return w.teamMessage(agent)
	}
	if w.kindOf(agent) != actor.Native {
		return "use " + clockTool
	}
	return script{{{verb: "work", name: "w", ms: 1}}}.String()
}

// native is an actor whose agent plays scripts.
func (w *World) native() actor.ID {
	id := drawer{w: w}.target()
	if w.kindOf(id.Agent) != actor.Native {
		id.Agent = w.plan.Agents[0].Name
	}
	return id
}

// retryStorm has all clients ask again who wait under a key.
func (w *World) retryStorm() {
	var again []*client
	for _, l := range w.lines {
		if l.client.key != "" && l.client.tries+retriesMax <= triesMax && !slices.Contains(again, l.client) {
			again = append(again, l.client)
		}
	}
	if len(again) == 0 {
		return
	}
	times := 2 + w.choose.Int(retriesMax-1)
	w.hit(LoadRetryStorm, "%d clients ask again, %d times", len(again), times)
	for _, c := range again {
		for range times {
			w.after(w.between(0, 300*time.Millisecond), func() { w.ask(c) })
		}
	}
}

// cancelStorm has all who wait give their runs up.
func (w *World) cancelStorm() {
	if len(w.lines) == 0 {
		return
	}
	w.hit(ClientCancelStorm, "%d clients cancel", len(w.lines))
	for _, l := range slices.Clone(w.lines) {
		w.after(w.between(0, 5*time.Millisecond), func() { w.cancelBy(ClientCancelStorm, l) })
	}
}

// fanOut has one client ask for a tree as wide as calls may be, and two deep.
func (w *World) fanOut() {
	wide := 4 + w.choose.Int(12)
	calls := func(below string, text func(agent string) string) string {
		all := make([]string, wide)
		for i := range all {
			def := &w.plan.Agents[w.choose.Int(w.plan.Targets)]
			all[i] = one{verb: "call", name: def.Name + "/" + below + strconv.Itoa(i), script: text(def.Name)}.String()
		}
		return "all " + strings.Join(all, " | ")
	}
	to := w.native()
	w.hit(LoadFanOut, "%s asks %d agents, who ask %d each", to, wide, wide)
	text := calls("f", func(agent string) string {
		if w.kindOf(agent) != actor.Native {
			return w.small(agent)
		}
		return calls("g", w.small)
	})
	w.ask(w.addClient(to, text, clientLeftMax))
}

// deadlocks has agents asked, in pairs, to ask each other: more rings at once
// than any one of them closes.
func (w *World) deadlocks() {
	n, key := min(w.plan.Targets, 3+w.choose.Int(3)), "s"+strconv.Itoa(w.choose.Int(w.plan.Keys))
	first := w.choose.Int(w.plan.Targets)
	name := func(i int) string { return w.plan.Agents[(first+i)%w.plan.Targets].Name }
	w.hit(LoadDeadlocks, "%d agents ask each other, at %s", n, key)
	for i := range n {
		for j := range n {
			if i != j {
				c := w.addClient(actor.NewID(name(i), key), w.callIn(name(i), name(j), key), clientLeftMax)
				w.after(w.between(0, 20*time.Millisecond), func() { w.ask(c) })
			}
		}
	}
}

// noRoom refuses what a client asks of a node whose disk has no room, as a node
// does before any of its cells hears of it.
func (w *World) noRoom(n *node, c *client) bool {
	if n.full <= w.now {
		return false
	}
	w.hit(DiskFull, "%s takes no new work, and sends client %d away", n.id, c.no)
	if c.told != nil { // a clerk, who has others do it at another time
		c.told(nil)
		return true
	}
	w.askAgain(c, w.between(time.Second, 12*time.Second))
	return true
}

// decidesAgain has somebody answer once more who has answered a wait.
func (w *World) decidesAgain(to actor.ID, run actor.CallID, name string) {
	if !w.fault(ClientDecidesTwice) {
		return
	}
	w.after(w.between(time.Millisecond, 9*time.Second), func() {
		w.hit(ClientDecidesTwice, "somebody decides once more for run %s", run.Short())
		w.signalWith(to, run, name, fmt.Sprintf("no, stop %s", run.Short()))
	})
}
