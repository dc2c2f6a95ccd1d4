// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/host/gateway"
	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// catalogSync carries what the registry keeps to all whom it concerns: cells, the
// door and the way out. It reads the registry's journal once, before there are
// cells; from then on the registry announces what changes.
type catalogSync struct {
	log    *slog.Logger
	tools  *tools.Registry
	native []actor.Definition // no registry keeps them; the registry is one of them
	keys   gateway.Keys

	reader   *agents.CatalogReader
	attached chan struct{} // closed: all who are to hear are there

	mu       sync.Mutex
	items    map[string][]byte
	catalog  agents.Catalog
	engine   *engine.Engine
	outbound *outbound.Outbound
	trace    *traceFile
}

// loadCatalog reads the registry's journal.
func loadCatalog(kv store.KV, native []actor.Definition, log *slog.Logger) (*catalogSync, error) {
	var names []string
	for _, def := range native {
		names = append(names, def.Name)
	}
	d := &catalogSync{log: log, tools: tools.NewRegistry(), native: append(native, agents.Registry(names...)), items: map[string][]byte{}}
	err := d.tools.RegisterBuiltin(tools.Tool{Name: agents.ToolAnnounce, Description: "Tells this node which agents and keys there are.",
		Schema: agents.AnnounceSchema, Idempotent: true, Handler: d.announce})
	if err != nil {
		return nil, err
	}
	d.reader, d.attached = agents.NewCatalogReader(d.tools), make(chan struct{})
	saved, err := store.LoadActor(kv, agents.RegistryID)
	if err != nil {
		return nil, fmt.Errorf("the registry: %w", err)
	}
	journal, err := store.Fold(saved)
	if err != nil {
		return nil, fmt.Errorf("the registry: %w", err)
	}
	for _, item := range journal.KeptNow() {
		d.items[item.Name] = item.Value
	}
	if err := d.compile(); err != nil {
		return nil, err
	}
	for _, s := range d.catalog.Specs {
		if slices.Contains(names, s.ID) {
			return nil, fmt.Errorf("there are two agents %s: one was created in this store, one is a part of this program: "+
				"serve without --ready, and if you want the other, delete it first (curl -X DELETE …/v1/agents/%[1]s)", s.ID)
		}
	}
	return d, nil
}

// compile reads what is kept, and gives the door its keys.
func (d *catalogSync) compile() error {
	var items []actor.StateItem
	for _, name := range slices.Sorted(maps.Keys(d.items)) {
		items = append(items, actor.StateItem{Name: name, Value: d.items[name]})
	}
	compiled, err := d.reader.Read(items)
	if err != nil {
		return err
	}
	var keys []ingress.Key
	for _, item := range compiled.Keys {
		key, err := ingress.DecodeKey(item.Value)
		if err != nil {
			return fmt.Errorf("the registry keeps a key that this version cannot read: %w", err)
		}
		keys = append(keys, key)
	}
	d.catalog = compiled
	d.keys.Set(keys)
	return nil
}

// warnMissing warns of what agents have to do without.
func (d *catalogSync) warnMissing(of func(id string) bool) (all []string) {
	for _, s := range d.catalog.Specs {
		if !of(s.ID) {
			continue
		}
		for _, text := range s.AvailabilityWarnings(d.tools, d.outbound.Models()) {
			d.log.Warn(text)
			all = append(all, text)
		}
	}
	return all
}

// definitions are the agents that exist, and those that runs may still have.
func (d *catalogSync) definitions() (now, former []actor.Definition) {
	return slices.Concat(d.native, d.catalog.Definitions), d.catalog.Former
}

// externalAgents are the agents to look after.
func (d *catalogSync) externalAgents() []outbound.Agent {
	var all []outbound.Agent
	for _, s := range d.catalog.Specs {
		if s.Kind == agents.KindExternal {
			all = append(all, outbound.Agent{Name: s.ID, Target: upstream.Target{URL: s.Endpoint, AuthEnv: s.Auth.Env, Concurrency: s.Concurrency}})
		}
	}
	return all
}

// attach names those who are to hear of changes. How things stood they were told
// when they were made, and nothing has changed since: announcements wait for this.
func (d *catalogSync) attach(e *engine.Engine, out *outbound.Outbound, trace *traceFile) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.engine, d.outbound, d.trace = e, out, trace
	close(d.attached)
	d.warnMissing(func(string) bool { return true })
}

// publish says how things stand, and returns when every cell knows.
func (d *catalogSync) publish(ctx context.Context) error {
	now, former := d.definitions()
	d.trace.addAgents(now)
	d.outbound.SetAgents(d.externalAgents())
	return d.engine.Define(ctx, now, former)
}

// announce is the tool with which the registry says what it keeps from now on.
func (d *catalogSync) announce(ctx context.Context, input []byte) tools.Result {
	items, err := agents.ReadAnnouncement(input)
	if err != nil {
		return tools.Refused(actor.Refuse(actor.Invalid, "%v", err))
	}
	select {
	case <-d.attached:
	case <-ctx.Done(): // the registry was at work when the node stopped, and is ahead of us
		return tools.Refused(actor.Refuse(actor.Unavailable, "this node is only just starting"))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	changed := map[string]bool{}
	for _, item := range items {
		if id, ok := agents.AgentOf(item); ok {
			changed[id] = true
		}
		if len(item.Value) == 0 {
			delete(d.items, item.Name)
		} else {
			d.items[item.Name] = item.Value
		}
	}
	if err := d.compile(); err != nil {
		d.log.Error("what the registry announced cannot be used", "error", err.Error())
		return tools.Refused(actor.Refuse(actor.Unavailable, "%v", err))
	}
	if err := d.publish(ctx); err != nil {
		return tools.Refused(actor.Refuse(actor.Unavailable, "not every cell has heard of it: %v", err))
	}
	result := tools.JSON([]byte("{}"))
	result.Warnings = d.warnMissing(func(id string) bool { return changed[id] })
	return result
}

// spec is what there is of an agent; false if there is none of that name.
func (d *catalogSync) spec(id string) (agents.Spec, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := slices.IndexFunc(d.catalog.Specs, func(s agents.Spec) bool { return s.ID == id })
	if i < 0 {
		return agents.Spec{}, false
	}
	return d.catalog.Specs[i], true
}
