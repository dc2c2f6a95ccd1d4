// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/specs"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

// directory is what a node knows of which agents and API keys there are: from
// the registry's journal when it starts, from then on by what the registry
// announces. Whoever comes to its door is judged by it.
type directory struct {
	kept   []actor.StateItem // by name
	reader *agents.CatalogReader
	agents.Catalog
	keys  []ingress.Key
	heard int // how many of the world's announcements are in it
}

// enlists tells whether the world's agents are not all there are.
func (w *World) enlists() bool { return w.plan.Orders > 0 }

// The agents that clients may have the registry take in, besides those that are
// a part of the program.
var enlisted = [...]struct {
	name string
	kind actor.AgentKind
}{{"rex", actor.Declared}, {"ria", actor.Declared}, {"xeno", actor.External}}

// registryAgent is the registry itself, which knows what it cannot take in.
func (w *World) registryAgent() actor.Definition {
	var native []string
	for i := range w.plan.Agents {
		native = append(native, w.plan.Agents[i].Name)
	}
	def := agents.Registry(native...)
	def.Behavior = wild{w, def.Behavior}
	return def
}

// enlist adds to what the specs know of agents those that may come.
func (w *World) enlist(known map[string]specs.Agent) {
	if w.enlists() {
		known[agents.RegistryID.Agent] = specs.Agent{}
		for _, a := range enlisted {
			known[a.name] = specs.Agent{}
		}
	}
}

// readDirectory is what a process does that starts: it reads the registry's journal.
func (n *node) readDirectory() {
	w := n.w
	if !w.enlists() {
		return
	}
	n.directory = &directory{reader: agents.NewCatalogReader(w.tools), kept: w.registered(), heard: len(w.announced)}
	n.compile()
}

// registered is what the registry keeps, as the store has it.
func (w *World) registered() []actor.StateItem {
	saved, err := store.LoadActor(w.kv, agents.RegistryID)
	if err == nil {
		journal, wrong := store.Fold(saved)
		if err = wrong; err == nil {
			return journal.KeptNow()
		}
	}
	w.violate(StoreReads, "the registry: "+err.Error())
	return nil
}

// compile makes agents and keys of what is kept.
func (n *node) compile() {
	w, d := n.w, n.directory
	now, err := d.reader.Read(d.kept)
	if err != nil {
		w.violate(RegistryHolds, fmt.Sprintf("%s cannot read what the registry keeps: %v", n.id, err))
		return
	}
	d.Catalog, d.keys = now, nil
	for i := range now.Definitions {
		now.Definitions[i].Behavior = wild{w, now.Definitions[i].Behavior}
	}
	for i := range now.Former {
		now.Former[i].Behavior = wild{w, now.Former[i].Behavior}
	}
	for _, item := range now.Keys {
		key, err := ingress.DecodeKey(item.Value)
		if err != nil {
			w.violate(RegistryHolds, fmt.Sprintf("%s cannot read a key: %v", n.id, err))
			return
		}
		d.keys = append(d.keys, key)
	}
}

// agents are those that there are for a node's cells.
func (n *node) agents() runtime.Agents {
	all := n.w.agents()
	if n.directory == nil {
		return runtime.Agents{Definitions: all}
	}
	return runtime.Agents{Definitions: slices.Concat(all, []actor.Definition{n.w.registry}, n.directory.Definitions), Former: n.directory.Former}
}

// announceKey is under which the registry's tool finds whom to tell.
type announceKey struct{}

// announced is the handler of that tool.
func announced(ctx context.Context, input []byte) tools.Result {
	tell, ok := ctx.Value(announceKey{}).(func([]actor.StateItem))
	items, err := agents.ReadAnnouncement(input)
	if !ok || err != nil {
		return tools.Refused(actor.Refuse(actor.Invalid, "%v", err))
	}
	tell(items)
	return tools.JSON([]byte("{}"))
}

// announce lets all nodes know what the registry says, and tells it once every
// cell that there is has heard.
func (n *node) announce(h *held, op runtime.Tool) {
	w, d := n.w, n.begin(h)
	if w.fault(ToolHang) {
		w.hit(ToolHang, "what the registry announces is lost")
		n.later(op.Left+time.Second, func() { n.forget(d) })
		return
	}
	mute := w.fault(ToolReplyLost)
	ctx := context.WithValue(context.Background(), announceKey{}, func(items []actor.StateItem) {
		w.announced = append(w.announced, items)
		w.Stats.Sometimes[Announced]++
	})
	answer := w.tools.Execute(ctx, op.Name, op.Input, op.Context)
	last, until := len(w.announced), w.now.Add(op.Left)
	for _, other := range w.nodes {
		if other.up {
			other.later(w.between(100*time.Microsecond, 20*time.Millisecond), other.hear)
		}
	}
	if mute {
		w.hit(ToolReplyLost, "nobody tells the registry that all have heard")
		n.later(op.Left+time.Second, func() { n.forget(d) })
		return
	}
	var ask func()
	ask = func() {
		switch {
		case w.heard(last) || answer.Refusal != nil:
		case w.now >= until:
			answer = actor.Answer{Refusal: actor.Refuse(actor.Unavailable, "not every cell has heard of it")}
		default:
			n.later(5*time.Millisecond, ask)
			return
		}
		n.ended(d, op.Left, func() actor.Answer { return answer })
	}
	n.later(5*time.Millisecond, ask)
}

// heard tells whether all cells know of so many announcements.
func (w *World) heard(last int) bool {
	for _, n := range w.nodes {
		if !n.up {
			continue
		}
		if n.directory.heard < last || slices.ContainsFunc(n.cells, func(c *cell) bool { return !c.gone && c.heard < last }) {
			return false
		}
	}
	return true
}

// hear takes in what was announced meanwhile, in its order.
func (n *node) hear() {
	w, d := n.w, n.directory
	if d.heard == len(w.announced) {
		return
	}
	for _, items := range w.announced[d.heard:] {
		for _, item := range items {
			at, there := slices.BinarySearchFunc(d.kept, item.Name, func(i actor.StateItem, name string) int { return strings.Compare(i.Name, name) })
			switch {
			case there && len(item.Value) == 0:
				d.kept = slices.Delete(d.kept, at, at+1)
			case there:
				d.kept[at] = item
			case len(item.Value) > 0:
				d.kept = slices.Insert(d.kept, at, item)
			}
		}
	}
	d.heard = len(w.announced)
	n.compile()
	n.tellCells()
}

// tellCells lets the cells know which agents there are.
func (n *node) tellCells() {
	for _, c := range n.cells {
		in := input{stream: streamWorld, in: n.agents()}
		if n.directory != nil {
			heard := n.directory.heard
			in.taken = func() { c.heard = heard }
		}
		c.put(in)
	}
}
