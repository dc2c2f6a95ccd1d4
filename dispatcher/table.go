// SPDX-License-Identifier: Apache-2.0

package dispatcher

import (
	"hash/fnv"

	"github.com/troupe-run/troupe/actor"
)

// Shards is the number of shards actors hash to. Shards, not actors, are owned.
const Shards = 4096

// ShardOf is the shard of an actor, for good.
func ShardOf(id actor.ID) uint16 {
	h := fnv.New64a()
	for _, part := range [...]string{id.Tenant, id.Agent, id.Key} {
		h.Write([]byte(part))
		h.Write([]byte{'/'})
	}
	x := h.Sum64()
	x ^= x >> 32 // FNV leaves its last byte in the low bits alone: fold and mix
	x *= 0x9e3779b97f4a7c15
	return uint16(x >> 52)
}

// Owner is the cell a shard lives in, and since when: under which epoch.
type Owner struct {
	Node  actor.NodeID
	Cell  uint16
	Epoch actor.Epoch
}

// Table says who owns each shard. It is a value: a world makes a new one and
// hands it to its cells. The zero Owner owns nothing.
type Table struct {
	owners []Owner  // each once
	of     []uint16 // of each shard: which of them
}

// NewTable makes a table of what the function says of each shard.
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

// Of is the owner of a shard; false if it has none.
func (t Table) Of(shard uint16) (Owner, bool) {
	if int(shard) >= len(t.of) {
		return Owner{}, false
	}
	o := t.owners[t.of[shard]]
	return o, o.Node != ""
}

// Shards lists those that a cell owns.
func (t Table) Shards(node actor.NodeID, cell uint16) []uint16 {
	var all []uint16
	for s, i := range t.of {
		if o := &t.owners[i]; o.Cell == cell && o.Node == node {
			all = append(all, uint16(s))
		}
	}
	return all
}
