// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"github.com/troupe-run/troupe/actor"
)

// Bounds of a traversal.
const (
	DepthMax   = 3
	ReachedMax = 200
)

// Reached is an entity at the end of a relation.
type Reached struct {
	From     string     `json:"from"`
	Relation string     `json:"relation"`
	Entity   string     `json:"entity"`
	Depth    int        `json:"depth"`
	Since    actor.Time `json:"since"`
	Facts    []Fact     `json:"facts,omitempty"` // valid ones

	key string
}

// Traverse returns the entities that relations of a name lead to, within a number of steps and each once;
// an empty name means every relation. Nearer ones are first. It reports whether there are more than
// ReachedMax.
func (x *Index) Traverse(from, relation string, depth int) (all []Reached, more bool, refusal *actor.Refusal) {
	start := x.entities[Key(from)]
	if start == nil {
		return nil, false, NotFound(from)
	}
	seen := map[string]bool{Key(from): true}
	level := []*indexed{start}
	for d := 1; d <= depth && len(level) > 0; d++ {
		var next []*indexed
		for _, e := range level {
			reached, entities := x.step(e, relation)
			for i, r := range reached {
				if seen[r.key] {
					continue
				}
				if len(all) == ReachedMax {
					return all, true, nil
				}
				r.Depth, seen[r.key] = d, true
				all, next = append(all, r), append(next, entities[i])
			}
		}
		level = next
	}
	return all, false, nil
}

// step follows the relations of one entity. One to an entity that was forgotten since leads nowhere.
func (x *Index) step(e *indexed, relation string) (all []Reached, entities []*indexed) {
	for _, rel := range e.Relations {
		to := x.entities[rel.To]
		if relation != "" && rel.Name != relation || to == nil || to.Created > rel.From {
			continue
		}
		r := Reached{From: e.Name, Relation: rel.Name, Entity: to.Name, Since: rel.From, key: rel.To}
		for i := range to.Facts {
			if to.Facts[i].Valid() {
				r.Facts = append(r.Facts, to.Facts[i])
			}
		}
		all, entities = append(all, r), append(entities, to)
	}
	return all, entities
}
