// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/store"
)

const (
	// AnchorEvery is the minimum interval between two writes of the anchor.
	AnchorEvery = 100 * time.Millisecond
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

// Log appends entries to the logs of a store, of which most stores have one. It drives a store.Writers with
// three goroutines: one writes transactions, one waits for syncs, one writes the anchor.
//
//  1. Entries are durable in the order of the Commit calls, whatever their log.
//  2. Callbacks run one at a time, in the order of the Commit calls. Each runs
//     once everything committed up to its own Commit is durable.
//  3. A callback MUST NOT wait for another callback. Each callback delays those
//     that follow it.
type Log struct {
	config Config
	store  store.Logs

	mu        sync.Mutex
	writer    *store.Writers
	gates     []gate         // in the order of Commit
	running   []gate         // callbacks being run
	releasing bool           // a goroutine runs callbacks
	ends      []end          // of the logs after written transactions, in their order
	synced    []store.Anchor // of the durable logs, by number
	owned     []bool         // by number: this process writes the log
	delayed   bool           // delayTimer is set
	selected  []*Selected
	closed    bool

	appended    chan struct{} // there may be a transaction to write
	delayTimer  *time.Timer   // signals the channel appended after pieceDelay
	pieceDelay  time.Duration
	syncedMoved chan struct{} // synced has changed
	stop        chan struct{} // closed when no more entries are accepted
	unsynced    chan uint64   // numbers of appended transactions, at most store.BatchesInFlight
	done        sync.WaitGroup

	written []store.Anchor // of the logs after the last appended transaction; of writeBatches
	cutting sync.Mutex     // held by Cut, Forget and WhileUncut
}

// Config is the store of a Log, with what the store's kind decides.
type Config struct {
	// Store has several logs only if it is a store.Logs, too.
	Store store.Forgetter
	Logs  []store.LogEnd // with the ends at the time the store was opened
	// Adopted says that other processes write the logs until Adopt.
	Adopted bool
	// Full and Exhausted return an error while new work, or even a deletion, must wait.
	Full, Exhausted func() error
	// FlushIndex makes the rows of the index cover all batches.
	FlushIndex func() error
	// Anchor records the ends of the first log, which was synced, outside of the log. CloseAnchor does so a last
	// time. Both may be nil.
	Anchor, CloseAnchor func(store.Anchor) error
	// Closing reports that the Log begins to close; may be nil.
	Closing func()
	// Fatal reports that the store can no longer be written. It MUST NOT return.
	Fatal func(format string, args ...any)
	// PieceDelay is the delay of a piece of an answer; 0 means 1 ms.
	PieceDelay time.Duration
}

// end is the state of a log after a transaction.
type end struct {
	no  uint64 // of the transaction
	log uint16
	store.Anchor
}

// gate is a callback and the log position that must be durable before it runs.
type gate struct {
	at    store.Pos
	after func()
}

// New returns a Log that continues at the ends of a store's logs. A store MUST have only one Log.
func New(c Config) *Log {
	var writer store.WriterConfig
	invariant.Must(rand.Read(writer.Seed[:]))
	l := &Log{config: c, writer: store.NewWriters(writer, c.Logs),
		appended: make(chan struct{}, 1), syncedMoved: make(chan struct{}, 1), stop: make(chan struct{}),
		unsynced: make(chan uint64, store.BatchesInFlight), pieceDelay: cmp.Or(c.PieceDelay, pieceDelayDefault)}
	var several bool
	if l.store, several = c.Store.(store.Logs); !several {
		invariant.Check(len(c.Logs) == 1, "logs: %T has one log, not %d", c.Store, len(c.Logs))
		l.store = store.OneLog{Log: c.Store}
	}
	for _, end := range c.Logs {
		l.synced, l.written, l.owned = append(l.synced, end.Anchor), append(l.written, end.Anchor), append(l.owned, !c.Adopted)
	}
	l.delayTimer = time.AfterFunc(time.Hour, l.endDelay)
	l.delayTimer.Stop()
	l.done.Add(3)
	go l.writeBatches()
	go l.awaitSyncs()
	go l.moveAnchor()
	return l
}

// Commit appends entries to their log, which MUST be one. The callback after, which may be nil, runs
// when the log is durable up to these entries. If the log is already durable,
// the callback runs before Commit returns. Exception: another goroutine is
// running earlier callbacks.
func (l *Log) Commit(entries []store.Entry, after func()) {
	l.mu.Lock()
	if l.closed && len(entries) > 0 {
		l.mu.Unlock() // a concurrent Close must not be blocked by the panic
		invariant.Check(false, "logs: entries committed to a closed log")
	}
	if len(entries) > 0 && !l.owned[store.LogOf(entries[0].Shard, len(l.owned))] {
		l.mu.Unlock()
		invariant.Check(false, "logs: an entry of %s is committed to a log of another process", entries[0].Actor)
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
func (l *Log) Full() error { return l.config.Full() }

// Exhausted returns an error while even deletions must wait for free space.
func (l *Log) Exhausted() error { return l.config.Exhausted() }

// Count returns the number of logs.
func (l *Log) Count() int { return len(l.config.Logs) }

// Ends returns the logs, by number, with their ends at the time the store was opened.
func (l *Log) Ends() []store.LogEnd { return l.config.Logs }

// Adopt begins to write a log, at its end.
func (l *Log) Adopt(log uint16, end store.Anchor) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writer.Continue(log, end.End)
	l.synced[log], l.written[log], l.owned[log] = end, end, true
}

// Drop writes a log no longer. All that was committed to it is durable when it returns.
func (l *Log) Drop(log uint16) {
	l.cutting.Lock()
	defer l.cutting.Unlock()
	durable := make(chan struct{})
	l.Barrier(func() { close(durable) })
	<-durable
	l.mu.Lock()
	defer l.mu.Unlock()
	l.owned[log] = false
}

// Owns reports whether this process writes a log.
func (l *Log) Owns(log int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.owned[log]
}

// Node returns the name of a log.
func (l *Log) Node(log int) actor.NodeID { return l.config.Logs[log].Node }

// Synced returns the ends of a durable log.
func (l *Log) Synced(log int) store.Anchor {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.synced[log]
}

// Released returns the position up to which callbacks may run. It counts the entries of all logs.
func (l *Log) Released() store.Pos {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.writer.Released()
}

// Backlog returns the number of entries that wait to be written.
func (l *Log) Backlog() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.writer.Backlog()
}

// Close waits until everything committed is durable, runs the last callbacks
// and writes the anchor. It does not close the store.
func (l *Log) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	l.mu.Unlock()
	if l.config.Closing != nil {
		l.config.Closing()
	}
	l.delayTimer.Stop()
	close(l.stop)
	l.done.Wait()
	last := make(chan struct{}) // another goroutine may be running the callbacks
	l.Barrier(func() { close(last) })
	<-last
	if l.config.CloseAnchor == nil {
		return nil
	}
	return l.config.CloseAnchor(l.synced[0])
}

func (l *Log) writeBatches() {
	defer l.done.Done()
	defer close(l.unsynced)
	stopping := false
	for {
		l.mu.Lock()
		var t *store.Transaction
		ok := false
		if inFlight := len(l.unsynced); inFlight < eagerBatchesMax || l.writer.Backlog() >= inFlight {
			t, ok = l.writer.Take()
		}
		empty := l.writer.Backlog() == 0
		l.mu.Unlock()
		switch {
		case ok:
			l.write(t)
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

func (l *Log) write(t *store.Transaction) {
	l.writer.Seal(t) // needs no lock and takes the longest
	if err := l.append(t); err != nil {
		l.config.Fatal("cannot write %s: %v", named(t), err)
	}
	l.writer.Reuse(t) // the store has copied the rows, so their memory can be reused
	for _, s := range l.selections() {
		s.add(t)
	}
	l.mu.Lock()
	l.writer.Written(t.No)
	for i := range t.Batches {
		b := &t.Batches[i]
		l.written[b.Log].End = b.Mark()
		for j := range b.Entries {
			if c, ok := b.Entries[j].Record.(store.Cut); ok {
				l.written[b.Log].Origin = c.Upto
			}
		}
		l.ends = append(l.ends, end{t.No, b.Log, l.written[b.Log]})
	}
	l.mu.Unlock()
	l.unsynced <- t.No
}

// named names the first batch of a transaction.
func named(t *store.Transaction) string {
	return fmt.Sprintf("batch %d of %s", t.Batches[0].No, t.Batches[0].Node)
}

func (l *Log) selections() []*Selected {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.selected
}

// append stores a transaction. While its result is unknown, it settles it and tries again.
func (l *Log) append(t *store.Transaction) error {
	err := l.store.AppendAll(t)
	for errors.As(err, new(store.Unknown)) {
		err = store.ResumeAll(l.store, t)
	}
	return err
}

func (l *Log) awaitSyncs() {
	defer l.done.Done()
	defer close(l.syncedMoved)
	for no := range l.unsynced {
		if err := l.store.Sync(no); err != nil {
			l.config.Fatal("cannot sync transaction %d: %v", no, err)
		}
		l.mu.Lock()
		l.writer.Synced(no)
		n := 0
		for ; n < len(l.ends) && l.ends[n].no <= no; n++ {
			l.synced[l.ends[n].log] = l.ends[n].Anchor
		}
		l.ends = append(l.ends[:0], l.ends[n:]...)
		selected := l.selected
		for _, s := range selected {
			s.sync(l.synced[s.log].End.Batch)
		}
		l.mu.Unlock()
		notify(l.appended)
		notify(l.syncedMoved)
		l.mu.Lock()
		l.runCallbacks()
		l.mu.Unlock()
	}
}

// moveAnchor writes the anchor after the log was synced, at most once per
// AnchorEvery.
func (l *Log) moveAnchor() {
	defer l.done.Done()
	if l.config.Anchor == nil {
		return
	}
	pause := time.NewTimer(0)
	defer pause.Stop()
	for range l.syncedMoved {
		select {
		case <-pause.C:
		case <-l.stop: // Close writes the anchor a last time
			continue
		}
		if err := l.config.Anchor(l.Synced(0)); err != nil {
			l.config.Fatal("cannot write %v", err)
		}
		pause.Reset(AnchorEvery)
	}
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
