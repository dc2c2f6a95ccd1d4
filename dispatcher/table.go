// SPDX-License-Identifier: Apache-2.0

package dispatcher

import "github.com/troupe-run/troupe/actor"

// Shards is the number of shards to which actors hash. Cells own shards, not actors.
const Shards = 4096

// ShardOf returns the shard of an actor. All actors of a session have one shard, so calls
// between them stay in one cell. Other actors hash with their agent: otherwise all actors
// under actor.DefaultKey would meet in one cell. The mapping MUST NOT change: stored
// entries depend on it.
func ShardOf(id actor.ID) uint16 {
	h := hashPart(fnvOffset, id.Tenant)
	if _, ok := id.Session(); !ok {
		h = hashPart(h, id.Agent)
	}
	h = hashPart(h, id.Key)
	h ^= h >> 32 // in FNV the last byte affects mostly low bits, so the high bits are folded in and mixed
	h *= 0x9e3779b97f4a7c15
	return uint16(h >> 52)
}

// Parameters of FNV-1a with 64 bits.
const fnvOffset, fnvPrime = 14695981039346656037, 1099511628211

// hashPart continues an FNV-1a hash with a part of an ID and a slash.
func hashPart(h uint64, part string) uint64 {
	for i := range len(part) {
		h = (h ^ uint64(part[i])) * fnvPrime
	}
	return (h ^ '/') * fnvPrime
}

// Owner is the cell that owns a shard, and the epoch of its ownership.
type Owner struct {
	Node  actor.NodeID
	Cell  uint16
	Epoch actor.Epoch
}

// Table maps each shard to its owner. It is immutable: a host creates a new one and
// passes it to its cells. A shard with the zero Owner has no owner.
type Table struct {
	owners []Owner  // distinct owners
	of     []uint16 // index into owners, by shard
}

// NewTable returns a table. It calls the callback owner for the owner of each shard.
func NewTable(owner func(shard uint16) Owner) Table {
	t := Table{of: make([]uint16, Shards)}
	at := map[Owner]uint16{}
	for s := range t.of {
		o := owner(uint16(s))
		if s > 0 && o == t.owners[t.of[s-1]] {
			t.of[s] = t.of[s-1]
			continue
		}
		i, known := at[o]
		if !known {
			i = uint16(len(t.owners))
			at[o] = i
			t.owners = append(t.owners, o)
		}
		t.of[s] = i
	}
	return t
}

// Of returns the owner of a shard, or false if the shard has no owner.
func (t Table) Of(shard uint16) (Owner, bool) {
	if int(shard) >= len(t.of) {
		return Owner{}, false
	}
	o := t.owners[t.of[shard]]
	return o, o.Node != ""
}

// Shards returns the shards that a cell owns, in ascending order.
func (t Table) Shards(node actor.NodeID, cell uint16) []uint16 {
	var all []uint16
	for s, i := range t.of {
		if o := &t.owners[i]; o.Cell == cell && o.Node == node {
			all = append(all, uint16(s))
		}
	}
	return all
}
