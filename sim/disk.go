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
	n             *node
	writer        *store.Writer
	mark          store.Mark // of the last batch that is in the store
	previous      store.Mark // of the one before
	inFlight      []store.Batch
	written       int  // how many of them are written
	batching      bool // a batch is about to be taken
	writing       bool
	syncing       bool
	slow          bool // the sync under way takes longer than it should
	recent        durableRows
	oldFormat     bool           // the program is an earlier one
	oldBatches    int            // how many batches such a one has written
	corruption    *corruption    // what has become of its rows while the node is down; nil: nothing
	pendingWrites [][]groupWrite // of flight
}

func (d *disk) open(n *node) {
	config := n.w.plan.Writer
	config.Rare, config.Older = n.w.failpointFires, n.w.faultFires(NodeOlderData)
	if d.oldBatches > 0 && !config.Older {
		n.w.recordFault(NodeOlderData, "%s starts where an earlier program has written %d batches", n.id, d.oldBatches)
		d.oldBatches = 0
	}
	config.Node, config.From, config.Seed = n.id, d.mark, seed32(n.w.seed, mix(uint64(n.index), n.process))
	*d = disk{n: n, mark: d.mark, previous: d.previous, recent: d.recent, oldFormat: config.Older, oldBatches: d.oldBatches, writer: store.NewWriter(config)}
}

// durable is how far the log is in the store.
func (d *disk) durable() store.Pos { return d.mark.Pos }

// released is how far the writer says it is.
func (d *disk) released() store.Pos { return d.writer.Released() }

func (d *disk) append(entries []store.Entry) store.Pos {
	pos := d.writer.Append(entries)
	if len(entries) > 0 {
		d.takeBatches()
	}
	return pos
}

// takeBatches takes what waits into batches.
func (d *disk) takeBatches() {
	if d.batching || d.writer.Backlog() == 0 {
		return
	}
	d.batching = true
	defer d.n.w.setStream(d.n.w.setStream(topicDisk + StreamID(d.n.index)))
	d.n.after(d.n.w.between(5*time.Microsecond, 60*time.Microsecond), func() {
		d.batching = false
		for {
			b, ok := d.writer.Next()
			if !ok {
				break
			}
			d.n.w.log.batch(d.n.id, &b)
			d.inFlight = append(d.inFlight, b)
			d.recordWriteStart(&b)
		}
		d.write()
	})
}

// write writes the oldest batch that is not.
func (d *disk) write() {
	if d.writing || d.written == len(d.inFlight) {
		return
	}
	d.writing = true
	d.n.after(d.n.w.between(10*time.Microsecond, 200*time.Microsecond), func() {
		d.writing = false
		if d.n.w.faultFires(DiskErrorBefore) {
			d.n.w.recordFault(DiskErrorBefore, "%s cannot write batch %d", d.n.id, d.inFlight[d.written].No)
			d.writer.Failed()
			d.n.w.halt(d.n, "disk")
			return
		}
		d.writer.Written(d.inFlight[d.written].No)
		d.written++
		d.n.releaseGated()
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
	if w.faultFires(DiskSlow) {
		more := w.between(50*time.Millisecond, 3*time.Second)
		delay += more
		d.slow = true
		w.recordFault(DiskSlow, "%s syncs %v longer", d.n.id, more)
	}
	d.n.after(delay, func() { d.completeSync(covered) })
}

// completeSync puts so many batches into the store, as soon as that can be reached.
func (d *disk) completeSync(batches int) {
	n, w := d.n, d.n.w
	if w.net.storeUnreachable(n, w.now) {
		n.after(storeRetryInterval, func() { d.completeSync(batches) })
		return
	}
	if d.slow {
		w.lastDisturbance = w.now
	}
	d.syncing, d.slow = false, false
	if w.faultFires(DiskFailed) {
		w.recordFault(DiskFailed, "%s cannot sync", n.id)
		d.writer.Failed()
		w.halt(n, "disk")
		return
	}
	fenced := false
	for range batches {
		if fenced = !d.commit(); fenced {
			d.inFlight, d.written = nil, 0 // nor does any behind it count
			break
		}
	}
	w.emit(history.Event{Kind: history.Sync, At: n.clock.now(w.now), From: actor.Address{Node: n.id}, Pos: uint64(d.durable()), Synced: uint64(d.durable())})
	if fenced {
		d.writer.Failed()
		w.halt(n, "fenced")
		return
	}
	if w.faultFires(DiskErrorAfter) {
		w.recordFault(DiskErrorAfter, "%s is told that it cannot sync, and has", n.id)
		d.writer.Failed()
		w.halt(n, "disk")
		return
	}
	if len(n.gated) > 0 && w.faultFires(NodeCrashUnacked) {
		w.recordFault(NodeCrashUnacked, "%s dies with %d effects that are durable and not performed", n.id, len(n.gated))
		w.crash(n, "crash")
		return
	}
	d.writer.Synced(d.mark.Batch)
	n.releaseGated()
	if n.up {
		d.takeBatches()
		d.sync()
	}
}

// commit puts the oldest written batch into the store; false if the node does
// not own any more what it wrote.
func (d *disk) commit() bool {
	b := &d.inFlight[0]
	w := d.n.w
	for _, s := range b.Shards {
		if !w.claims.holds(d.n, s.Shard, s.Epoch) {
			w.Stats.Points[Fenced]++
			w.log.note(w.now, "%s batch %d refused: shard %d under epoch %d", d.n.id, b.No, s.Shard, s.Epoch)
			d.recordWriteEnd(false)
			return false
		}
	}
	d.recent.record(w, b.Rows)
	if err := w.kv.Apply(b.Rows); err != nil {
		panic("sim: the store of the simulator failed: " + err.Error())
	}
	d.previous = d.mark
	if d.mark = b.Mark(); d.oldFormat {
		d.oldBatches++
	}
	d.recordWriteEnd(true)
	d.inFlight, d.written = d.inFlight[1:], d.written-1
	return true
}

// crash keeps of what was written and not synced a prefix: all of it, unless a
// fault takes more. What was not written is gone.
func (d *disk) crash() {
	w := d.n.w
	kept := d.written
	if kept > 0 && w.faultFires(DiskLostTail) {
		kept = w.entropy.Int(kept)
		w.recordFault(DiskLostTail, "%s loses %d of %d written batches", d.n.id, d.written-kept, d.written)
	}
	if w.net.storeUnreachable(d.n, w.now) {
		kept = 0 // the store has never heard of them
	}
	for range kept {
		if !d.commit() {
			break
		}
	}
	d.inFlight, d.pendingWrites, d.written = nil, nil, 0
	d.injectCorruption()
}

// load reads an actor for a cell.
func (d *disk) load(c *cell, op runtime.Load) {
	w, id := d.n.w, op.Actor
	d.read(c, func() runtime.Input {
		if w.faultFires(DiskReadFailed) {
			w.recordFault(DiskReadFailed, "%s cannot read %s", c.self, id)
			return op.Failed("the disk says no")
		}
		in, err := op.Read(w.kv)
		if err != nil {
			w.fail(StoreReads, err.Error())
		}
		return in
	})
}

// loadDue finds for a cell the actors that have open work.
func (d *disk) loadDue(c *cell, shards []uint16) {
	w := d.n.w
	d.read(c, func() runtime.Input {
		ids, err := store.DueActors(w.kv, shards)
		if err != nil {
			w.fail(StoreReads, err.Error())
		}
		return runtime.Due{Actors: ids}
	})
}

// read answers a cell from the store, as soon as that can be reached.
func (d *disk) read(c *cell, answer func() runtime.Input) {
	n, w := d.n, d.n.w
	defer w.setStream(w.setStream(topicDisk + StreamID(n.index)))
	var read func()
	read = func() {
		if w.net.storeUnreachable(n, w.now) {
			n.after(storeRetryInterval, read)
			return
		}
		c.enqueue(input{orderGroup: unordered, in: answer()})
	}
	n.after(w.between(20*time.Microsecond, 2*time.Millisecond), read)
}
