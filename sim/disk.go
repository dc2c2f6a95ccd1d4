// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/store"
)

// disk is a node's log on its way to the shared store. The production writer
// decides what is a batch and when a gate opens; the world only takes its time.
// The store sees a batch when its sync ends, all of it or nothing, and only
// under the epochs that are claimed then.
type disk struct {
	n       *node
	writer  *store.Writer
	mark    store.Mark // of the last batch that is in the store
	flight  []store.Batch
	written int  // how many of them are written
	pumping bool // a batch is about to be taken
	writing bool
	syncing bool
}

func (d *disk) open(n *node) {
	*d = disk{n: n, mark: d.mark, writer: store.NewWriter(store.WriterConfig{
		Node: n.id, From: d.mark, Seed: seed32(n.w.seed, mix(uint64(n.index), n.process))})}
}

// durable is how far the log is in the store.
func (d *disk) durable() store.Pos { return d.mark.Pos }

// released is how far the writer says it is.
func (d *disk) released() store.Pos { return d.writer.Released() }

func (d *disk) append(entries []store.Entry) store.Pos {
	pos := d.writer.Append(entries)
	if len(entries) > 0 {
		d.pump()
	}
	return pos
}

// later runs something on behalf of this process, if it is still there then.
func (d *disk) later(delay time.Duration, do func()) {
	process := d.n.process
	d.n.w.after(delay, func() {
		if d.n.up && d.n.process == process {
			do()
		}
	})
}

func (d *disk) pump() {
	if d.pumping {
		return
	}
	d.pumping = true
	w := d.n.w
	d.later(w.between(5*time.Microsecond, 60*time.Microsecond), func() {
		d.pumping = false
		for {
			b, ok := d.writer.Next()
			if !ok {
				break
			}
			d.flight = append(d.flight, b)
		}
		d.write()
	})
}

// write writes the oldest batch that is not.
func (d *disk) write() {
	if d.writing || d.written == len(d.flight) {
		return
	}
	d.writing = true
	w := d.n.w
	d.later(w.between(10*time.Microsecond, 200*time.Microsecond), func() {
		d.writing = false
		d.writer.Written(d.flight[d.written].No)
		d.written++
		d.n.release()
		d.sync()
		d.write()
	})
}

// sync makes what is written durable, and waits for no batch that comes meanwhile.
func (d *disk) sync() {
	if d.syncing || d.written == 0 {
		return
	}
	d.syncing = true
	w, covered := d.n.w, d.written
	d.later(w.between(100*time.Microsecond, 5*time.Millisecond), func() {
		d.syncing = false
		for range covered {
			if !d.commit() {
				w.halt(d.n, "fenced")
				return
			}
		}
		d.writer.Synced(d.mark.Batch)
		e := history.Event{Kind: history.Sync, At: d.n.clock.now(w.now), From: actor.Address{Node: d.n.id}, Pos: uint64(d.mark.Pos), Synced: uint64(d.mark.Pos)}
		w.observe(&e)
		d.n.release()
		d.pump()
		d.sync()
	})
}

// commit puts the oldest written batch into the store; false if the node does not
// own any more what it wrote.
func (d *disk) commit() bool {
	b := &d.flight[0]
	w := d.n.w
	for _, s := range b.Shards {
		if !w.claims.holds(d.n, s.Shard, s.Epoch) {
			w.log.world(w.now, "%s batch %d refused: shard %d under epoch %d", d.n.id, b.No, s.Shard, s.Epoch)
			return false
		}
	}
	if err := w.kv.Apply(b.Rows); err != nil {
		panic("sim: the store of the simulator failed: " + err.Error())
	}
	d.mark = b.Mark()
	d.flight, d.written = d.flight[1:], d.written-1
	return true
}

// load reads an actor for a cell.
func (d *disk) load(c *cell, id actor.ID) {
	w := d.n.w
	d.later(w.between(20*time.Microsecond, 2*time.Millisecond), func() {
		saved, err := store.LoadActor(w.kv, id)
		if err != nil {
			w.violate("StoreReads", err.Error())
			return
		}
		c.put(input{anyOrder, runtime.Loaded{Actor: id, Saved: saved}, nil})
	})
}

// expiries finds for a cell the actors that have open work.
func (d *disk) expiries(c *cell, shards []uint16) {
	w := d.n.w
	d.later(w.between(20*time.Microsecond, 2*time.Millisecond), func() {
		ids, err := store.DueActors(w.kv, shards)
		if err != nil {
			w.violate("StoreReads", err.Error())
			return
		}
		c.put(input{anyOrder, runtime.Due{Actors: ids}, nil})
	})
}
