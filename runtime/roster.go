// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
)

// roster is the actors of a cell that are in memory, or being read. There may be
// a million: all of one agent share its name, and each is found by its key.
type roster struct {
	families map[family]*members
	count    int
}

// family is what actors of one agent have in common.
type family struct{ tenant, agent string }

type members struct {
	family
	byKey map[string]*activation
}

func newRoster() roster { return roster{families: map[family]*members{}} }

// find is the actor of that id; nil if it is not here.
func (r *roster) find(id actor.ID) *activation {
	if m := r.families[family{id.Tenant, id.Agent}]; m != nil {
		return m.byKey[id.Key]
	}
	return nil
}

// add takes in an actor that is not here, under an id that keeps nothing else in
// memory of what brought it.
func (r *roster) add(id actor.ID, act *activation) {
	m := r.families[family{id.Tenant, id.Agent}]
	if m == nil {
		m = &members{family{strings.Clone(id.Tenant), strings.Clone(id.Agent)}, map[string]*activation{}}
		r.families[m.family] = m
	}
	act.id = actor.ID{Tenant: m.tenant, Agent: m.agent, Key: strings.Clone(id.Key)}
	m.byKey[act.id.Key] = act
	r.count++
}

func (r *roster) remove(act *activation) {
	m := r.families[family{act.id.Tenant, act.id.Agent}]
	delete(m.byKey, act.id.Key)
	if len(m.byKey) == 0 {
		delete(r.families, m.family)
	}
	r.count--
}

// ordered is the actors by id: no order of a map ever shows.
func (r *roster) ordered() []*activation {
	all := make([]*activation, 0, r.count)
	for _, m := range slices.SortedFunc(maps.Values(r.families), (*members).compare) {
		all = append(all, slices.SortedFunc(maps.Values(m.byKey), (*activation).compare)...)
	}
	return all
}

func (m *members) compare(n *members) int {
	return cmp.Or(cmp.Compare(m.tenant, n.tenant), cmp.Compare(m.agent, n.agent))
}

func (a *activation) compare(b *activation) int { return a.id.Compare(b.id) }
