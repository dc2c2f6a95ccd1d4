// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/store"
)

// disk moves the log of a node to the shared store. The production writer decides on
// batches and on the release of gated effects; the simulation adds delays and faults.
// The store receives a batch when its sync ends, entirely or not at all, and only if
// its epochs still match the claims.
type disk struct {
	n             *node
	writer        *store.Writer
	mark          store.Mark // of the last batch in the store
	previous      store.Mark // of the batch before it
	inFlight      []store.Batch
	written       int  // number of written batches; they are the first ones in inFlight
	batching      bool // batches are about to be taken from the writer
	writing       bool
	syncing       bool
	slow          bool // a fault delays the sync in progress
	recent        durableRows
	oldFormat     bool           // the process runs an earlier version of the program
	oldBatches    int            // number of batches written by the earlier version
	corruption    *corruption    // damage to the node's rows while it is down; nil if none
	pendingWrites [][]groupWrite // for each batch of inFlight
}

// open starts the log of a process after the last batch in the store. If the fault
// NodeOlderData fires, the process is an earlier version, which writes the older format.
// The fault is recorded when a newer version starts on that data.
func (d *disk) open(n *node) {
	config := n.w.plan.Writer
	config.Failpoints, config.WriteVersion1 = n.w.failpointFires, n.w.faultFires(NodeOlderData)
	if d.oldBatches > 0 && !config.WriteVersion1 {
		n.w.recordFault(NodeOlderData, "%s starts on data with %d batches of an earlier version", n.id, d.oldBatches)
		d.oldBatches = 0
	}
	config.Node, config.From, config.Seed = n.id, d.mark, seed32(n.w.seed, mix(uint64(n.index), n.process))
	*d = disk{n: n, mark: d.mark, previous: d.previous, recent: d.recent, oldFormat: config.WriteVersion1, oldBatches: d.oldBatches, writer: store.NewWriter(config)}
}

// durable returns the position up to which the log is in the store.
func (d *disk) durable() store.Pos { return d.mark.Pos }

// released returns the position up to which the writer has released effects.
func (d *disk) released() store.Pos { return d.writer.Released() }

// append passes entries to the writer, and returns the position after them.
func (d *disk) append(entries []store.Entry) store.Pos {
	pos := d.writer.Append(entries)
	if len(entries) > 0 {
		d.takeBatches()
	}
	return pos
}

// takeBatches schedules the batching of the entries that wait in the writer.
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

// write writes the oldest batch that is not yet written.
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

// sync makes the written batches durable. It does not wait for batches that are written
// after the sync has begun.
func (d *disk) sync() {
	if d.syncing || d.written == 0 {
		return
	}
	d.syncing = true
	w, covered := d.n.w, d.written
	delay := w.between(100*time.Microsecond, 5*time.Millisecond)
	if w.faultFires(DiskSlow) {
		extra := w.between(50*time.Millisecond, 3*time.Second)
		delay += extra
		d.slow = true
		w.recordFault(DiskSlow, "a sync of %s takes %v longer", d.n.id, extra)
	}
	d.n.after(delay, func() { d.completeSync(covered) })
}

// completeSync commits the oldest count batches to the store, as soon as the store can
// be reached.
func (d *disk) completeSync(count int) {
	n, w := d.n, d.n.w
	if w.net.storeUnreachable(n, w.now) {
		n.after(storeRetryInterval, func() { d.completeSync(count) })
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
	for range count {
		if fenced = !d.commit(); fenced {
			d.inFlight, d.written = nil, 0 // the batches after the rejected batch are discarded too
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
		w.recordFault(DiskErrorAfter, "a sync of %s succeeds but reports an error", n.id)
		d.writer.Failed()
		w.halt(n, "disk")
		return
	}
	if len(n.gated) > 0 && w.faultFires(NodeCrashUnacked) {
		w.recordFault(NodeCrashUnacked, "%s crashes with %d durable effects not performed", n.id, len(n.gated))
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

// commit commits the oldest written batch to the store. It returns false if the node no
// longer owns the shards that the batch writes.
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
		panic("sim: simulated store failed: " + err.Error())
	}
	d.previous = d.mark
	if d.mark = b.Mark(); d.oldFormat {
		d.oldBatches++
	}
	d.recordWriteEnd(true)
	d.inFlight, d.written = d.inFlight[1:], d.written-1
	return true
}

// crash keeps the batches that were written and not synced. If a fault loses some of
// these batches, crash keeps a prefix. Batches that were not written are lost.
func (d *disk) crash() {
	w := d.n.w
	kept := d.written
	if kept > 0 && w.faultFires(DiskLostTail) {
		kept = w.entropy.Int(kept)
		w.recordFault(DiskLostTail, "%s loses %d of %d written batches", d.n.id, d.written-kept, d.written)
	}
	if w.net.storeUnreachable(d.n, w.now) {
		kept = 0 // the batches never reached the store
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
			return op.Failed("simulated disk error")
		}
		in, err := op.Read(w.kv)
		if err != nil {
			w.fail(StoreReads, err.Error())
		}
		return in
	})
}

// loadDue reads the actors with open work for a cell.
func (d *disk) loadDue(c *cell, shards []uint16) {
	w := d.n.w
	d.read(c, func() runtime.Input {
		ids, err := store.DueActors(w.kv, shards)
		if err != nil {
			w.fail(StoreReads, err.Error())
		}
		return runtime.Due{Actors: ids, Last: true}
	})
}

// read sends a result from the store to a cell, as soon as the store can be reached.
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
