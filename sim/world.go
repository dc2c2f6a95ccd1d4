// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"io"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

// Options say how a world is run. The zero Options run the seed 0.
type Options struct {
	Seed    uint64
	Chooser Chooser   // nil: drawn from the seed
	Events  io.Writer // gets the canonical log; nil: nobody does
	Parts   Parts
}

// Parts are real parts that stand in for imagined ones.
type Parts struct {
	Disk store.KV // nil: store.Memory
}

// Violation is a property that did not hold.
type Violation struct {
	Spec   string
	Detail string
	At     actor.Time
	Step   int
}

// Error names the spec, and says who and when.
func (v *Violation) Error() string {
	return fmt.Sprintf("%s broken after %d steps, at %v: %s", v.Spec, v.Step, v.At.Sub(Origin), v.Detail)
}

// World is all there is.
type World struct {
	Stats Stats

	seed    uint64
	choose  Chooser
	plan    Plan
	parts   Parts
	now     actor.Time
	queue   queue
	log     *Log
	nodes   []*node
	kv      store.KV
	claims  claims
	tools   *tools.Registry
	clients []*client
	waiting map[actor.CallID]*client // looked up only
	ids     uint64
	broken  *Violation
}

// New makes the world of a seed: nodes that have just started, and a workload
// that is about to come.
func New(o Options) *World {
	w := &World{seed: o.Seed, choose: o.Chooser, parts: o.Parts, now: Origin, log: newLog(o.Events), kv: o.Parts.Disk,
		waiting: map[actor.CallID]*client{}}
	if w.choose == nil {
		w.choose = NewDrawn(o.Seed)
	}
	if w.kv == nil {
		w.kv = &store.Memory{}
	}
	w.plan = drawPlan(w.choose)
	w.tools = newTools()
	w.build()
	w.drawClients()
	return w
}

func (w *World) build() {
	for i := range w.plan.Cells {
		w.nodes = append(w.nodes, &node{w: w, id: actor.NodeID(fmt.Sprintf("n%d", i+1)), index: i,
			clock: clock{offset: w.plan.Offset[i], drift: w.plan.Drift[i]}})
	}
	w.claims.groups = make([]claim, w.plan.Groups)
	for g := range w.claims.groups {
		n := w.nodes[g%len(w.nodes)]
		w.claims.groups[g] = claim{node: n, cell: uint16(g / len(w.nodes) % w.plan.Cells[n.index])}
	}
	for _, n := range w.nodes {
		n.start()
	}
}

// Run lets the world go on until nothing happens any more.
func (w *World) Run() *Violation {
	for w.broken == nil {
		h, ok := w.queue.take()
		if !ok {
			break
		}
		w.now = max(w.now, h.at)
		h.do()
	}
	return w.broken
}

// Hash is the hash of all that happened.
func (w *World) Hash() string { return w.log.Hash() }

func (w *World) after(d time.Duration, do func()) { w.queue.put(w.now.Add(d), do) }

// between draws a time; the least is benign.
func (w *World) between(least, most time.Duration) time.Duration {
	return least + (most-least)*time.Duration(w.choose.Int(1<<12))/(1<<12)
}

func (w *World) node(id actor.NodeID) *node {
	for _, n := range w.nodes {
		if n.id == id {
			return n
		}
	}
	return nil
}

// someNode is one of those that are up; nil if none is.
func (w *World) someNode() *node {
	at := w.choose.Int(len(w.nodes))
	for i := range w.nodes {
		if n := w.nodes[(at+i)%len(w.nodes)]; n.up {
			return n
		}
	}
	return nil
}

func (w *World) agents() []actor.Definition { return w.plan.Agents }

// takeClaims claims for a node that starts the groups that are its own.
func (w *World) takeClaims(n *node) {
	for g := range w.claims.groups {
		if cl := &w.claims.groups[g]; cl.node == n {
			w.claim(g, n, cl.cell)
		}
	}
}

func (w *World) claim(g int, n *node, cell uint16) {
	epoch := w.claims.claim(g, n, cell)
	lo, hi := w.claims.span(g)
	w.observe(&history.Event{Kind: history.Claim, At: n.clock.now(w.now), From: n.cells[cell].self, Epoch: epoch, ShardLo: lo, ShardHi: hi})
	w.tellOwners()
}

// tellOwners lets the nodes learn of a change of the claims, each in its time.
func (w *World) tellOwners() {
	for _, n := range w.nodes {
		w.after(w.between(100*time.Microsecond, 20*time.Millisecond), func() { n.refresh() })
	}
}

// refresh tells the cells who owns what, if they do not know.
func (n *node) refresh() {
	if !n.up || n.view == n.w.claims.version {
		return
	}
	n.view = n.w.claims.version
	table, bytes := n.w.claims.owners()
	for _, c := range n.cells {
		c.put(ownersInput(table, bytes))
	}
}

func (w *World) halt(n *node, why string) {}

func (c *cell) panicked() {}

func (w *World) newCallID() actor.CallID {
	w.ids++
	return actor.NewCallID(w.now, mix(w.seed, 2*w.ids), mix(w.seed, 2*w.ids+1))
}

// observe takes note of an event.
func (w *World) observe(e *history.Event) {
	w.log.event(e)
	w.Stats.event(e)
}

// performed tells of an effect that reaches the world outside the node.
func (w *World) performed(h *held, what string, call actor.CallID, status actor.Status, reason actor.Reason) {
	n := h.c.n
	w.observe(&history.Event{Kind: history.Perform, At: n.clock.now(w.now), From: h.c.self, Call: call, What: what,
		Step: h.effect.ID.Step, Index: h.effect.ID.Index, Attempt: h.effect.Attempt, Status: status, Reason: reason,
		Pos: uint64(h.pos), Synced: uint64(n.log.durable()), Wrote: h.wrote})
}

func (w *World) stepped(c *cell) {}

func (w *World) violate(spec, detail string) {
	if w.broken == nil {
		w.broken = &Violation{spec, detail, w.now, w.Stats.Steps}
	}
}
