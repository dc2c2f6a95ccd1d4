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
	// anchorEvery is how often the anchor is moved at most.
	anchorEvery = 100 * time.Millisecond
	// pieceDelayDefault is how long a piece of an answer waits for what comes behind it, which
	// is mostly the answer's end: both then share a sync.
	pieceDelayDefault = time.Millisecond
	// eagerBatchesMax is how many batches may wait for syncs before the next has to be of
	// as many entries as there are: they share a sync, and it may well go with them.
	eagerBatchesMax = 4
)

// Log is the way in for entries: it drives a store.Writer over a Disk, one
// goroutine writing, one waiting for syncs, one moving the anchor.
//
//  1. Entries stand in the log in the order of the calls of Commit.
//  2. Callbacks run one at a time, in that order, each when all that was
//     committed up to its call is durable.
//  3. A callback must not wait for another one, and holds up those behind it.
type Log struct {
	disk *Disk

	mu        sync.Mutex
	writer    *store.Writer
	gates     []gate
	running   []gate // being run
	releasing bool   // one goroutine runs callbacks
	synced    store.Mark
	delayed   bool // later is set
	closed    bool

	appended    chan struct{} // there may be a batch to write
	delayTimer  *time.Timer   // says so of pieces, that wait so long:
	pieceDelay  time.Duration
	syncedMoved chan struct{} // synced has moved
	stop        chan struct{} // no more entries come
	unsynced    chan unsyncedBatch
	done        sync.WaitGroup
}

type gate struct {
	at    store.Pos
	after func()
}

type unsyncedBatch struct {
	write write
	mark  store.Mark
}

// NewLog goes on where the disk's log ends. A disk has one Log.
func NewLog(d *Disk) *Log {
	invariant.Check(!d.options.ReadOnly, "disk: a log over a store that is open for reading")
	config := store.WriterConfig{Node: d.node, From: d.end}
	invariant.Must(rand.Read(config.Seed[:]))
	l := &Log{disk: d, writer: store.NewWriter(config), synced: d.end,
		appended: make(chan struct{}, 1), syncedMoved: make(chan struct{}, 1), stop: make(chan struct{}),
		unsynced: make(chan unsyncedBatch, store.BatchesInFlight), pieceDelay: pieceDelayDefault}
	l.delayTimer = time.AfterFunc(time.Hour, l.endDelay)
	l.delayTimer.Stop()
	l.done.Add(3)
	go l.writeBatches()
	go l.awaitSyncs()
	go l.moveAnchor()
	return l
}

// Commit puts entries at the log's end, and has after run when the log is
// durable up to there; after may be nil. If that is so already it runs before
// Commit returns, unless another goroutine is running those before it.
func (l *Log) Commit(entries []store.Entry, after func()) {
	l.mu.Lock()
	if l.closed && len(entries) > 0 {
		l.mu.Unlock() // who is closing it goes on
		invariant.Check(false, "disk: entries for a closed log")
	}
	at := l.writer.Append(entries)
	if after != nil {
		l.gates = append(l.gates, gate{at, after})
	}
	l.runCallbacks()
	now, later := false, false
	switch {
	case len(entries) == 0:
		now = len(l.gates) > 0
	case onlyPieces(entries):
		later, l.delayed = !l.delayed, true
	default:
		now = true
	}
	l.mu.Unlock()
	if now {
		notify(l.appended)
	}
	if later {
		l.delayTimer.Reset(l.pieceDelay)
	}
}

// endDelay ends the wait of pieces.
func (l *Log) endDelay() {
	l.mu.Lock()
	l.delayed = false
	l.mu.Unlock()
	notify(l.appended)
}

// onlyPieces tells whether entries are pieces of answers, and nothing else.
func onlyPieces(entries []store.Entry) bool {
	for i := range entries {
		if _, ok := entries[i].Record.(store.Streamed); !ok {
			return false
		}
	}
	return true
}

// Barrier has after run when all that was committed before is durable.
func (l *Log) Barrier(after func()) { l.Commit(nil, after) }

// runCallbacks runs the callbacks whose gates are open; l.mu is held but while they run.
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

// Full says that new work must wait until there is room; what was begun may end.
func (l *Log) Full() error { return l.disk.Full() }

// Backlog is how many entries wait to be written.
func (l *Log) Backlog() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.writer.Backlog()
}

// Close waits until all that was committed is durable, runs the last callbacks
// and writes the anchor. The disk stays open.
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
		if out := len(l.unsynced); out < eagerBatchesMax || l.writer.Backlog() >= out {
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
			<-l.appended // a sync makes room for what is left
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
	l.writer.Seal(b) // needs no lock, and takes longest
	w, err := l.disk.write(b.Rows)
	if err != nil {
		l.disk.fatal("cannot write batch %d: %v", b.No, err)
	}
	l.writer.Reuse(b) // Pebble has a copy
	l.mu.Lock()
	l.writer.Written(b.No)
	l.mu.Unlock()
	l.unsynced <- unsyncedBatch{w, b.Mark()}
}

func (l *Log) awaitSyncs() {
	defer l.done.Done()
	defer close(l.syncedMoved)
	for f := range l.unsynced {
		if err := f.write.sync(); err != nil {
			l.disk.fatal("cannot sync batch %d: %v", f.mark.Batch, err)
		}
		l.mu.Lock()
		l.writer.Synced(f.mark.Batch)
		l.synced = f.mark
		l.mu.Unlock()
		notify(l.appended)
		notify(l.syncedMoved)
		l.mu.Lock()
		l.runCallbacks()
		l.mu.Unlock()
	}
}

// moveAnchor writes the anchor when the log has moved, and then rests.
func (l *Log) moveAnchor() {
	defer l.done.Done()
	rest := time.NewTimer(0)
	defer rest.Stop()
	for range l.syncedMoved {
		select {
		case <-rest.C:
		case <-l.stop: // Close writes the last one
			continue
		}
		l.mu.Lock()
		mark := l.synced
		l.mu.Unlock()
		if err := l.disk.writeAnchor(mark); err != nil {
			l.disk.fatal("cannot move the anchor: %v", err)
		}
		rest.Reset(anchorEvery)
	}
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
