// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"math"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
)

// The JSON that clients and models get. Times are in RFC 3339.

// FactView is a fact with its validity and its source.
type FactView struct {
	Fact         string `json:"fact"` // its ID
	Content      string `json:"content"`
	ValidFrom    string `json:"valid_from"`
	ValidUntil   string `json:"valid_until,omitzero"`
	SupersededBy string `json:"superseded_by,omitzero"`
	Reason       string `json:"reason,omitzero"`
	Source       Source `json:"source"`
}

// HitView is a fact that a search has found.
type HitView struct {
	Entity   string `json:"entity"`
	FactView `json:",inline"`
	Score    float64 `json:"score"`
}

// SearchView is the result of a search.
type SearchView struct {
	Scope    Scope     `json:"scope"`
	Position uint64    `json:"position"`
	Hits     []HitView `json:"hits"`
}

// RelationView is a relation that leads to another entity.
type RelationView struct {
	From     string     `json:"from"`
	Relation string     `json:"relation"`
	Entity   string     `json:"entity"`
	Depth    int        `json:"depth"`
	Since    string     `json:"since"`
	Facts    []FactView `json:"facts,omitempty"`
}

// EntityView is an entity with its facts, oldest first, and its relations.
type EntityView struct {
	Scope     Scope          `json:"scope"`
	Position  uint64         `json:"position"`
	Entity    string         `json:"entity"`
	CreatedAt string         `json:"created_at"`
	Facts     []FactView     `json:"facts"`
	Relations []RelationView `json:"relations"`
}

// PageView is a page of entities.
type PageView struct {
	Scope    Scope        `json:"scope"`
	Position uint64       `json:"position"`
	Entities []EntityView `json:"entities"`
	Next     string       `json:"next,omitzero"` // name to continue after
}

// TraverseView is the result of a traversal.
type TraverseView struct {
	Scope    Scope          `json:"scope"`
	Position uint64         `json:"position"`
	Reached  []RelationView `json:"reached"`
	More     bool           `json:"more,omitzero"` // there are more than ReachedMax
}

// ChangeView is the answer to a change.
type ChangeView struct {
	Scope    Scope  `json:"scope"`
	Entity   string `json:"entity"`
	Status   Status `json:"status"`
	Fact     string `json:"fact,omitzero"`
	At       string `json:"at"`
	Position uint64 `json:"position"`
	Similar  []Near `json:"similar,omitempty"` // facts that say nearly the same; nothing was merged
}

func encodeView(v any) []byte { return invariant.Must(json.Marshal(v, json.Deterministic(true))) }

func viewTime(at actor.Time) string {
	if at == 0 {
		return ""
	}
	return runs.FormatTime(at)
}

func viewFact(f *Fact) FactView {
	return FactView{f.ID, f.Content, viewTime(f.From), viewTime(f.Until), f.SupersededBy, f.Reason, f.Source}
}

func viewFacts(facts []Fact) []FactView {
	all := []FactView{}
	for i := range facts {
		all = append(all, viewFact(&facts[i]))
	}
	return all
}

func viewRelations(reached []Reached) []RelationView {
	all := []RelationView{}
	for _, r := range reached {
		all = append(all, RelationView{r.From, r.Relation, r.Entity, r.Depth, viewTime(r.Since), viewFacts(r.Facts)})
	}
	return all
}

// ViewChange returns the answer to a change as JSON.
func ViewChange(scope Scope, entity string, a *Answer, similar []Near) []byte {
	return encodeView(ChangeView{scope, entity, a.Status, a.Fact, viewTime(a.At), a.Position, similar})
}

// ViewSearch performs a search and returns its result as JSON.
func (x *Index) ViewSearch(scope Scope, query string, past bool, limit int) []byte {
	v := SearchView{scope, x.position, []HitView{}}
	for _, h := range x.Search(query, past, limit) {
		v.Hits = append(v.Hits, HitView{h.Entity, viewFact(&h.Fact), math.Round(h.Score*1000) / 1000})
	}
	return encodeView(v)
}

// ViewEntity returns an entity as JSON.
func (x *Index) ViewEntity(scope Scope, name string) ([]byte, *actor.Refusal) {
	e, relations, r := x.Entity(name)
	if r != nil {
		return nil, r
	}
	return encodeView(EntityView{scope, x.position, e.Name, viewTime(e.Created), viewFacts(e.Facts), viewRelations(relations)}), nil
}

// ViewTraverse performs a traversal and returns its result as JSON.
func (x *Index) ViewTraverse(scope Scope, from, relation string, depth int) ([]byte, *actor.Refusal) {
	reached, more, r := x.Traverse(from, relation, depth)
	if r != nil {
		return nil, r
	}
	return encodeView(TraverseView{scope, x.position, viewRelations(reached), more}), nil
}

// ViewPage returns a page of entities as JSON.
func (x *Index) ViewPage(scope Scope, after string, limit int) []byte {
	v := PageView{scope, x.position, []EntityView{}, ""}
	all, more := x.Page(after, limit)
	for i := range all {
		e := &all[i]
		_, relations, _ := x.Entity(e.Name)
		v.Entities = append(v.Entities, EntityView{scope, x.position, e.Name, viewTime(e.Created), viewFacts(e.Facts), viewRelations(relations)})
	}
	v.Next = more
	return encodeView(v)
}
