// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// catalogSync publishes the agents, declared tools and API keys of the registry to the
// cells, the gateway and the egress. It reads the registry's journal once, before the cells
// start. After that the registry announces each change.
type catalogSync struct {
	log    *slog.Logger
	own    *tools.Registry                 // of this program, with the policy
	tools  *tools.Registry                 // own, and the tools of MCP servers; the catalog has the declared ones as well
	native []actor.Definition              // agents that the registry does not store, and the registry itself
	keys   Keys                            // nil: keys are not published
	shared *atomic.Pointer[tools.Registry] // see Config.Registry

	reader    *agents.CatalogReader
	attached  chan struct{}                  // closed by attach; announcements wait for it
	memories  *memories                      // set before attach; nil: the node does not remember
	grants    map[string]agents.MemoryGrants // of agents that are programs, by name
	offered   map[string][]string            // tools that these list
	schedules *schedules                     // set before attach; nil: the node sends no messages
	commands  *Commands                      // set before attach

	mu       sync.Mutex
	items    map[string][]byte
	catalog  agents.Catalog
	engine   *engine.Engine
	outbound *outbound.Outbound
	trace    *traceFile
}

// Keys receives the API keys of the registry: all of them, again after each
// change.
type Keys interface{ Set(all []ingress.Key) }

// ConflictError reports that a store and a program have an agent of one name.
type ConflictError struct{ Name string }

// Error implements error.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("two agents are named %s: one in this store, one built into this program", e.Name)
}

// loadCatalog reads the registry's journal. It returns a *ConflictError if a stored agent
// has the name of a native one.
func loadCatalog(stored store.Reader, of *Config, log *slog.Logger) (*catalogSync, error) {
	var names, provided []string
	for _, def := range of.Native {
		names = append(names, def.Name)
		for i := range def.Provides {
			provided = append(provided, def.Provides[i].Code)
		}
	}
	c := &catalogSync{log: log, tools: tools.NewRegistry(), native: append(slices.Clip(of.Native), agents.Registry(agents.DefaultQuotas(), agents.NativeNames{Served: names, Reserved: of.Reserved, Provided: provided}), agents.Session(), agents.Contexts()), keys: of.Keys, grants: of.Remembering, offered: of.Offered}
	err := c.tools.RegisterBuiltin(tools.Tool{Name: agents.ToolAnnounce, Description: "Publishes the agents, tools and API keys of the registry to this node.",
		Schema: agents.AnnounceSchema, Idempotent: true, Handler: c.announce})
	if err != nil {
		return nil, err
	}
	err = c.tools.RegisterBuiltin(tools.Tool{Name: agents.ToolOpen, Description: "Returns the definitions that open runs of this node need.",
		Schema: agents.OpenSchema, Idempotent: true, Handler: c.openDefinitions})
	if err != nil {
		return nil, err
	}
	c.registerSessionTools()
	c.native = append(c.native, append(agents.Memory(), agents.Workspaces())...)
	if day := of.Budget.day(); day != nil {
		c.native = append(c.native, agents.Account(*day, of.Budget.Messages))
	}
	if err := errors.Join(c.registerMemory(of.Memory), c.registerBuiltins(of.Builtin)); err != nil {
		return nil, err
	}
	for _, t := range of.Tools {
		if err := c.tools.Register(t); err != nil {
			return nil, err
		}
	}
	if c.own, err = c.tools.With(nil, of.Policy); err != nil {
		return nil, err
	}
	c.attached = make(chan struct{})
	if err := c.addRemote(of.Remote); err != nil {
		return nil, err
	}
	if c.items, err = readRegistry(stored); err != nil {
		return nil, err
	}
	if err := c.compile(); err != nil {
		return nil, err
	}
	for _, s := range c.catalog.Specs {
		if slices.Contains(names, s.ID) {
			return nil, &ConflictError{s.ID}
		}
	}
	return c, nil
}

// addRemote replaces the tools of MCP servers. One with the name of a tool of this program is left
// out.
func (c *catalogSync) addRemote(remote []tools.Tool) error {
	next, err := c.own.With(nil, c.own.Policy())
	if err != nil {
		return err
	}
	for _, t := range remote {
		if err := next.Register(t); err != nil {
			c.log.Warn("tool of an MCP server left out", "error", err.Error())
		}
	}
	c.tools, c.reader = next, agents.NewCatalogReader(next)
	return nil
}

// setRemote is addRemote for a running node. It returns after every cell has the tools.
func (c *catalogSync) setRemote(ctx context.Context, remote []tools.Tool) error {
	select {
	case <-c.attached:
	case <-ctx.Done():
		return ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	changed := changes{map[string]bool{}, map[string]bool{}}
	for _, t := range append(c.tools.Tools(), remote...) {
		if t.Declared != nil && t.Declared.Via == tools.ViaMCP {
			changed.tools[t.Name] = true
		}
	}
	if err := c.addRemote(remote); err != nil {
		return err
	}
	if err := c.compile(); err != nil {
		return err
	}
	if err := c.publish(ctx); err != nil {
		return err
	}
	c.warnMissing(&changed)
	return nil
}

// ReadKeys reads the API keys of a store that no node has open.
func ReadKeys(stored store.Reader, keys Keys) error {
	_, err := loadCatalog(stored, &Config{Keys: keys}, slog.New(slog.DiscardHandler))
	return err
}

// compile decodes the items into the catalog and publishes the keys.
func (c *catalogSync) compile() error {
	var items []actor.StateItem
	for _, name := range slices.Sorted(maps.Keys(c.items)) {
		items = append(items, actor.StateItem{Name: name, Value: c.items[name]})
	}
	compiled, err := c.reader.Read(items)
	if err != nil {
		return err
	}
	var keys []ingress.Key
	for _, item := range compiled.Keys {
		key, err := ingress.DecodeKey(item.Value)
		if err != nil {
			return fmt.Errorf("the registry holds an API key that this version cannot decode: %w", err)
		}
		keys = append(keys, key)
	}
	c.catalog = compiled
	if c.shared != nil {
		c.shared.Store(compiled.Registry)
	}
	if c.keys != nil {
		c.keys.Set(keys)
	}
	return nil
}

// share makes a pointer follow the tools of the catalog.
func (c *catalogSync) share(with *atomic.Pointer[tools.Registry]) {
	if c.shared = with; with != nil {
		with.Store(c.catalog.Registry)
	}
}

// warnMissing logs and returns a warning for each tool and model that is missing on this
// node, for each step of a workflow that no agent provides, for each secret that it may not send, and for each address that it may not reach. It covers the changed agents and tools,
// and all of them if changed is nil.
func (c *catalogSync) warnMissing(changed *changes) (warnings []string) {
	warn := func(text string) {
		c.log.Warn(text)
		warnings = append(warnings, text)
	}
	for _, name := range c.catalog.Hidden {
		if changed == nil || changed.tools[name] {
			warn(fmt.Sprintf("tool %s: this program has a tool of this name, which is used instead; delete the declared one", name))
		}
	}
	for _, tool := range c.catalog.Invalid {
		if changed == nil || changed.tools[tool.Name] {
			warn(fmt.Sprintf("tool %s: its stored definition is not valid and left out; declare it again or delete it: %.500v", tool.Name, tool.Err))
		}
	}
	for i := range c.catalog.Tools {
		d := &c.catalog.Tools[i]
		if changed != nil && !changed.tools[d.Name] {
			continue
		}
		if err := cmp.Or(c.permitTool(&d.Declared), c.outbound.CheckAddress(d.URL)); err != nil {
			warn(fmt.Sprintf("tool %s: %v", d.Name, err))
		}
	}
	var provided []string
	current, _ := c.definitions()
	for i := range current {
		for k := range current[i].Provides {
			provided = append(provided, current[i].Provides[k].Code)
		}
	}
	for i := range c.catalog.Specs {
		s := &c.catalog.Specs[i]
		if changed != nil && !changed.agents[s.ID] && !slices.ContainsFunc(s.MissingTools(c.catalog.Registry), func(name string) bool { return changed.tools[name] }) {
			continue
		}
		for _, text := range append(s.AvailabilityWarnings(c.catalog.Registry, c.outbound.Models()), s.WorkflowWarnings(provided)...) {
			warn(text)
		}
		if err := cmp.Or(c.outbound.Permit(s.Endpoint, s.Auth.Env), c.outbound.CheckAddress(s.Endpoint)); err != nil {
			warn(fmt.Sprintf("agent %s: %v", s.ID, err))
		}
	}
	return warnings
}

// permitTool returns an error if this node cannot perform a server tool, or may not send a
// secret of its headers to its URL.
func (c *catalogSync) permitTool(d *tools.Declared) error {
	if d.Kind == tools.KindClient {
		return nil
	}
	return c.outbound.PermitTool(d)
}

// changes are the IDs of the agents and the names of the declared tools that an
// announcement has changed.
type changes struct{ agents, tools map[string]bool }

// definitions returns the current agents, and former ones that open runs may still
// use.
func (c *catalogSync) definitions() (current, former []actor.Definition) {
	return slices.Concat(c.native, c.catalog.Definitions), c.catalog.Former
}

// published returns the definitions that the cells have, or get next.
func (c *catalogSync) published() ([]actor.Definition, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	current, former := c.definitions()
	return slices.Concat(current, former), nil
}

// externalAgents returns the external agents that the egress calls and polls.
func (c *catalogSync) externalAgents() []outbound.Agent {
	var all []outbound.Agent
	for _, s := range c.catalog.Specs {
		if s.Kind == agents.KindExternal {
			all = append(all, outbound.Agent{Name: s.ID, Target: upstream.Target{URL: s.Endpoint, AuthEnv: s.Auth.Env, Sealed: s.Auth.Sealed, Concurrency: s.Concurrency, Retry: s.RetryPolicy()}})
		}
	}
	return all
}

// attach sets the receivers of changes. They were created with the current catalog.
// It cannot have changed since, because announcements wait for attach.
func (c *catalogSync) attach(e *engine.Engine, out *outbound.Outbound, trace *traceFile) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.engine, c.outbound, c.trace = e, out, trace
	close(c.attached)
	c.warnMissing(nil)
	c.schedules.set(&c.catalog)
}

// publish sends the catalog to all receivers. It returns after every cell has
// applied it.
func (c *catalogSync) publish(ctx context.Context) error {
	current, former := c.definitions()
	c.trace.addAgents(current)
	c.outbound.SetAgents(c.externalAgents())
	if err := c.engine.Define(ctx, current, former, c.catalog.Registry); err != nil {
		return err
	}
	c.schedules.set(&c.catalog)
	return nil
}

// reload reads the registry again, which another member has changed, and returns once every cell has applied it.
func (c *catalogSync) reload(ctx context.Context, stored store.Reader) error {
	select {
	case <-c.attached:
	case <-ctx.Done():
		return ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	items, err := readRegistry(stored)
	if err != nil {
		return err
	}
	if maps.EqualFunc(items, c.items, bytes.Equal) {
		return nil
	}
	changed := changes{map[string]bool{}, map[string]bool{}}
	for name, value := range items {
		item := actor.StateItem{Name: name, Value: value}
		if was, known := c.items[name]; known && bytes.Equal(was, value) {
			continue
		}
		if id, ok := agents.AgentOf(item); ok {
			changed.agents[id] = true
		}
		if name, ok := agents.ToolOf(item); ok {
			changed.tools[name] = true
		}
	}
	c.items = items
	if err := c.compile(); err != nil {
		return err
	}
	if err := c.publish(ctx); err != nil {
		return err
	}
	for id := range changed.agents {
		c.outbound.Heartbeat(id) // a registration is a sign of life
	}
	c.warnMissing(&changed)
	return nil
}

// readRegistry returns the items of the registry in a store.
func readRegistry(stored store.Reader) (map[string][]byte, error) {
	saved, err := stored.Load(agents.RegistryID)
	if err != nil {
		return nil, &disk.DamageError{Err: fmt.Errorf("registry: %w", err)}
	}
	journal, err := store.Fold(saved)
	if err != nil {
		return nil, &disk.DamageError{Err: fmt.Errorf("registry: %w", err)}
	}
	items := map[string][]byte{}
	for _, item := range journal.EffectiveState() {
		items[item.Name] = item.Value
	}
	return items, nil
}

// scheduling begins or ends the schedules, which one member of a cluster performs.
func (c *catalogSync) scheduling(on bool, newest actor.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.schedules.switchTo(on, newest)
	if on {
		c.schedules.set(&c.catalog)
	}
}

// announce implements the tool through which the registry reports changed items. An
// item without a value is a deletion.
func (c *catalogSync) announce(ctx context.Context, input []byte) tools.Result {
	items, err := agents.ReadAnnouncement(input)
	if err != nil {
		return tools.Refused(actor.Refuse(actor.Invalid, "%v", err))
	}
	select {
	case <-c.attached:
	case <-ctx.Done(): // a registry turn, open when the node stopped, resumed before attach
		return tools.Refused(actor.RefuseUnavailable(time.Second, "this node is starting"))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	changed := changes{map[string]bool{}, map[string]bool{}}
	for _, item := range items {
		if id, ok := agents.AgentOf(item); ok {
			changed.agents[id] = true
		}
		if name, ok := agents.ToolOf(item); ok {
			changed.tools[name] = true
		}
		if len(item.Value) == 0 {
			delete(c.items, item.Name)
		} else {
			c.items[item.Name] = item.Value
		}
	}
	if err := c.compile(); err != nil {
		c.log.Error("invalid registry update", "error", err.Error())
		return tools.Refused(actor.Refuse(actor.Unavailable, "%v", err))
	}
	if err := c.publish(ctx); err != nil {
		return tools.Refused(actor.RefuseUnavailable(time.Second, "registry update not applied by all cells: %v", err))
	}
	c.commands.members.registryChanged()
	for _, item := range items {
		if id, ok := agents.AgentOf(item); ok && len(item.Value) > 0 {
			c.outbound.Heartbeat(id) // a registration is a sign of life
		}
	}
	result := tools.JSON([]byte("{}"))
	result.Warnings = c.warnMissing(&changed)
	return result
}

// openDefinitions implements the tool through which the registry learns which former
// definitions it must keep.
func (c *catalogSync) openDefinitions(ctx context.Context, input []byte) tools.Result {
	select {
	case <-c.attached:
	case <-ctx.Done():
		return tools.Refused(actor.RefuseUnavailable(time.Second, "this node is starting"))
	}
	asked, err := agents.ReadDefinitions(input)
	if err != nil {
		return tools.Refused(actor.Refuse(actor.Invalid, "%v", err))
	}
	open, err := c.commands.openDefinitions(ctx, asked)
	var r *actor.Refusal
	switch {
	case errors.As(err, &r):
		return tools.Refused(r)
	case err != nil:
		return tools.Refused(actor.Refuse(actor.Unavailable, "%v", err))
	}
	return tools.JSON(agents.EncodeOpen(open))
}

// registered returns a tool of this node.
func (c *catalogSync) registered(name string) (tools.Tool, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.catalog.Registry.Tool(name)
}

// declaredTools returns the declared tools, sorted by name.
func (c *catalogSync) declaredTools() []agents.DeclaredTool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.catalog.Tools)
}

// listedTools returns the declared tools and those of the program that are like them, sorted by
// name. The latter belong to the operator.
func (c *catalogSync) listedTools() []agents.DeclaredTool {
	all := c.declaredTools()
	c.mu.Lock()
	own := c.tools
	c.mu.Unlock()
	for _, t := range own.Tools() {
		if t.Declared != nil {
			all = append(all, agents.DeclaredTool{Declared: *t.Declared, Owner: agents.Operator})
		}
	}
	slices.SortFunc(all, func(a, b agents.DeclaredTool) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// spec returns the stored agent of this ID, its owner and who has stored it last; false if there is none.
func (c *catalogSync) spec(id string) (spec agents.Spec, owner, by string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.catalog.Specs, func(s agents.Spec) bool { return s.ID == id })
	if i < 0 {
		return agents.Spec{}, "", "", false
	}
	return c.catalog.Specs[i], c.catalog.Owners[i], c.catalog.AcceptedBy[i].User, true
}
