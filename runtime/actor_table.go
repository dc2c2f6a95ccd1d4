// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
)

// actorTable is the actors of a cell that are in memory, or being read. There may be
// a million: all of one agent share its name, and each is found by its key.
type actorTable struct {
	groups map[groupKey]*agentGroup
	count  int
}

// groupKey is what actors of one agent have in common.
type groupKey struct{ tenant, agent string }

type agentGroup struct {
	groupKey
	byKey map[string]*activation
}

func newActorTable() actorTable { return actorTable{groups: map[groupKey]*agentGroup{}} }

// find is the actor of that id; nil if it is not here.
func (r *actorTable) find(id actor.ID) *activation {
	if m := r.groups[groupKey{id.Tenant, id.Agent}]; m != nil {
		return m.byKey[id.Key]
	}
	return nil
}

// add takes in an actor that is not here, under an id that keeps nothing else in
// memory of what brought it.
func (r *actorTable) add(id actor.ID, act *activation) {
	m := r.groups[groupKey{id.Tenant, id.Agent}]
	if m == nil {
		m = &agentGroup{groupKey{strings.Clone(id.Tenant), strings.Clone(id.Agent)}, map[string]*activation{}}
		r.groups[m.groupKey] = m
	}
	act.id = actor.ID{Tenant: m.tenant, Agent: m.agent, Key: strings.Clone(id.Key)}
	m.byKey[act.id.Key] = act
	r.count++
}

func (r *actorTable) remove(act *activation) {
	m := r.groups[groupKey{act.id.Tenant, act.id.Agent}]
	delete(m.byKey, act.id.Key)
	if len(m.byKey) == 0 {
		delete(r.groups, m.groupKey)
	}
	r.count--
}

// ordered is the actors by id: no order of a map ever shows.
func (r *actorTable) ordered() []*activation {
	all := make([]*activation, 0, r.count)
	for _, m := range slices.SortedFunc(maps.Values(r.groups), (*agentGroup).compare) {
		all = append(all, slices.SortedFunc(maps.Values(m.byKey), (*activation).compare)...)
	}
	return all
}

func (m *agentGroup) compare(n *agentGroup) int {
	return cmp.Or(cmp.Compare(m.tenant, n.tenant), cmp.Compare(m.agent, n.agent))
}

func (a *activation) compare(b *activation) int { return a.id.Compare(b.id) }
