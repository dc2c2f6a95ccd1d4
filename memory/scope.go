// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"fmt"
	"strings"

	"github.com/troupe-run/troupe/actor"
)

// Scope is who shares what is remembered.
type Scope string

// The scopes. All but Global belong to the namespace of one user.
const (
	Session   Scope = "session"   // the agents of a session; deleted with it
	Agent     Scope = "agent"     // the sessions of an agent
	Workspace Scope = "workspace" // all agents and sessions of a user
	Global    Scope = "global"    // everybody; written by operators
)

// Scopes lists the scopes.
var Scopes = []Scope{Session, Agent, Workspace, Global}

// scopeAgents are the agents whose actors hold the scopes.
var scopeAgents = map[Scope]string{
	Session:   actor.MemoryAgent,
	Agent:     actor.MemoryAgent + ".agent",
	Workspace: actor.MemoryAgent + ".workspace",
	Global:    actor.MemoryAgent + ".global",
}

// ParseScope returns the scope of a name.
func ParseScope(name string) (Scope, error) {
	if _, ok := scopeAgents[Scope(name)]; !ok {
		return "", fmt.Errorf("%.40q: want session, agent, workspace or global", name)
	}
	return Scope(name), nil
}

// AgentOf returns the system agent of a scope.
func (s Scope) AgentOf() string { return scopeAgents[s] }

// ID returns the actor of a scope. The key is the session or the agent; other scopes have none.
func (s Scope) ID(tenant, key string) (actor.ID, error) {
	switch s {
	case Session, Agent:
		if key == "" {
			return actor.ID{}, fmt.Errorf("is missing: want that of which the scope %s is", s)
		}
		if err := actor.CheckName(key); err != nil {
			return actor.ID{}, err
		}
	case Workspace:
		key = actor.DefaultKey
	case Global:
		tenant, key = actor.DefaultTenant, actor.DefaultKey
	}
	return actor.ID{Tenant: tenant, Agent: s.AgentOf(), Key: key}, nil
}

// ScopeOf returns the scope that an actor holds; false if it holds none.
func ScopeOf(id actor.ID) (Scope, bool) {
	if !strings.HasPrefix(id.Agent, actor.MemoryAgent) {
		return "", false
	}
	for _, s := range Scopes {
		if s.AgentOf() == id.Agent {
			return s, true
		}
	}
	return "", false
}
