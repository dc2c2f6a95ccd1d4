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
	n        *node
	writer   *store.Writer
	mark     store.Mark // of the last batch that is in the store
	before   store.Mark // of the one before
	flight   []store.Batch
	written  int  // how many of them are written
	pumping  bool // a batch is about to be taken
	writing  bool
	syncing  bool
	slow     bool // the sync under way takes longer than it should
	last     durables
	old      bool        // the program is an earlier one
	older    int         // how many batches such a one has written
	rot      *rot        // what has become of its rows while the node is down; nil: nothing
	writings [][]writing // of flight
}

func (d *disk) open(n *node) {
	config := n.w.plan.Writer
	config.Rare, config.Older = n.w.rare, n.w.fault(NodeOlderData)
	if d.older > 0 && !config.Older {
		n.w.hit(NodeOlderData, "%s starts where an earlier program has written %d batches", n.id, d.older)
		d.older = 0
	}
	config.Node, config.From, config.Seed = n.id, d.mark, seed32(n.w.seed, mix(uint64(n.index), n.process))
	*d = disk{n: n, mark: d.mark, before: d.before, last: d.last, old: config.Older, older: d.older, writer: store.NewWriter(config)}
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

// pump takes what waits into batches.
func (d *disk) pump() {
	if d.pumping || d.writer.Backlog() == 0 {
		return
	}
	d.pumping = true
	defer d.n.w.turn(d.n.w.turn(aboutDisk + StreamID(d.n.index)))
	d.n.later(d.n.w.between(5*time.Microsecond, 60*time.Microsecond), func() {
		d.pumping = false
		for {
			b, ok := d.writer.Next()
			if !ok {
				break
			}
			d.n.w.log.batch(d.n.id, &b)
			d.flight = append(d.flight, b)
			d.writes(&b)
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
	d.n.later(d.n.w.between(10*time.Microsecond, 200*time.Microsecond), func() {
		d.writing = false
		if d.n.w.fault(DiskErrorBefore) {
			d.n.w.hit(DiskErrorBefore, "%s cannot write batch %d", d.n.id, d.flight[d.written].No)
			d.writer.Failed()
			d.n.w.halt(d.n, "disk")
			return
		}
		d.writer.Written(d.flight[d.written].No)
		d.written++
		d.n.release()
		if d.n.up {
			d.sync()
			d.write()
		}
	})
}

// sync makes what is written durable, and waits for no batch that comes meanwhile.
func (d *disk) sync() {
	if d.syncing || d.written == 0 {
		return
	}
	d.syncing = true
	w, covered := d.n.w, d.written
	delay := w.between(100*time.Microsecond, 5*time.Millisecond)
	if w.fault(DiskSlow) {
		more := w.between(50*time.Millisecond, 3*time.Second)
		delay += more
		d.slow = true
		w.hit(DiskSlow, "%s syncs %v longer", d.n.id, more)
	}
	d.n.later(delay, func() { d.synced(covered) })
}

// synced puts so many batches into the store, as soon as that can be reached.
func (d *disk) synced(batches int) {
	n, w := d.n, d.n.w
	if w.net.isCut(n, w.now) {
		n.later(storeAsked, func() { d.synced(batches) })
		return
	}
	if d.slow {
		w.trouble = w.now
	}
	d.syncing, d.slow = false, false
	if w.fault(DiskFailed) {
		w.hit(DiskFailed, "%s cannot sync", n.id)
		d.writer.Failed()
		w.halt(n, "disk")
		return
	}
	fenced := false
	for range batches {
		if fenced = !d.commit(); fenced {
			d.flight, d.written = nil, 0 // nor does any behind it count
			break
		}
	}
	w.tell(history.Event{Kind: history.Sync, At: n.clock.now(w.now), From: actor.Address{Node: n.id}, Pos: uint64(d.durable()), Synced: uint64(d.durable())})
	if fenced {
		d.writer.Failed()
		w.halt(n, "fenced")
		return
	}
	if w.fault(DiskErrorAfter) {
		w.hit(DiskErrorAfter, "%s is told that it cannot sync, and has", n.id)
		d.writer.Failed()
		w.halt(n, "disk")
		return
	}
	if len(n.held) > 0 && w.fault(NodeCrashUnacked) {
		w.hit(NodeCrashUnacked, "%s dies with %d effects that are durable and not performed", n.id, len(n.held))
		w.crash(n, "crash")
		return
	}
	d.writer.Synced(d.mark.Batch)
	n.release()
	if n.up {
		d.pump()
		d.sync()
	}
}

// commit puts the oldest written batch into the store; false if the node does
// not own any more what it wrote.
func (d *disk) commit() bool {
	b := &d.flight[0]
	w := d.n.w
	for _, s := range b.Shards {
		if !w.claims.holds(d.n, s.Shard, s.Epoch) {
			w.Stats.Sometimes[Fenced]++
			w.log.world(w.now, "%s batch %d refused: shard %d under epoch %d", d.n.id, b.No, s.Shard, s.Epoch)
			d.wrote(false)
			return false
		}
	}
	d.last.wrote(w, b.Rows)
	if err := w.kv.Apply(b.Rows); err != nil {
		panic("sim: the store of the simulator failed: " + err.Error())
	}
	d.before = d.mark
	if d.mark = b.Mark(); d.old {
		d.older++
	}
	d.wrote(true)
	d.flight, d.written = d.flight[1:], d.written-1
	return true
}

// crash keeps of what was written and not synced a prefix: all of it, unless a
// fault takes more. What was not written is gone.
func (d *disk) crash() {
	w := d.n.w
	kept := d.written
	if kept > 0 && w.fault(DiskLostTail) {
		kept = w.choose.Int(kept)
		w.hit(DiskLostTail, "%s loses %d of %d written batches", d.n.id, d.written-kept, d.written)
	}
	if w.net.isCut(d.n, w.now) {
		kept = 0 // the store has never heard of them
	}
	for range kept {
		if !d.commit() {
			break
		}
	}
	d.flight, d.writings, d.written = nil, nil, 0
	d.decay()
}

// load reads an actor for a cell.
func (d *disk) load(c *cell, op runtime.Load) {
	w, id := d.n.w, op.Actor
	d.read(c, func() runtime.Input {
		if w.fault(DiskReadFailed) {
			w.hit(DiskReadFailed, "%s cannot read %s", c.self, id)
			return op.Failed("the disk says no")
		}
		in, err := op.Read(w.kv)
		if err != nil {
			w.violate(StoreReads, err.Error())
		}
		return in
	})
}

// expiries finds for a cell the actors that have open work.
func (d *disk) expiries(c *cell, shards []uint16) {
	w := d.n.w
	d.read(c, func() runtime.Input {
		ids, err := store.DueActors(w.kv, shards)
		if err != nil {
			w.violate(StoreReads, err.Error())
		}
		return runtime.Due{Actors: ids}
	})
}

// read answers a cell from the store, as soon as that can be reached.
func (d *disk) read(c *cell, answer func() runtime.Input) {
	n, w := d.n, d.n.w
	defer w.turn(w.turn(aboutDisk + StreamID(n.index)))
	var read func()
	read = func() {
		if w.net.isCut(n, w.now) {
			n.later(storeAsked, read)
			return
		}
		c.put(input{stream: anyOrder, in: answer()})
	}
	n.later(w.between(20*time.Microsecond, 2*time.Millisecond), read)
}
