// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/internal/invariant"
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
	slow          bool       // a fault delays the sync in progress
	unknown       bool       // the result of the append of the oldest batch is lost
	kept          bool       // that batch is stored nevertheless
	recorded      store.Pos  // position of the last Sync event
	syncDue       actor.Time // end of the sync in progress without faults
	recent        durableRows
	corruption    *corruption    // damage to the node's rows while it is down; nil if none
	pendingWrites [][]groupWrite // for each batch of inFlight
}

// open starts the log of a process after the last batch in the store.
func (d *disk) open(n *node) {
	config := n.w.plan.Writer
	config.Failpoints = n.w.failpointFires
	config.Node, config.From, config.Seed = n.id, d.mark, seed32(n.w.seed, mix(uint64(n.index), n.process))
	*d = disk{n: n, mark: d.mark, previous: d.previous, recent: d.recent, recorded: d.mark.Pos, writer: store.NewWriter(config)}
}

// ends returns the log as Examine takes it.
func (d *disk) ends() []store.LogEnd {
	return []store.LogEnd{{Node: d.n.id, Anchor: store.Anchor{End: d.mark}}}
}

// durable returns the position up to which the log is in the store.
func (d *disk) durable() store.Pos { return d.mark.Pos }

// released returns the position up to which the writer has released effects.
func (d *disk) released() store.Pos { return d.writer.Released() }

// appendEntries passes entries to the writer, and returns the position after them.
func (d *disk) appendEntries(entries []store.Entry) store.Pos {
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
		if d.crashesBefore("write") {
			return
		}
		if d.n.w.faultFires(DiskErrorBefore) && d.fail(DiskErrorBefore, fmt.Sprintf("cannot write batch %d", d.inFlight[d.written].No)) {
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
	d.syncDue = w.now.Add(delay)
	if w.faultFires(DiskSlow) {
		d.slow = true
		delay += w.extraDelay(DiskSlow, w.between(50*time.Millisecond, 3*time.Second))
	}
	d.n.after(delay, func() {
		if d.slow {
			recordChange(w, DiskSlow, d.syncDue, w.now, "a sync of %s takes %v longer", d.n.id, w.now.Sub(d.syncDue))
		}
		d.completeSync(covered)
	})
}

// fail has fault f end the process with a disk error. It reports whether the process has
// ended.
func (d *disk) fail(f Fault, what string) bool {
	return d.n.w.endProcess(f, d.n, func() {
		d.writer.Failed()
		d.n.w.halt(d.n, "disk")
	}, "%s %s", d.n.id, what)
}

// completeSync commits the oldest count batches to the store, as soon as the store can
// be reached.
func (d *disk) completeSync(count int) {
	n, w := d.n, d.n.w
	if w.storeRefuses(n) {
		n.after(storeRetryInterval, func() { d.completeSync(count) })
		return
	}
	if d.slow {
		w.lastDisturbance = w.now
	}
	d.syncing, d.slow = false, false
	if d.crashesBefore("sync") {
		return
	}
	if w.faultFires(DiskFailed) && d.fail(DiskFailed, "cannot sync") {
		return
	}
	fenced := false
	for i := range count {
		if d.crashesBefore("commit") {
			return
		}
		err := d.commit(true)
		if d.unknown {
			d.syncing = true // the batch is settled before the next one
			d.recordSync()   // another node may load the entries now
			n.after(storeRetryInterval, func() { d.completeSync(count - i) })
			return
		}
		if fenced = err != nil; fenced {
			d.inFlight, d.written = nil, 0 // the batches after the rejected batch are discarded too
			break
		}
	}
	d.recordSync()
	if fenced {
		d.writer.Failed()
		w.halt(n, "fenced")
		return
	}
	if w.faultFires(DiskErrorAfter) && d.fail(DiskErrorAfter, "reports an error for a sync that succeeded") {
		return
	}
	if unperformed := len(n.gated); unperformed > 0 && w.faultFires(NodeCrashUnacked) &&
		w.endProcess(NodeCrashUnacked, n, func() { w.crash(n, "crash") }, "%s crashes with %d durable effects not performed", n.id, unperformed) {
		return
	}
	d.writer.Synced(d.mark.Batch)
	n.releaseGated()
	if n.up {
		d.takeBatches()
		d.sync()
	}
}

// recordSync emits a Sync event if more of the log is durable than at the last one.
func (d *disk) recordSync() {
	pos := d.durable()
	if d.kept {
		pos = d.inFlight[0].Pos
	}
	if pos > d.recorded {
		d.recorded = pos
		d.n.w.emit(history.Event{Kind: history.Sync, At: d.n.clock.now(d.n.w.now), From: actor.Address{Node: d.n.id}, Pos: uint64(pos), Synced: uint64(pos)})
	}
}

// commit appends the oldest written batch to the store, or resumes its append. It returns
// an error if the node no longer owns the shards that the batch writes, or if the result
// is unknown. Faults of the store occur only if the process awaits the result.
func (d *disk) commit(awaited bool) error {
	b := &d.inFlight[0]
	w := d.n.w
	d.recent.record(w, b)
	err := d.append(b, awaited)
	fenced := store.Fenced{}
	switch d.unknown = errors.As(err, new(store.Unknown)); {
	case err == nil:
		d.stored()
	case d.unknown:
	case errors.As(err, &fenced):
		w.Stats.Points[Fenced]++
		w.log.note(w.now, "%s batch %d refused: shard %d under epoch %d", d.n.id, b.No, fenced.Shards[0].Shard, fenced.Shards[0].Epoch)
		d.recordWriteEnd(false)
	default:
		w.fail(ChainHolds, err.Error())
	}
	return err
}

// append appends a batch to the store, or resumes its append.
func (d *disk) append(b *store.Batch, awaited bool) (err error) {
	w, s := d.n.w, &d.n.w.store
	unowned := slices.ContainsFunc(b.Shards, func(e store.ShardEpoch) bool { return !w.holds(b.Node, e) })
	if awaited {
		s.fences = w.faultFires(StoreFenced) && w.acts(StoreFenced)
		if w.faultFires(StoreUnknown) {
			s.loses, s.keeps = w.acts(StoreUnknown), w.entropy.Int(2) == 1
		}
	}
	if d.unknown {
		err = store.Resume(s.log, b)
	} else {
		err = s.log.Append(b)
	}
	lost := errors.As(err, new(store.Unknown))
	recordChange(w, StoreFenced, unowned, unowned || errors.As(err, new(store.Fenced)), "batch %d of %s is fenced", b.No, b.Node)
	recordChange(w, StoreUnknown, false, lost, "the result of batch %d of %s is lost, stored %v", b.No, b.Node, s.keeps)
	if kept := lost && s.keeps; kept || err == nil && !d.kept {
		w.loadJudge.commit(b)
		w.transcripts.commit(b)
		d.kept = kept
	}
	s.fences, s.loses, s.keeps = false, false, false
	return err
}

// stored removes the oldest written batch, which is in the store.
func (d *disk) stored() {
	b := &d.inFlight[0]
	d.previous = d.mark
	d.mark = b.Mark()
	d.recordWriteEnd(true)
	d.inFlight, d.written, d.unknown, d.kept = d.inFlight[1:], d.written-1, false, false
}

// crashesBefore crashes the process if it starts and a crash precedes this operation. It
// reports whether it did.
func (d *disk) crashesBefore(operation string) bool {
	crashes := d.n.w.startCrashes.precede(d.n, operation)
	if crashes {
		d.n.w.crash(d.n, "crash")
	}
	return crashes
}

// crash keeps the batches that were written and not synced. If a fault loses some of
// these batches, crash keeps a prefix. Batches that were not written are lost.
func (d *disk) crash() {
	if d.unknown && invariant.Must(d.n.w.store.log.Settle(&d.inFlight[0])) {
		d.stored()
	}
	d.unknown = false
	w, written := d.n.w, d.written
	kept := written
	if kept > 0 && w.faultFires(DiskLostTail) {
		kept -= w.affectedCount(DiskLostTail, kept-w.entropy.Int(kept))
	}
	if w.storeRefuses(d.n) || w.startCrashes.concern(d.n) && w.startCrashes.losesTail {
		kept, written = 0, 0 // the batches never reached the store
	}
	for range kept {
		if d.commit(false) != nil {
			written = kept // another node owns the shards: no later batch could be kept
			break
		}
	}
	recordChange(w, DiskLostTail, written, kept, "%s loses %d of %d written batches", d.n.id, written-kept, written)
	d.inFlight, d.pendingWrites, d.written = nil, nil, 0
	d.injectCorruption()
}

// load reads an actor for a cell.
func (d *disk) load(c *cell, op runtime.Load) {
	w, id := d.n.w, op.Actor
	d.read(c, func() runtime.Input {
		in, err := op.Read(w.store)
		if err != nil {
			w.fail(StoreReads, err.Error())
		}
		if loaded, ok := in.(runtime.Loaded); ok {
			if w.loadJudge.loaded(loaded); loaded.Saved.Snapshot != nil || len(loaded.Saved.Entries) > 0 {
				w.Stats.Audit.StoreReads++
			}
		}
		if _, failed := in.(runtime.LoadFailed); !failed && w.faultFires(DiskReadFailed) {
			if w.acts(DiskReadFailed) {
				in = op.Failed("simulated disk error")
			}
			_, failed = in.(runtime.LoadFailed)
			recordChange(w, DiskReadFailed, false, failed, "%s cannot read %s", c.self, id)
		}
		return in
	})
}

// loadDue reads the actors with open work for a cell.
func (d *disk) loadDue(c *cell, shards []uint16) {
	w := d.n.w
	d.read(c, func() runtime.Input {
		var ids []actor.ID
		err := w.store.Due(shards, func(id actor.ID) { ids = append(ids, id) })
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
	if s := w.startCrashes; s.concern(n) {
		s.reads++
	}
	var read func()
	read = func() {
		if w.storeRefuses(n) {
			n.after(storeRetryInterval, read)
			return
		}
		if d.crashesBefore("read") {
			return
		}
		if s := w.startCrashes; s.concern(n) {
			s.reads--
		}
		c.enqueue(input{orderGroup: unordered, in: answer()})
	}
	n.after(w.between(20*time.Microsecond, 2*time.Millisecond), read)
}
