// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"crypto/rand"
	"sync"
	"time"

	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/store"
)

const (
	// anchorEvery is the minimum interval between two writes of the anchor.
	anchorEvery = 100 * time.Millisecond
	// pieceDelayDefault is the delay of a piece of an answer. It lets the piece
	// share a sync with the next entries, which are mostly the end of the
	// answer.
	pieceDelayDefault = time.Millisecond
	// eagerBatchesMax is the number of unsynced batches below which any entry is
	// written at once. From there on, a batch needs at least as many entries as
	// there are unsynced batches. Entries that are too few wait for the next sync
	// and are then written in one batch.
	eagerBatchesMax = 4
)

// Log appends entries to a Disk. It drives a store.Writer with three
// goroutines: one writes batches, one waits for syncs, one writes the anchor.
//
//  1. Entries are in the log in the order of the Commit calls.
//  2. Callbacks run one at a time, in the order of the Commit calls. Each runs
//     once everything committed up to its own Commit is durable.
//  3. A callback MUST NOT wait for another callback. Each callback delays those
//     that follow it.
type Log struct {
	disk *Disk

	mu        sync.Mutex
	writer    *store.Writer
	gates     []gate // in the order of Commit
	running   []gate // callbacks being run
	releasing bool   // a goroutine runs callbacks
	synced    store.Anchor
	delayed   bool // delayTimer is set
	closed    bool

	appended    chan struct{} // there may be a batch to write
	delayTimer  *time.Timer   // signals the channel appended after pieceDelay
	pieceDelay  time.Duration
	syncedMoved chan struct{}     // synced has changed
	stop        chan struct{}     // closed when no more entries are accepted
	unsynced    chan store.Anchor // ends of the log after appended batches, at most store.BatchesInFlight
	done        sync.WaitGroup

	written store.Anchor // ends of the log after the last appended batch; of writeBatches
	cutting sync.Mutex   // held by Cut, Forget and Backup
}

// gate is a callback and the log position that must be durable before it runs.
type gate struct {
	at    store.Pos
	after func()
}

// NewLog returns a Log that continues at the end of the disk's log. A disk MUST
// have only one Log.
func NewLog(d *Disk) *Log {
	invariant.Check(!d.options.ReadOnly, "disk: log over a read-only store")
	config := store.WriterConfig{Node: d.node, From: d.end}
	invariant.Must(rand.Read(config.Seed[:]))
	l := &Log{disk: d, writer: store.NewWriter(config), synced: store.Anchor{End: d.end, Origin: d.origin}, written: store.Anchor{End: d.end, Origin: d.origin},
		appended: make(chan struct{}, 1), syncedMoved: make(chan struct{}, 1), stop: make(chan struct{}),
		unsynced: make(chan store.Anchor, store.BatchesInFlight), pieceDelay: pieceDelayDefault}
	l.delayTimer = time.AfterFunc(time.Hour, l.endDelay)
	l.delayTimer.Stop()
	l.done.Add(3)
	go l.writeBatches()
	go l.awaitSyncs()
	go l.moveAnchor()
	return l
}

// Commit appends entries to the log. The callback after, which may be nil, runs
// when the log is durable up to these entries. If the log is already durable,
// the callback runs before Commit returns. Exception: another goroutine is
// running earlier callbacks.
func (l *Log) Commit(entries []store.Entry, after func()) {
	l.mu.Lock()
	if l.closed && len(entries) > 0 {
		l.mu.Unlock() // a concurrent Close must not be blocked by the panic
		invariant.Check(false, "disk: entries committed to a closed log")
	}
	at := l.writer.Append(entries)
	if after != nil {
		l.gates = append(l.gates, gate{at, after})
	}
	l.runCallbacks()
	wakeNow, startDelay := false, false
	switch {
	case len(entries) == 0:
		wakeNow = len(l.gates) > 0
	case onlyPieces(entries):
		startDelay, l.delayed = !l.delayed, true
	default:
		wakeNow = true
	}
	l.mu.Unlock()
	if wakeNow {
		notify(l.appended)
	}
	if startDelay {
		l.delayTimer.Reset(l.pieceDelay)
	}
}

// endDelay ends the delay of pieces.
func (l *Log) endDelay() {
	l.mu.Lock()
	l.delayed = false
	l.mu.Unlock()
	notify(l.appended)
}

// onlyPieces reports whether all entries are pieces of answers.
func onlyPieces(entries []store.Entry) bool {
	for i := range entries {
		if _, ok := entries[i].Record.(store.Streamed); !ok {
			return false
		}
	}
	return true
}

// Barrier runs the callback after when everything committed before the call is
// durable.
func (l *Log) Barrier(after func()) { l.Commit(nil, after) }

// runCallbacks runs the callbacks whose gates are open. l.mu is held, except
// while they run.
func (l *Log) runCallbacks() {
	if l.releasing {
		return
	}
	l.releasing = true
	for {
		open := 0
		for open < len(l.gates) && l.gates[open].at <= l.writer.Released() {
			open++
		}
		if open == 0 {
			break
		}
		l.running = append(l.running[:0], l.gates[:open]...)
		clear(l.gates[:open])
		if l.gates = l.gates[open:]; len(l.gates) == 0 {
			l.gates = nil
		}
		l.mu.Unlock()
		for i := range l.running {
			l.running[i].after()
		}
		clear(l.running)
		l.mu.Lock()
	}
	l.releasing = false
}

// Full returns an error while new work must wait for free space. Open work may
// complete.
func (l *Log) Full() error { return l.disk.Full() }

// Exhausted returns an error while even deletions must wait for free space.
func (l *Log) Exhausted() error { return l.disk.checkFree(l.disk.options.FreeFloor / reservePart) }

// Backlog returns the number of entries that wait to be written.
func (l *Log) Backlog() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.writer.Backlog()
}

// Close waits until everything committed is durable, runs the last callbacks
// and writes the anchor. It does not close the disk.
func (l *Log) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	l.mu.Unlock()
	l.delayTimer.Stop()
	close(l.stop)
	l.done.Wait()
	last := make(chan struct{}) // another goroutine may be running the callbacks
	l.Barrier(func() { close(last) })
	<-last
	if err := l.disk.writeAnchor(l.synced); err != nil {
		return err
	}
	return l.disk.closeAnchor()
}

func (l *Log) writeBatches() {
	defer l.done.Done()
	defer close(l.unsynced)
	stopping := false
	for {
		l.mu.Lock()
		b, ok := store.Batch{}, false
		if inFlight := len(l.unsynced); inFlight < eagerBatchesMax || l.writer.Backlog() >= inFlight {
			b, ok = l.writer.Take()
		}
		empty := l.writer.Backlog() == 0
		l.mu.Unlock()
		switch {
		case ok:
			l.writeBatch(&b)
		case stopping && empty:
			return
		case stopping:
			<-l.appended // a sync makes room for the rest
		default:
			select {
			case <-l.appended:
			case <-l.stop:
				stopping = true
			}
		}
	}
}

func (l *Log) writeBatch(b *store.Batch) {
	l.writer.Seal(b) // needs no lock and takes the longest
	if err := l.disk.Append(b); err != nil {
		l.disk.fatal("cannot write batch %d: %v", b.No, err)
	}
	l.writer.Reuse(b) // Pebble has copied the rows, so their memory can be reused
	l.mu.Lock()
	l.writer.Written(b.No)
	l.mu.Unlock()
	l.written.End = b.Mark()
	for i := range b.Entries {
		if c, ok := b.Entries[i].Record.(store.Cut); ok {
			l.written.Origin = c.Upto
		}
	}
	l.unsynced <- l.written
}

func (l *Log) awaitSyncs() {
	defer l.done.Done()
	defer close(l.syncedMoved)
	for ends := range l.unsynced {
		if err := l.disk.Sync(ends.End.Batch); err != nil {
			l.disk.fatal("cannot sync batch %d: %v", ends.End.Batch, err)
		}
		l.mu.Lock()
		l.writer.Synced(ends.End.Batch)
		l.synced = ends
		l.mu.Unlock()
		notify(l.appended)
		notify(l.syncedMoved)
		l.mu.Lock()
		l.runCallbacks()
		l.mu.Unlock()
	}
}

// moveAnchor writes the anchor after the log was synced, at most once per
// anchorEvery.
func (l *Log) moveAnchor() {
	defer l.done.Done()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for range l.syncedMoved {
		select {
		case <-pause.C:
		case <-l.stop: // Close writes the anchor a last time
			continue
		}
		l.mu.Lock()
		ends := l.synced
		l.mu.Unlock()
		if err := l.disk.writeAnchor(ends); err != nil {
			l.disk.fatal("cannot write %s: %v", anchorFile, cause(err))
		}
		pause.Reset(anchorEvery)
	}
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
