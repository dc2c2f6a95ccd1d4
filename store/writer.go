// SPDX-License-Identifier: Apache-2.0

package store

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/failpoint"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/internal/mutant"
)

// Bounds of a Writer that are not given.
const (
	BatchBytesMax   = 4 << 20
	BatchesInFlight = 64
)

// WriterConfig is what a Writer begins with. The tag of a bound is the range from
// which the simulator draws it.
type WriterConfig struct {
	Node            actor.NodeID
	From            Mark             // the log's end, as Verify found it
	Seed            [32]byte         // of the salts
	BatchBytesMax   int              `sim:"1KiB..4MiB"` // 0: the constant of that name; one step's entries may weigh more
	BatchesInFlight int              `sim:"1..4"`       // 0: the constant of that name
	Rare            failpoint.Points // nil but in the simulator
	Older           bool             // what the first version could have written is written as it did: so but in the simulator nobody does
}

// Writer decides what is written to a node's log, in which batches, and when
// what depends on it may be seen. Whoever drives it writes and syncs.
//
//		Append ─▶ waiting ─Next▶ in flight ─Written, Synced▶ released
//
//	 1. Batches are numbered without gap; each follows the one before in the chain.
//	 2. What one Append brought is never split over two batches.
//	 3. Released grows only over batches that are synced, in order.
//	 4. After Failed nothing is written or released any more.
type Writer struct {
	config   WriterConfig
	chain    chain
	waiting  []Entry
	groups   []group // of waiting
	end      Pos
	taken    Mark // last batch taken; its hash is the chain's matter
	inFlight []inFlight
	released Pos
	failed   bool
}

type group struct{ entries, bytes int }

type inFlight struct {
	no      uint64
	pos     Pos
	written bool
}

// Batch is what is written at once: all its rows or none.
type Batch struct {
	No      uint64
	Pos     Pos // the log's end behind it
	Shards  []ShardEpoch
	Entries []Entry
	Rows    []Row
	Hash    actor.Hash
}

// Mark names the batch in its log.
func (b *Batch) Mark() Mark { return Mark{b.No, b.Pos, b.Hash} }

// NewWriter continues a log.
func NewWriter(config WriterConfig) *Writer {
	invariant.Check(actor.CheckName(string(config.Node)) == nil, "store: node %q", config.Node)
	if config.BatchBytesMax == 0 {
		config.BatchBytesMax = BatchBytesMax
	}
	if config.BatchesInFlight == 0 {
		config.BatchesInFlight = BatchesInFlight
	}
	rows := newRowWriter(config.Node, config.Seed)
	rows.version1 = config.Older
	return &Writer{config: config, end: config.From.Pos, released: config.From.Pos, taken: config.From, chain: chain{config.From, rows}}
}

// Append puts one step's entries at the log's end, and says where that is now.
func (w *Writer) Append(entries []Entry) Pos {
	if len(entries) == 0 {
		return w.end
	}
	w.end += Pos(len(entries))
	if w.failed {
		return w.end // which is never released
	}
	bytes := 0
	for i := range entries {
		bytes += entrySize(&entries[i])
	}
	w.waiting = append(w.waiting, entries...)
	w.groups = append(w.groups, group{len(entries), bytes})
	return w.end
}

// Next is the batch to write now; false if nothing waits, or enough is in flight.
func (w *Writer) Next() (Batch, bool) {
	b, ok := w.Take()
	if ok {
		w.Seal(&b)
	}
	return b, ok
}

// Take is the first half of Next: which entries. The batch has no rows yet.
func (w *Writer) Take() (Batch, bool) {
	if w.failed || len(w.groups) == 0 || len(w.inFlight) >= w.config.BatchesInFlight {
		return Batch{}, false
	}
	groups, entries, bytes := 0, 0, 0
	for _, g := range w.groups {
		if groups > 0 && (bytes+g.bytes > w.config.BatchBytesMax || w.config.Rare.On(failpoint.BatchOfOne)) {
			break
		}
		groups, entries, bytes = groups+1, entries+g.entries, bytes+g.bytes
	}
	b := Batch{No: w.taken.Batch + 1, Pos: w.taken.Pos + Pos(entries), Entries: w.waiting[:entries:entries]}
	w.waiting, w.groups = w.waiting[entries:], w.groups[groups:]
	if len(w.waiting) == 0 {
		w.waiting, w.groups = nil, nil
	}
	w.taken = Mark{Batch: b.No, Pos: b.Pos}
	w.inFlight = append(w.inFlight, inFlight{no: b.No, pos: b.Pos})
	return b, true
}

// Seal is the second half: its rows. It touches nothing that the other methods
// do, so that a host may append while it runs; batches are sealed in order.
func (w *Writer) Seal(b *Batch) {
	invariant.Check(b.No == w.chain.last.Batch+1, "store: batch %d sealed behind batch %d", b.No, w.chain.last.Batch)
	b.Shards = shardsOf(b.Entries)
	w.chain.seal(b)
}

// Reuse says that nobody reads the rows of the batch that was sealed last any
// more: their memory is that of the next. It touches what Seal does.
func (w *Writer) Reuse(b *Batch) {
	w.chain.rows.recycle(b.Rows)
	b.Rows = nil
}

// Written says that the batch stands in the log, not yet that it will after a crash.
func (w *Writer) Written(no uint64) {
	for i := range w.inFlight {
		if w.inFlight[i].no == no {
			w.inFlight[i].written = true
			if mutant.On("released-at-written") && !w.failed {
				w.released = w.inFlight[i].pos
			}
			return
		}
		invariant.Check(w.inFlight[i].written, "store: batch %d written before batch %d", no, w.inFlight[i].no)
	}
	invariant.Check(false, "store: batch %d is not in flight", no)
}

// Synced says that the batch and all before it will be there after a crash.
func (w *Writer) Synced(no uint64) {
	for len(w.inFlight) > 0 && w.inFlight[0].no <= no {
		f := w.inFlight[0]
		invariant.Check(f.written, "store: batch %d synced before it was written", f.no)
		w.inFlight = w.inFlight[1:]
		if !w.failed {
			w.released = max(w.released, f.pos)
		}
	}
}

// Failed says that a write or a sync failed: the log is over.
func (w *Writer) Failed() { w.failed = true }

// Released is how far the log is durable: what depends on no more than that may be seen.
func (w *Writer) Released() Pos { return w.released }

// End is where the log ends, durable or not.
func (w *Writer) End() Pos { return w.end }

// Backlog is how many entries wait for a batch.
func (w *Writer) Backlog() int { return len(w.waiting) }

// entrySize is about how many bytes an entry will take.
func entrySize(e *Entry) int {
	n := 512
	if r, ok := e.Record.(Snapshot); ok {
		n += len(r.Journal)
	}
	visitParts(e.Record, func(parts []actor.Part) {
		for i := range parts {
			n += len(parts[i].Bytes)
		}
	})
	for _, ev := range e.Events {
		n += len(ev.Body) + 128
	}
	return n
}
