// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
)

// The operations of the actor of a scope. The message is one JSON part, a Change.
const (
	OpCreate = "memory.create"
	OpForget = "memory.forget"
)

// RelationTo is a relation as a change states it.
type RelationTo struct {
	Name string `json:"relation"`
	To   string `json:"to"`
}

// Change is a request to remember or to forget.
type Change struct {
	Entity     string       `json:"entity"`
	Content    string       `json:"content,omitzero"`
	Relations  []RelationTo `json:"relations,omitempty"`
	Supersedes string       `json:"supersedes,omitzero"` // ID of the fact that is true no longer
	Reason     string       `json:"reason,omitzero"`     // of the end of that fact, or of forgetting
	Source     Source       `json:"source,omitzero"`
}

// Status is what a change has done.
type Status string

// The statuses.
const (
	Created    Status = "created"    // the entity is new
	Added      Status = "added"      // the entity has another fact or relation
	Superseded Status = "superseded" // the fact replaces another
	Unchanged  Status = "unchanged"  // it was remembered already
	Forgotten  Status = "forgotten"  // the entity is forgotten, or was so after a call that is repeated
)

// Answer is the answer to a change. It holds no content: answers are kept longer than what is forgotten.
type Answer struct {
	Status   Status     `json:"status"`
	Fact     string     `json:"fact,omitzero"` // its ID
	At       actor.Time `json:"at"`
	Position uint64     `json:"position"` // number of changes of the scope so far
}

// Encode returns the answer as JSON.
func (a *Answer) Encode() []byte { return invariant.Must(json.Marshal(a, json.Deterministic(true))) }

// DecodeAnswer reads the result of Encode.
func DecodeAnswer(b []byte) (a Answer, err error) {
	err = json.Unmarshal(b, &a, json.RejectUnknownMembers(true))
	return a, err
}

// Encode returns the change as JSON.
func (c *Change) Encode() []byte { return invariant.Must(json.Marshal(c, json.Deterministic(true))) }

// DecodeChange reads the result of Encode.
func DecodeChange(b []byte) (c Change, err error) {
	err = json.Unmarshal(b, &c, json.RejectUnknownMembers(true))
	return c, err
}

func invalid(field, format string, args ...any) *actor.Refusal {
	r := actor.Refuse(actor.Invalid, "%s: "+format, append([]any{field}, args...)...)
	r.Field = field
	return r
}

func checkLine(field, text string, most int) *actor.Refusal {
	switch {
	case strings.TrimSpace(text) == "":
		return invalid(field, "is missing")
	case len(text) > most:
		return invalid(field, "has %d bytes, at most %d allowed", len(text), most)
	case !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return invalid(field, "want a line of text without control characters")
	}
	return nil
}

// Check returns a refusal of a change that no state accepts.
func (c *Change) Check(operation string) *actor.Refusal {
	if r := checkLine("entity", c.Entity, NameBytesMax); r != nil {
		return r
	}
	switch operation {
	case OpForget:
		return checkLine("reason", c.Reason, ReasonBytesMax)
	case OpCreate:
	default:
		return actor.Refuse(actor.Invalid, "want the operation %s or %s, got %.40q", OpCreate, OpForget, operation)
	}
	switch {
	case strings.TrimSpace(c.Content) == "" && len(c.Relations) == 0:
		return invalid("content", "is missing: want what to remember, or relations")
	case len(c.Content) > ContentBytesMax:
		return invalid("content", "has %d bytes, at most %d allowed: remember a fact, not a document", len(c.Content), ContentBytesMax)
	case !utf8.ValidString(c.Content):
		return invalid("content", "want UTF-8")
	case len(c.Relations) > RelationsMax:
		return invalid("relations", "has %d, at most %d allowed", len(c.Relations), RelationsMax)
	case c.Supersedes != "" && strings.TrimSpace(c.Content) == "":
		return invalid("content", "is missing: want the fact that supersedes %.20s", c.Supersedes)
	}
	for i, rel := range c.Relations {
		if r := checkLine(fmt.Sprintf("relations.%d.relation", i), rel.Name, RelationMax); r != nil {
			return r
		}
		if r := checkLine(fmt.Sprintf("relations.%d.to", i), rel.To, NameBytesMax); r != nil {
			return r
		}
	}
	if c.Supersedes != "" {
		return checkLine("reason", c.Reason, ReasonBytesMax)
	}
	return nil
}

// Apply returns the updates of the state of a scope that a change makes at a time, and its answer. Items
// are sorted by name. The position counts the changes that have updates.
func Apply(operation string, c *Change, items []actor.StateItem, at actor.Time) ([]actor.StateItem, Answer, *actor.Refusal) {
	if r := c.Check(operation); r != nil {
		return nil, Answer{}, r
	}
	s := scopeState{items: items, at: at}
	s.answer = Answer{At: at, Position: positionOf(items)}
	var r *actor.Refusal
	if operation == OpForget {
		r = s.forget(c)
	} else {
		r = s.create(c)
	}
	if r != nil {
		return nil, Answer{}, r
	}
	if len(s.updates) > 0 {
		s.answer.Position++
		s.updates = append(s.updates, actor.StateItem{Name: positionItem, Value: strconv.AppendUint(nil, s.answer.Position, 10)})
	}
	return s.updates, s.answer, nil
}

func positionOf(items []actor.StateItem) uint64 {
	n, _ := strconv.ParseUint(string(stateValue(items, positionItem)), 10, 64)
	return n
}

// scopeState is the state to which one change applies.
type scopeState struct {
	items   []actor.StateItem
	at      actor.Time
	updates []actor.StateItem
	answer  Answer
}

func (s *scopeState) entity(key string) *Entity {
	value := stateValue(s.items, entityPrefix+key)
	if value == nil {
		return nil
	}
	e, err := decodeEntity(value)
	invariant.Check(err == nil, "memory: entity %s: %v", key, err)
	return e
}

func (s *scopeState) tombstone(key string) (t tombstone, ok bool) {
	value := stateValue(s.items, tombstonePrefix+key)
	return t, value != nil && json.Unmarshal(value, &t) == nil
}

func (s *scopeState) create(c *Change) *actor.Refusal {
	key := Key(c.Entity)
	if t, ok := s.tombstone(key); ok && c.Source.Call != "" && slices.Contains(t.Calls, c.Source.Call) {
		s.answer.Status, s.answer.At = Forgotten, t.At // the repeat of a call must not undo the forgetting
		return nil
	}
	e := s.entity(key)
	added := 0 // entities
	if s.answer.Status = Unchanged; e == nil {
		e, added = &Entity{Name: strings.TrimSpace(c.Entity), Created: s.at}, 1
		s.answer.Status = Created
	}
	if strings.TrimSpace(c.Content) != "" {
		if r := s.state(e, c); r != nil {
			return r
		}
	}
	for _, rel := range c.Relations {
		added += s.relate(e, key, rel)
	}
	if s.answer.Status == Unchanged {
		return nil
	}
	if len(e.Relations) > EntityRelations {
		return actor.Refuse(actor.Budget, "%.80q would have %d relations, at most %d allowed", e.Name, len(e.Relations), EntityRelations)
	}
	if n := count(s.items, entityPrefix) + added; n > EntitiesMax {
		return actor.Refuse(actor.Budget, "the scope would have %d entities, at most %d allowed: forget some first", n, EntitiesMax)
	}
	if !e.dropPast() {
		return actor.Refuse(actor.Budget, "%.80q would have more than %d bytes of facts: supersede some, or divide it into several entities", e.Name, actor.StateItemValueBytesMax)
	}
	s.updates = append(s.updates, actor.StateItem{Name: entityPrefix + key, Value: e.encode()})
	return nil
}

// state adds the fact of a change to an entity.
func (s *scopeState) state(e *Entity, c *Change) *actor.Refusal {
	id := FactID(c.Content)
	s.answer.Fact = id
	if known := e.fact(id, true); known != nil && c.Supersedes != id {
		if c.Supersedes == "" || e.fact(c.Supersedes, false) != nil {
			s.answer.At = known.From
			return nil
		}
	}
	if c.Supersedes != "" {
		old := e.fact(c.Supersedes, true)
		switch {
		case c.Supersedes == id:
			return invalid("supersedes", "the content is that of fact %s itself", id)
		case old == nil:
			return invalid("supersedes", "%.80q has no valid fact %.20s: want one of %s", e.Name, c.Supersedes, e.validIDs())
		}
		old.Until, old.SupersededBy, old.Reason = s.at, id, c.Reason
		s.answer.Status = Superseded
		if e.fact(id, true) != nil {
			return nil
		}
	} else if s.answer.Status == Unchanged {
		s.answer.Status = Added
	}
	if e.countValid() >= EntityFacts {
		return actor.Refuse(actor.Budget, "%.80q has %d facts, which is the maximum: supersede one of them, or choose a narrower entity", e.Name, EntityFacts)
	}
	e.Facts = append(e.Facts, Fact{ID: id, Content: c.Content, From: s.at, Source: c.Source})
	return nil
}

func (e *Entity) validIDs() string {
	var ids []string
	for i := range e.Facts {
		if e.Facts[i].Valid() {
			ids = append(ids, e.Facts[i].ID)
		}
	}
	if len(ids) == 0 {
		return "none, as it has no facts"
	}
	return strings.Join(ids, ", ")
}

// relate adds a relation to an entity, and its target if that is unknown. It returns the number of
// entities that it adds.
func (s *scopeState) relate(e *Entity, key string, rel RelationTo) (added int) {
	to := Key(rel.To)
	target := s.entity(to)
	isNew := target == nil && to != key && !slices.ContainsFunc(s.updates, func(i actor.StateItem) bool { return i.Name == entityPrefix+to })
	known := slices.IndexFunc(e.Relations, func(r Relation) bool { return r.Name == rel.Name && r.To == to })
	switch {
	case known >= 0 && (isNew || target != nil && target.Created > e.Relations[known].From): // the target was forgotten since
		e.Relations[known].From = s.at
	case known >= 0:
		return 0
	default:
		e.Relations = append(e.Relations, Relation{Name: rel.Name, To: to, From: s.at})
	}
	if s.answer.Status == Unchanged {
		s.answer.Status = Added
	}
	if !isNew {
		return 0
	}
	other := Entity{Name: strings.TrimSpace(rel.To), Created: s.at}
	s.updates = append(s.updates, actor.StateItem{Name: entityPrefix + to, Value: other.encode()})
	return 1
}

// forget replaces an entity by a tombstone. Relations that lead to it lead nowhere.
func (s *scopeState) forget(c *Change) *actor.Refusal {
	key := Key(c.Entity)
	e := s.entity(key)
	if s.answer.Status = Forgotten; e == nil {
		t, ok := s.tombstone(key)
		if !ok {
			return NotFound(c.Entity)
		}
		s.answer.At = t.At // it was forgotten before
		return nil
	}
	t := tombstone{At: s.at, Reason: c.Reason}
	if former, ok := s.tombstone(key); ok {
		t.Calls = former.Calls
	}
	for i := range e.Facts {
		if call := e.Facts[i].Source.Call; call != "" && !slices.Contains(t.Calls, call) {
			t.Calls = append(t.Calls, call)
		}
	}
	t.Calls = t.Calls[max(0, len(t.Calls)-2*EntityFacts):]
	s.updates = append(s.updates, actor.StateItem{Name: entityPrefix + key},
		actor.StateItem{Name: tombstonePrefix + key, Value: invariant.Must(json.Marshal(t, json.Deterministic(true)))})
	if count(s.items, tombstonePrefix) >= TombstonesMax {
		s.updates = append(s.updates, actor.StateItem{Name: s.oldestTombstone()})
	}
	return nil
}

func (s *scopeState) oldestTombstone() (name string) {
	from, _ := searchItem(s.items, tombstonePrefix)
	oldest := actor.Time(0)
	for _, item := range s.items[from : from+count(s.items, tombstonePrefix)] {
		var t tombstone
		if err := json.Unmarshal(item.Value, &t); name == "" || err == nil && t.At < oldest {
			name, oldest = item.Name, t.At
		}
	}
	return name
}

// NotFound returns the refusal for an entity that a scope does not have.
func NotFound(entity string) *actor.Refusal {
	return actor.RefuseNotFound(actor.WhatEntity, "nothing is remembered about %.80q in this scope", entity)
}
