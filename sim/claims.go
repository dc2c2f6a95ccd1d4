// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
)

// claims is the shared store's record of the owner of each shard. Shards are claimed in groups; a group is
// a log of the table. Its owner serves it in a cell, under an epoch of its own for each incarnation of the cell.
type claims struct {
	table    leaseTable
	groups   []claim
	version  uint64
	nextCell int // cell for the group that is being claimed; negative: any

	owners        dispatcher.Table // what cells receive
	ownersVersion uint64           // version of owners
	encoded       []byte           // encoding of owners, for the canonical log
}

// claim is what the owner of a group has made of it.
type claim struct {
	node      *node // nil if nobody serves the group
	cell      uint16
	tenure    actor.Epoch   // epoch of the log in the table
	epoch     actor.Epoch   // tenure, and how often a cell began to serve the group in it
	adopted   bool          // the owner knows that it is
	served    actor.Address // the cell, as it was published
	releasing bool          // being released: cells see no owner, but writes of the owner are still accepted
}

// incarnationBits is the number of low bits of an epoch that count the incarnations of a cell, as in production.
const incarnationBits = 20

// owner returns the node that serves a group according to the table, or nil.
func (c *claims) owner(group int) *node {
	cl, row := &c.groups[group], &c.table.logs[group]
	if cl.node == nil || row.owner != string(cl.node.id) || row.epoch != cl.tenure {
		return nil
	}
	return cl.node
}

// owned reports whether cells see an owner of the group.
func (c *claims) owned(group int) bool {
	cl := &c.groups[group]
	return c.owner(group) != nil && cl.adopted && !cl.releasing
}

// allOwned reports whether cells see an owner of each group.
func (c *claims) allOwned() bool {
	for g := range c.groups {
		if !c.owned(g) {
			return false
		}
	}
	return true
}

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

// holds reports whether the node serves the group under this epoch, which is the condition of every write.
func (c *claims) holds(n *node, group int, epoch actor.Epoch) bool {
	return c.owner(group) == n && c.groups[group].epoch == epoch
}

// give gives a group to a cell of a node, which hears of it with its next beat.
func (c *claims) give(group int, n *node, cell int) {
	c.nextCell = cell
	c.table.claim(group, string(n.id))
	c.nextCell = -1
}

// listed returns the owners as cells receive them, and their encoding.
func (c *claims) listed() (dispatcher.Table, []byte) {
	if c.ownersVersion == c.version {
		return c.owners, c.encoded
	}
	var e actor.Encoder
	for g := range c.groups {
		cl := &c.groups[g]
		if !c.owned(g) {
			e.String("")
			continue
		}
		e.String(string(cl.node.id))
		e.Uint(uint64(cl.cell))
		e.Uint(uint64(cl.epoch))
	}
	c.encoded, c.ownersVersion = e.Buf, c.version
	c.owners = dispatcher.NewTable(func(shard uint16) dispatcher.Owner {
		g := c.groupOf(shard)
		if !c.owned(g) {
			return dispatcher.Owner{}
		}
		cl := &c.groups[g]
		return dispatcher.Owner{Node: cl.node.id, Cell: cl.cell, Epoch: cl.epoch}
	})
	return c.owners, c.encoded
}
