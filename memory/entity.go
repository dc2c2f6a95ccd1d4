// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"encoding/hex"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
)

// Bounds of a scope.
const (
	EntitiesMax     = 100_000
	TombstonesMax   = 4096 // the newest ones
	NameBytesMax    = 256
	ContentBytesMax = 4 << 10
	ReasonBytesMax  = 256
	RelationMax     = 64 // bytes of the name of a relation
	RelationsMax    = 16 // relations of a change
	EntityRelations = 64
	EntityFacts     = 16 // valid facts of an entity
	EntityPast      = 16 // superseded facts of an entity: the newest ones
)

// Source is where a fact comes from. The node sets it.
type Source struct {
	Run     string `json:"run_id,omitzero"`
	Call    string `json:"tool_call_id,omitzero"` // the same if the call is repeated after a crash
	Session string `json:"session_id,omitzero"`
	Agent   string `json:"agent_id,omitzero"`
	User    string `json:"user,omitzero"`
}

// Fact is one statement about an entity.
type Fact struct {
	ID      string     `json:"id"` // of its content
	Content string     `json:"content"`
	From    actor.Time `json:"from"`
	Source  Source     `json:"source,omitzero"`

	// Of a superseded fact.
	Until        actor.Time `json:"until,omitzero"`
	SupersededBy string     `json:"superseded_by,omitzero"` // ID of a fact of the entity
	Reason       string     `json:"reason,omitzero"`
}

// Relation leads to another entity. It holds no name, so that nothing of an entity that is forgotten stays
// in others.
type Relation struct {
	Name string     `json:"relation"`
	To   string     `json:"to"` // Key of the entity
	From actor.Time `json:"from"`
}

// Entity is what is known about one subject.
type Entity struct {
	Name      string     `json:"entity"` // as it was first written
	Created   actor.Time `json:"created"`
	Facts     []Fact     `json:"facts,omitempty"` // oldest first, superseded ones too
	Relations []Relation `json:"relations,omitempty"`
}

// tombstone is what is left of a forgotten entity.
type tombstone struct {
	At     actor.Time `json:"at"`
	Reason string     `json:"reason"`
	Calls  []string   `json:"calls,omitempty"` // tool calls that had stated facts, and may be repeated
}

// Prefixes of the names of state items.
const (
	entityPrefix    = "e/"
	tombstonePrefix = "t/"
	positionItem    = "p" // number of changes so far
)

// Key returns the key of an entity. Letter case and the number of spaces make no difference.
func Key(name string) string {
	h := actor.HashOf([]byte(strings.ToLower(strings.Join(strings.Fields(name), " "))))
	return hex.EncodeToString(h[:16])
}

// FactID returns the ID of a content, which is that of every spelling that differs in letter case and
// spaces only.
func FactID(content string) string { return Key(content)[:12] }

func (e *Entity) encode() []byte { return invariant.Must(json.Marshal(e, json.Deterministic(true))) }

func decodeEntity(value []byte) (*Entity, error) {
	e := new(Entity)
	return e, json.Unmarshal(value, e)
}

// Valid reports whether a fact is not superseded.
func (f *Fact) Valid() bool { return f.Until == 0 }

// fact returns a fact of the entity, or nil.
func (e *Entity) fact(id string, valid bool) *Fact {
	for i := range e.Facts {
		if f := &e.Facts[i]; f.ID == id && f.Valid() == valid {
			return f
		}
	}
	return nil
}

func (e *Entity) countValid() (n int) {
	for i := range e.Facts {
		if e.Facts[i].Valid() {
			n++
		}
	}
	return n
}

// dropPast drops the oldest superseded facts beyond EntityPast and until the entity fits into an item.
// It reports whether it fits.
func (e *Entity) dropPast() bool {
	for {
		past := len(e.Facts) - e.countValid()
		fits := len(e.encode()) <= actor.StateItemValueBytesMax
		if past == 0 || past <= EntityPast && fits {
			return fits
		}
		oldest := slices.IndexFunc(e.Facts, func(f Fact) bool { return !f.Valid() })
		e.Facts = slices.Delete(e.Facts, oldest, oldest+1)
	}
}

func stateValue(items []actor.StateItem, name string) []byte {
	if at, found := searchItem(items, name); found {
		return items[at].Value
	}
	return nil
}

func searchItem(items []actor.StateItem, name string) (int, bool) {
	return slices.BinarySearchFunc(items, name, func(i actor.StateItem, name string) int { return strings.Compare(i.Name, name) })
}

// count returns the number of items whose names begin with a prefix, which ends in a slash.
func count(items []actor.StateItem, prefix string) int {
	from, _ := searchItem(items, prefix)
	to, _ := searchItem(items, prefix[:len(prefix)-1]+"0") // '0' follows '/'
	return to - from
}
