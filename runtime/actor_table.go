// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
)

// actorTable holds the actors that are in memory or being loaded. A cell may hold a
// million actors. To save memory, the actors of one agent share one copy of its
// name and are found by key.
type actorTable struct {
	groups map[groupKey]*agentGroup
	count  int
	recent [recentActors]*activation // last found in each slot: a message mostly goes where one went before
}

// recentActors is a power of two. The slots of a cell take 4 KiB.
const recentActors = 512

// slotOf returns the slot of an actor. Keys often differ at their ends only, and the agents of a session
// have the same.
func slotOf(id *actor.ID) uint {
	h := uint(len(id.Key))
	for _, b := range []byte(id.Key[max(0, len(id.Key)-8):]) {
		h = h*31 + uint(b)
	}
	for _, b := range []byte(id.Agent[max(0, len(id.Agent)-4):]) {
		h = h*31 + uint(b)
	}
	return h % recentActors
}

// groupKey identifies the actors of one agent.
type groupKey struct{ tenant, agent string }

type agentGroup struct {
	groupKey
	byKey map[string]*activation
	peak  int // maximum size of byKey since it was created
}

// A Go map never shrinks. A group that once held more than groupShrinkMin actors is
// rebuilt when it holds less than one in groupShrinkTo of its peak. The rebuilding of a
// group of a million actors takes a few milliseconds, so the share is small.
const (
	groupShrinkMin = 1024
	groupShrinkTo  = 16
)

func newActorTable() actorTable { return actorTable{groups: map[groupKey]*agentGroup{}} }

// find returns the actor with that id, or nil.
func (t *actorTable) find(id actor.ID) *activation {
	recent := &t.recent[slotOf(&id)]
	if *recent != nil && (*recent).id == id {
		return *recent
	}
	if g := t.groups[groupKey{id.Tenant, id.Agent}]; g != nil {
		if act := g.byKey[id.Key]; act != nil {
			*recent = act
			return act
		}
	}
	return nil
}

// add adds an actor that MUST NOT be in the table. It clones the strings of the id,
// so that the actor does not retain the message that contained the id.
func (t *actorTable) add(id actor.ID, act *activation) {
	g := t.groups[groupKey{id.Tenant, id.Agent}]
	if g == nil {
		g = &agentGroup{groupKey{strings.Clone(id.Tenant), strings.Clone(id.Agent)}, map[string]*activation{}, 0}
		t.groups[g.groupKey] = g
	}
	act.id = actor.ID{Tenant: g.tenant, Agent: g.agent, Key: strings.Clone(id.Key)}
	g.byKey[act.id.Key] = act
	g.peak = max(g.peak, len(g.byKey))
	t.count++
}

func (t *actorTable) remove(act *activation) {
	act.gone = true
	if recent := &t.recent[slotOf(&act.id)]; *recent == act {
		*recent = nil
	}
	g := t.groups[groupKey{act.id.Tenant, act.id.Agent}]
	delete(g.byKey, act.id.Key)
	switch {
	case len(g.byKey) == 0:
		delete(t.groups, g.groupKey)
	case g.peak > groupShrinkMin && len(g.byKey) < g.peak/groupShrinkTo:
		rest := make(map[string]*activation, len(g.byKey))
		maps.Insert(rest, maps.All(g.byKey))
		g.byKey, g.peak = rest, len(rest)
	}
	t.count--
}

// ordered returns the actors sorted by id, because map order MUST NOT influence a
// step.
func (t *actorTable) ordered() []*activation {
	sorted := make([]*activation, 0, t.count)
	for _, g := range slices.SortedFunc(maps.Values(t.groups), (*agentGroup).compare) {
		sorted = append(sorted, slices.SortedFunc(maps.Values(g.byKey), (*activation).compare)...)
	}
	return sorted
}

func (g *agentGroup) compare(other *agentGroup) int {
	return cmp.Or(cmp.Compare(g.tenant, other.tenant), cmp.Compare(g.agent, other.agent))
}

func (act *activation) compare(b *activation) int { return act.id.Compare(b.id) }
