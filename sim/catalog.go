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

// catalog is a node's view of the registered agents and API keys. A node loads it
// from the registry's journal when it starts, and then applies the registry's
// announcements. The node authenticates client requests against it.
type catalog struct {
	items  []actor.StateItem // sorted by name
	reader *agents.CatalogReader
	agents.Catalog
	keys                 []ingress.Key
	announcementsApplied int // number of Simulation.announcements applied so far
}

// hasRegistry reports whether agents can be registered at run time, in addition to
// the built-in agents of the simulation.
func (w *Simulation) hasRegistry() bool { return w.plan.RegistryInterval > 0 }

// registeredAgents are the agents that clients may register in addition to the
// built-in ones.
var registeredAgents = [...]struct {
	name string
	kind actor.AgentKind
}{{"rex", actor.Declared}, {"ria", actor.Declared}, {"xeno", actor.External}}

// registryDefinition returns the definition of the registry actor. It rejects the
// names of built-in agents.
func (w *Simulation) registryDefinition() actor.Definition {
	var native []string
	for i := range w.plan.Agents {
		native = append(native, w.plan.Agents[i].Name)
	}
	def := agents.Registry(w.plan.Quotas, agents.NativeNames{Served: native})
	def.Behavior = faultyAgent{w, def.Behavior}
	return def
}

// addRegisteredAgents adds the registry, and all agents that clients may register, to
// known: the agents that the specs know.
func (w *Simulation) addRegisteredAgents(known map[string]specs.Agent) {
	if w.plan.spending().Day != nil {
		known[actor.AccountAgent] = specs.Agent{System: true}
	}
	if w.hasRegistry() {
		known[agents.RegistryID.Agent] = specs.Agent{System: true}
		for i, a := range registeredAgents {
			known[a.name] = specs.Agent{Volatile: w.plan.RegisteredVolatile[i] || w.plan.DurabilityChanges, Changing: w.plan.DurabilityChanges}
		}
	}
}

// loadCatalog reads the registry's journal. A node calls it when it starts.
func (n *node) loadCatalog() {
	w := n.w
	if !w.hasRegistry() {
		return
	}
	n.catalog = &catalog{reader: agents.NewCatalogReader(w.tools), items: w.loadRegistryItems(), announcementsApplied: len(w.announcements)}
	n.buildCatalog()
}

// loadRegistryItems returns the registry's items from the store.
func (w *Simulation) loadRegistryItems() []actor.StateItem {
	saved, err := w.store.Load(agents.RegistryID)
	if err == nil {
		journal, foldErr := store.Fold(saved)
		if err = foldErr; err == nil {
			return journal.EffectiveState()
		}
	}
	w.fail(StoreReads, "load the registry: "+err.Error())
	return nil
}

// buildCatalog rebuilds the agent definitions and API keys from the catalog's items.
func (n *node) buildCatalog() {
	w, d := n.w, n.catalog
	catalog, err := d.reader.Read(d.items)
	if err != nil {
		w.fail(RegistryHolds, fmt.Sprintf("%s cannot decode the registry's items: %v", n.id, err))
		return
	}
	d.Catalog, d.keys = catalog, nil
	for i := range catalog.Definitions {
		catalog.Definitions[i].Behavior = faultyAgent{w, catalog.Definitions[i].Behavior}
	}
	for i := range catalog.Former {
		catalog.Former[i].Behavior = faultyAgent{w, catalog.Former[i].Behavior}
	}
	for _, item := range catalog.Keys {
		key, err := ingress.DecodeKey(item.Value)
		if err != nil {
			w.fail(RegistryHolds, fmt.Sprintf("%s cannot decode an API key: %v", n.id, err))
			return
		}
		d.keys = append(d.keys, key)
	}
}

// runtimeAgents returns the agents known to the cells of this node: the built-in
// agents, the registry and the registered agents.
func (n *node) runtimeAgents() runtime.Agents {
	all := n.w.builtinAgents()
	if day := n.w.plan.spending().Day; day != nil {
		all = append(slices.Clip(all), agents.Account(*day, n.w.plan.DayMessages))
	}
	if n.catalog == nil {
		return runtime.Agents{Definitions: all, Tools: n.w.tools}
	}
	return runtime.Agents{Definitions: slices.Concat(all, []actor.Definition{n.w.registry}, n.catalog.Definitions), Former: n.catalog.Former, Tools: n.w.tools}
}

// announceFuncKey is the context key of the function that publishes an announcement.
// The handler of the announce tool reads it.
type announceFuncKey struct{}

// handleAnnounce is the handler of the announce tool.
func handleAnnounce(ctx context.Context, input []byte) tools.Result {
	publish, ok := ctx.Value(announceFuncKey{}).(func([]actor.StateItem))
	items, err := agents.ReadAnnouncement(input)
	if !ok || err != nil {
		return tools.Refused(actor.Refuse(actor.Invalid, "%v", err))
	}
	publish(items)
	return tools.JSON([]byte("{}"))
}

// performAnnounce publishes a registry announcement to all nodes. It answers the
// registry once every running cell has applied the announcement, or with a refusal
// at the deadline.
func (n *node) performAnnounce(h *gatedEffect, op runtime.Tool) {
	w, d := n.w, n.trackEffect(h)
	announced := len(w.announcements)
	if w.faultFires(ToolHang) {
		w.after(0, func() { // without the fault, the announcement is published now
			recordChange(w, ToolHang, announced+1, len(w.announcements), "the registry's announcement is lost")
		})
		if w.acts(ToolHang) {
			n.after(op.Left+time.Second, func() { n.untrackEffect(d) })
			return
		}
	}
	replyLost := w.faultFires(ToolReplyLost)
	ctx := context.WithValue(context.Background(), announceFuncKey{}, func(items []actor.StateItem) {
		w.announcements = append(w.announcements, items)
		w.Stats.Points[RegistryAnnounced]++
	})
	answer := w.tools.Execute(ctx, op.Name, op.Input, op.Context)
	version, deadline := len(w.announcements), w.now.Add(op.Left)
	for _, other := range w.nodes {
		if other.up {
			other.after(w.between(100*time.Microsecond, 20*time.Millisecond), other.applyAnnouncements)
		}
	}
	var poll func()
	poll = func() {
		switch {
		case w.appliedEverywhere(version) || answer.Refusal != nil:
		case w.now >= deadline:
			answer = actor.Answer{Refusal: actor.Refuse(actor.Unavailable, "registry update not applied by all cells")}
		default:
			n.after(5*time.Millisecond, poll)
			return
		}
		if replyLost && w.acts(ToolReplyLost) {
			n.after(op.Left+time.Second, func() { n.untrackEffect(d) })
		} else {
			n.completeEffect(d, op.Left, func() actor.Answer { return answer })
		}
		if replyLost {
			recordChange(w, ToolReplyLost, false, n.awaitsOutcome(d), "the reply to the registry's announcement is lost")
		}
	}
	n.after(5*time.Millisecond, poll)
}

// appliedEverywhere reports whether all running cells have applied at least count
// announcements.
func (w *Simulation) appliedEverywhere(count int) bool {
	for _, n := range w.nodes {
		if !n.up {
			continue
		}
		if n.catalog.announcementsApplied < count || slices.ContainsFunc(n.cells, func(c *cell) bool { return !c.stopped && c.announcementsSeen < count }) {
			return false
		}
	}
	return true
}

// applyAnnouncements applies the pending announcements to the catalog, in their
// order.
func (n *node) applyAnnouncements() {
	w, d := n.w, n.catalog
	if d.announcementsApplied == len(w.announcements) {
		return
	}
	for _, items := range w.announcements[d.announcementsApplied:] {
		for _, item := range items {
			at, found := slices.BinarySearchFunc(d.items, item.Name, func(i actor.StateItem, name string) int { return strings.Compare(i.Name, name) })
			switch {
			case found && len(item.Value) == 0:
				d.items = slices.Delete(d.items, at, at+1)
			case found:
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

// sendAgentsToCells sends the current agents to all cells of the node.
func (n *node) sendAgentsToCells() {
	for _, c := range n.cells {
		in := input{orderGroup: orderWorld, in: n.runtimeAgents()}
		if n.catalog != nil {
			applied := n.catalog.announcementsApplied
			in.onStepped = func() { c.announcementsSeen = applied }
		}
		c.enqueue(in)
	}
	w := n.w
	if w.withdrawnAgent < 0 || w.withdrawalFelt {
		return
	}
	name := w.plan.Agents[w.withdrawnAgent].Name
	known := slices.ContainsFunc(n.runtimeAgents().Definitions, func(d actor.Definition) bool { return d.Name == name })
	w.withdrawalFelt = recordChange(w, AgentNotFound, true, known, "%s no longer has agent %s", n.id, name)
}
