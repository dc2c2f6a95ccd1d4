// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/memory"
	"github.com/troupe-run/troupe/tools"
)

// MediaMemory is the media type of a change of what is remembered. Events show no parts of it: what is
// forgotten leaves with the journal of the scope, which alone holds it.
const MediaMemory = "application/vnd.troupe.memory"

// Memory returns the system agents that remember, one for each scope.
func Memory() []actor.Definition {
	var all []actor.Definition
	for _, scope := range memory.Scopes {
		name := scope.AgentOf()
		def := Define(name, "1", "Remembers what is known in the scope "+string(scope)+".", Pure(Config{Name: name, Version: "1"}, memoryStep))
		def.System = true
		all = append(all, def)
	}
	return all
}

func memoryStep(_ Config, state State) (Action, error) {
	call := &state.Request.Call
	if len(call.Parts) != 1 {
		return EndRefused(actor.Refuse(actor.Invalid, "want one part with a change, got %d", len(call.Parts))), nil
	}
	c, err := memory.DecodeChange(call.Parts[0].Bytes)
	if err != nil {
		return EndRefused(actor.Refuse(actor.Invalid, "change of what is remembered: %v", err)), nil
	}
	updates, answer, refusal := memory.Apply(call.Operation, &c, state.Request.ActorState, state.Request.At)
	if refusal != nil {
		return EndRefused(refusal), nil
	}
	action := Complete(string(answer.Encode()))
	action.StateUpdates = updates
	return action, nil
}

// MemoryGrants are what an agent may do with what is remembered, if its node remembers at all.
type MemoryGrants struct {
	Search   bool     `json:"search,omitzero"`
	Create   bool     `json:"create,omitzero"`
	Traverse bool     `json:"traverse,omitzero"`
	Forget   bool     `json:"forget,omitzero"`
	Scope    []string `json:"scope,omitempty"` // the first one is the default of its tools
}

// Tools returns the tools that the grants allow.
func (g *MemoryGrants) Tools() (all []string) {
	for _, t := range []struct {
		granted bool
		name    string
	}{{g.Search, tools.MemorySearch}, {g.Create, tools.MemoryCreate}, {g.Traverse, tools.MemoryTraverse}, {g.Forget, tools.MemoryForget}} {
		if t.granted {
			all = append(all, t.name)
		}
	}
	return all
}

// SetDefaults sets the scope of grants that name none.
func (g *MemoryGrants) SetDefaults() {
	if len(g.Tools()) > 0 && len(g.Scope) == 0 {
		g.Scope = []string{string(memory.Session)}
	}
}

// Check returns an error if grants of a program are not ones that a file could state.
func (g *MemoryGrants) Check() error {
	for i, name := range g.Scope {
		if _, err := memory.ParseScope(name); err != nil {
			return fmt.Errorf("scope: %w", err)
		}
		if slices.Contains(g.Scope[:i], name) {
			return fmt.Errorf("scope: names %s twice", name)
		}
	}
	if len(g.Tools()) == 0 && len(g.Scope) > 0 {
		return errors.New("scope: without search, create, traverse or forget it grants nothing")
	}
	return nil
}

// ScopeFor returns the scope that a use of a tool names, or by default the first one that the agent has.
func (g *MemoryGrants) ScopeFor(agent, tool, scope string) (memory.Scope, *actor.Refusal) {
	if !slices.Contains(g.Tools(), tool) {
		return "", actor.Refuse(actor.Rejected, "agent %s may not use %s: its definition has to say memory = {%s = true}", agent, tool, strings.TrimPrefix(tool, "memory_"))
	}
	if scope == "" {
		scope = g.Scope[0]
	}
	if !slices.Contains(g.Scope, scope) {
		r := actor.Refuse(actor.Rejected, "scope: %.40q is not granted to agent %s, which has %s", scope, agent, strings.Join(g.Scope, ", "))
		r.Field = "scope"
		return "", r
	}
	if scope == string(memory.Global) && (tool == tools.MemoryCreate || tool == tools.MemoryForget) {
		r := actor.Refuse(actor.Rejected, "scope: global is written by operators; agents read it")
		r.Field = "scope"
		return "", r
	}
	return memory.Scope(scope), nil
}

// setMemoryScope sets the scopes of an agent: the name of one, or a list.
func setMemoryScope(s *Spec, v any) error {
	if name, ok := v.(string); ok {
		v = []any{name}
	}
	return list(len(memory.Scopes), func(s *Spec) *[]string { return &s.Memory.Scope }, func(name string) error {
		_, err := memory.ParseScope(name)
		return err
	})(s, v)
}

// offered returns the tools that the model of the agent is offered.
func (s *Spec) offered() []string {
	offered := slices.Clip(s.Tools)
	for _, name := range s.Memory.Tools() {
		if !slices.Contains(s.Tools, name) { // models refuse two tools of one name
			offered = append(offered, name)
		}
	}
	return offered
}
