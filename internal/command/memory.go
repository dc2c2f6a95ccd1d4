// SPDX-License-Identifier: Apache-2.0

package command

import "math"

// MemoryKind is the kind of a question about what is remembered.
type MemoryKind uint8

// The kinds.
const (
	MemorySearch   MemoryKind = iota // facts that match the words of Text
	MemoryEntity                     // the entity Text with its facts and relations
	MemoryTraverse                   // what relations of the entity Text lead to
	MemoryPage                       // entities after the name Text
)

// MemoryQuery asks about what a scope remembers. A node that remembers nothing refuses it.
type MemoryQuery struct {
	Kind       MemoryKind
	Scope, Key string // see package memory
	Text       string
	Relation   string // of a traversal; "": all
	Depth      int    // likewise
	Superseded bool   // of a search: also facts that are true no longer
	Limit      int
}

func (MemoryQuery) query()         {}
func (MemoryQuery) returns(Memory) {}

// Memory is the answer to a MemoryQuery, in JSON as clients and models get it.
type Memory struct{ JSON []byte }

func (Memory) result() {}

func (e *encoder) memoryQuery(q *MemoryQuery) {
	e.Uint(uint64(q.Kind))
	e.String(q.Scope)
	e.String(q.Key)
	e.String(q.Text)
	e.String(q.Relation)
	e.Int(int64(q.Depth))
	e.Bool(q.Superseded)
	e.Int(int64(q.Limit))
}

func (d *decoder) memoryQuery() MemoryQuery {
	return MemoryQuery{MemoryKind(d.UintMax(math.MaxUint8, "kind")), d.text(), d.text(), d.text(), d.text(), int(d.Int()), d.Bool(), int(d.Int())}
}
