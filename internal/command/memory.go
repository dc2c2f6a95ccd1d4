// SPDX-License-Identifier: Apache-2.0

package command

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
