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

// catalog is what a node knows of which agents and API keys there are: from
// the registry's journal when it starts, from then on by what the registry
// announces. Whoever comes to its door is judged by it.
type catalog struct {
	items  []actor.StateItem // by name
	reader *agents.CatalogReader
	agents.Catalog
	keys                 []ingress.Key
	announcementsApplied int // how many of the world's announcements are in it
}

// hasRegistry tells whether the world's agents are not all there are.
func (w *Simulation) hasRegistry() bool { return w.plan.RegistryInterval > 0 }

// The agents that clients may have the registry take in, besides those that are
// a part of the program.
var registeredAgents = [...]struct {
	name string
	kind actor.AgentKind
}{{"rex", actor.Declared}, {"ria", actor.Declared}, {"xeno", actor.External}}

// registryDefinition is the registry itself, which knows what it cannot take in.
func (w *Simulation) registryDefinition() actor.Definition {
	var native []string
	for i := range w.plan.Agents {
		native = append(native, w.plan.Agents[i].Name)
	}
	def := agents.Registry(native...)
	def.Behavior = faultyAgent{w, def.Behavior}
	return def
}

// addRegisteredAgents adds to what the specs know of agents those that may come.
func (w *Simulation) addRegisteredAgents(known map[string]specs.Agent) {
	if w.hasRegistry() {
		known[agents.RegistryID.Agent] = specs.Agent{}
		for _, a := range registeredAgents {
			known[a.name] = specs.Agent{}
		}
	}
}

// loadCatalog is what a process does that starts: it reads the registry's journal.
func (n *node) loadCatalog() {
	w := n.w
	if !w.hasRegistry() {
		return
	}
	n.catalog = &catalog{reader: agents.NewCatalogReader(w.tools), items: w.loadRegistryItems(), announcementsApplied: len(w.announcements)}
	n.buildCatalog()
}

// loadRegistryItems is what the registry keeps, as the store has it.
func (w *Simulation) loadRegistryItems() []actor.StateItem {
	saved, err := store.LoadActor(w.kv, agents.RegistryID)
	if err == nil {
		journal, wrong := store.Fold(saved)
		if err = wrong; err == nil {
			return journal.KeptNow()
		}
	}
	w.fail(StoreReads, "the registry: "+err.Error())
	return nil
}

// buildCatalog makes agents and keys of what is kept.
func (n *node) buildCatalog() {
	w, d := n.w, n.catalog
	now, err := d.reader.Read(d.items)
	if err != nil {
		w.fail(RegistryHolds, fmt.Sprintf("%s cannot read what the registry keeps: %v", n.id, err))
		return
	}
	d.Catalog, d.keys = now, nil
	for i := range now.Definitions {
		now.Definitions[i].Behavior = faultyAgent{w, now.Definitions[i].Behavior}
	}
	for i := range now.Former {
		now.Former[i].Behavior = faultyAgent{w, now.Former[i].Behavior}
	}
	for _, item := range now.Keys {
		key, err := ingress.DecodeKey(item.Value)
		if err != nil {
			w.fail(RegistryHolds, fmt.Sprintf("%s cannot read a key: %v", n.id, err))
			return
		}
		d.keys = append(d.keys, key)
	}
}

// runtimeAgents are those that there are for a node's cells.
func (n *node) runtimeAgents() runtime.Agents {
	all := n.w.builtinAgents()
	if n.catalog == nil {
		return runtime.Agents{Definitions: all}
	}
	return runtime.Agents{Definitions: slices.Concat(all, []actor.Definition{n.w.registry}, n.catalog.Definitions), Former: n.catalog.Former}
}

// announceFuncKey is under which the registry's tool finds whom to tell.
type announceFuncKey struct{}

// handleAnnounce is the handler of that tool.
func handleAnnounce(ctx context.Context, input []byte) tools.Result {
	tell, ok := ctx.Value(announceFuncKey{}).(func([]actor.StateItem))
	items, err := agents.ReadAnnouncement(input)
	if !ok || err != nil {
		return tools.Refused(actor.Refuse(actor.Invalid, "%v", err))
	}
	tell(items)
	return tools.JSON([]byte("{}"))
}

// performAnnounce lets all nodes know what the registry says, and tells it once every
// cell that there is has heard.
func (n *node) performAnnounce(h *gatedEffect, op runtime.Tool) {
	w, d := n.w, n.trackEffect(h)
	if w.faultFires(ToolHang) {
		w.recordFault(ToolHang, "what the registry announces is lost")
		n.after(op.Left+time.Second, func() { n.untrackEffect(d) })
		return
	}
	mute := w.faultFires(ToolReplyLost)
	ctx := context.WithValue(context.Background(), announceFuncKey{}, func(items []actor.StateItem) {
		w.announcements = append(w.announcements, items)
		w.Stats.Points[RegistryAnnounced]++
	})
	answer := w.tools.Execute(ctx, op.Name, op.Input, op.Context)
	last, until := len(w.announcements), w.now.Add(op.Left)
	for _, other := range w.nodes {
		if other.up {
			other.after(w.between(100*time.Microsecond, 20*time.Millisecond), other.applyAnnouncements)
		}
	}
	if mute {
		w.recordFault(ToolReplyLost, "nobody tells the registry that all have heard")
		n.after(op.Left+time.Second, func() { n.untrackEffect(d) })
		return
	}
	var ask func()
	ask = func() {
		switch {
		case w.appliedEverywhere(last) || answer.Refusal != nil:
		case w.now >= until:
			answer = actor.Answer{Refusal: actor.Refuse(actor.Unavailable, "not every cell has heard of it")}
		default:
			n.after(5*time.Millisecond, ask)
			return
		}
		n.completeEffect(d, op.Left, func() actor.Answer { return answer })
	}
	n.after(5*time.Millisecond, ask)
}

// appliedEverywhere tells whether all cells know of so many announcements.
func (w *Simulation) appliedEverywhere(last int) bool {
	for _, n := range w.nodes {
		if !n.up {
			continue
		}
		if n.catalog.announcementsApplied < last || slices.ContainsFunc(n.cells, func(c *cell) bool { return !c.stopped && c.announcementsSeen < last }) {
			return false
		}
	}
	return true
}

// applyAnnouncements takes in what was announced meanwhile, in its order.
func (n *node) applyAnnouncements() {
	w, d := n.w, n.catalog
	if d.announcementsApplied == len(w.announcements) {
		return
	}
	for _, items := range w.announcements[d.announcementsApplied:] {
		for _, item := range items {
			at, there := slices.BinarySearchFunc(d.items, item.Name, func(i actor.StateItem, name string) int { return strings.Compare(i.Name, name) })
			switch {
			case there && len(item.Value) == 0:
				d.items = slices.Delete(d.items, at, at+1)
			case there:
				d.items[at] = item
			case len(item.Value) > 0:
				d.items = slices.Insert(d.items, at, item)
			}
		}
	}
	d.announcementsApplied = len(w.announcements)
	n.buildCatalog()
	n.sendAgentsToCells()
}

// sendAgentsToCells lets the cells know which agents there are.
func (n *node) sendAgentsToCells() {
	for _, c := range n.cells {
		in := input{orderGroup: orderWorld, in: n.runtimeAgents()}
		if n.catalog != nil {
			heard := n.catalog.announcementsApplied
			in.onStepped = func() { c.announcementsSeen = heard }
		}
		c.enqueue(in)
	}
}
