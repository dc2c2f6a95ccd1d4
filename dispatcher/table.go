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
type Table struct{ owners []Owner }

// NewTable makes a table of what the function says of each shard.
func NewTable(owner func(shard uint16) Owner) Table {
	t := Table{owners: make([]Owner, Shards)}
	for s := range t.owners {
		t.owners[s] = owner(uint16(s))
	}
	return t
}

// Of is the owner of a shard; false if it has none.
func (t Table) Of(shard uint16) (Owner, bool) {
	if int(shard) >= len(t.owners) {
		return Owner{}, false
	}
	o := t.owners[shard]
	return o, o.Node != ""
}
