// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
)

// claims is the shared store's record of the owner of each shard. Shards are claimed in
// groups. A claim is a conditional write, and its epoch is greater than every earlier
// epoch of its group.
type claims struct {
	groups       []claim
	leases       []actor.Time // end of each node's lease, before which its claims cannot be taken over
	version      uint64
	table        dispatcher.Table
	tableVersion uint64 // version of table
	encoded      []byte // encoding of table, for the canonical log
}

type claim struct {
	node      *node // nil if the group has no owner
	cell      uint16
	epoch     actor.Epoch
	releasing bool // being released: cells see no owner, but writes of the owner are still accepted
}

// owned reports whether cells see an owner of the group.
func (c *claim) owned() bool { return c.node != nil && !c.releasing }

// shardRange returns the shards of a group, lo <= shard < hi.
func (c *claims) shardRange(group int) (lo, hi uint16) {
	n := len(c.groups)
	return uint16(group * dispatcher.Shards / n), uint16((group + 1) * dispatcher.Shards / n)
}

// groupOf returns the group of a shard.
func (c *claims) groupOf(shard uint16) int {
	g := int(shard) * len(c.groups) / dispatcher.Shards
	for {
		switch lo, hi := c.shardRange(g); {
		case shard < lo:
			g--
		case shard >= hi:
			g++
		default:
			return g
		}
	}
}

// holds reports whether the node claims the shard under this epoch, which is the
// condition of every write.
func (c *claims) holds(n *node, shard uint16, epoch actor.Epoch) bool {
	cl := &c.groups[c.groupOf(shard)]
	return cl.node == n && cl.epoch == epoch
}

// claim assigns a group to a cell under the next epoch, and returns the epoch.
func (c *claims) claim(group int, n *node, cell uint16) actor.Epoch {
	cl := &c.groups[group]
	cl.node, cl.cell, cl.releasing = n, cell, false
	cl.epoch++
	c.version++
	return cl.epoch
}

// release removes the owner of a group.
func (c *claims) release(group int) {
	c.groups[group].node, c.groups[group].releasing = nil, false
	c.version++
}

// owners returns the ownership table that cells receive, and its encoding.
func (c *claims) owners() (dispatcher.Table, []byte) {
	if c.tableVersion == c.version {
		return c.table, c.encoded
	}
	var e actor.Encoder
	for i := range c.groups {
		cl := &c.groups[i]
		if !cl.owned() {
			e.String("")
			continue
		}
		e.String(string(cl.node.id))
		e.Uint(uint64(cl.cell))
		e.Uint(uint64(cl.epoch))
	}
	c.encoded, c.tableVersion = e.Buf, c.version
	c.table = dispatcher.NewTable(func(shard uint16) dispatcher.Owner {
		cl := &c.groups[c.groupOf(shard)]
		if !cl.owned() {
			return dispatcher.Owner{}
		}
		return dispatcher.Owner{Node: cl.node.id, Cell: cl.cell, Epoch: cl.epoch}
	})
	return c.table, c.encoded
}
