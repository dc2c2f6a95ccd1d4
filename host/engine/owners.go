// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/runtime"
)

// Peers are the other nodes of a cluster, to each of which some of the cells' shards belong: the shards of cell n
// are those of log n.
type Peers interface {
	// Send delivers a message to a cell of another node. It does not block. A message that is lost is sent again by
	// its cell.
	Send(to actor.NodeID, cell uint16, env *actor.Envelope)
	// Changed is told that the epochs of Owned have changed. It does not block.
	Changed()
}

// owners are the owners of the cells' shards. Without peers the node owns all of them.
type owners struct {
	shared bool               // with peers
	starts []uint64           // by cell; 0 with peers: another node owns its shards, or none does
	epochs []actor.Epoch      // current epoch by cell
	others []dispatcher.Owner // by cell: the other node that owns its shards
	table  dispatcher.Table
}

func newOwners(c *Config) owners {
	o := owners{shared: c.Peers != nil, starts: make([]uint64, c.Cells), epochs: make([]actor.Epoch, c.Cells), others: make([]dispatcher.Owner, c.Cells)}
	for n := range o.epochs {
		if !o.shared {
			o.starts[n] = c.Start
		}
		o.epochs[n] = epochOf(o.starts[n], 1)
	}
	o.rebuild(c.Node)
	return o
}

// epochOf returns the epoch of an incarnation of a cell.
func epochOf(start, incarnation uint64) actor.Epoch {
	return actor.Epoch(start<<incarnationBits | incarnation)
}

// rebuild makes the table anew.
func (o *owners) rebuild(node actor.NodeID) {
	o.table = dispatcher.NewTable(func(shard uint16) dispatcher.Owner {
		n := shard % uint16(len(o.epochs))
		if o.shared && o.starts[n] == 0 {
			return o.others[n]
		}
		return dispatcher.Owner{Node: node, Cell: n, Epoch: o.epochs[n]}
	})
}

// SetOwners replaces the owners of the cells' shards. The node owns those of a cell with a start, which MUST be
// greater than at each earlier time that it, or another node, owned them. The others belong to other nodes.
func (e *Engine) SetOwners(starts []uint64, others []dispatcher.Owner) {
	e.mu.Lock()
	before := slices.Clone(e.owned.epochs)
	for n := range e.owned.epochs {
		if e.owned.starts[n] != starts[n] {
			e.owned.epochs[n] = epochOf(starts[n], max(1, uint64(e.owned.epochs[n])&(1<<incarnationBits-1)))
		}
	}
	changed := !slices.Equal(before, e.owned.epochs) || !slices.Equal(e.owned.starts, starts)
	copy(e.owned.starts, starts)
	if changed = changed || !slices.Equal(e.owned.others, others); changed {
		copy(e.owned.others, others)
		e.owned.rebuild(e.config.Node)
	}
	e.mu.Unlock()
	if changed {
		for _, c := range e.cells {
			c.mailbox.postCompletion(completion{run: c.updateOwners})
		}
		e.config.Peers.Changed()
	}
}

// Owned returns the epochs of the cells whose shards the node owns; 0 for the others.
func (e *Engine) Owned() []actor.Epoch {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make([]actor.Epoch, len(e.owned.epochs))
	for n := range all {
		if !e.owned.shared || e.owned.starts[n] != 0 {
			all[n] = e.owned.epochs[n]
		}
	}
	return all
}

// Settle waits until a cell has taken the owners of the last SetOwners, and what it did before is durable and sent.
func (e *Engine) Settle(ctx context.Context, cell uint16) error {
	if _, err := onCell(ctx, e, e.cells[cell], func(*runtime.Cell) struct{} { return struct{}{} }); err != nil {
		return err
	}
	return e.barrier(ctx)
}

// Reconnected notes that messages to and from another node may have been lost: the cells send again what they
// have asked of it.
func (e *Engine) Reconnected(node actor.NodeID) {
	for _, c := range e.cells {
		for n := range e.cells {
			c.mailbox.postCompletion(completion{input: runtime.CellRestarted{Cell: actor.Address{Node: node, Cell: uint16(n)}}})
		}
	}
}

// Deliver takes a message of another node for a cell. It reports whether there was room.
func (e *Engine) Deliver(cell uint16, env *actor.Envelope) bool {
	if int(cell) >= len(e.cells) || env.From.IsZero() { // only a client of this node has none
		return false
	}
	c := e.cells[cell]
	ok := c.mailbox.queue.push(env)
	c.mailbox.schedule()
	return ok
}

// Owns reports whether the node owns the shard of an actor.
func (e *Engine) Owns(id actor.ID) bool {
	_, own := e.OwnerOf(id)
	return own
}

// OwnerOf returns the node that owns the shard of an actor, "" for none, and whether it is this node.
func (e *Engine) OwnerOf(id actor.ID) (node actor.NodeID, own bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	o, _ := e.owned.table.Of(dispatcher.ShardOf(id))
	return o.Node, o.Node == e.config.Node
}
