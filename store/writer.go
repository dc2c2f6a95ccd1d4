// SPDX-License-Identifier: Apache-2.0

package store

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/failpoint"
	"github.com/troupe-run/troupe/internal/invariant"
)

// Defaults of the bounds in WriterConfig.
const (
	BatchBytesMax   = 4 << 20
	BatchesInFlight = 64
)

// WriterConfig configures a Writer. The struct tag sim of a field is the range from
// which the simulator draws its value.
type WriterConfig struct {
	Node            actor.NodeID
	From            Mark             // end of the log, as returned by Verify
	Seed            [32]byte         // seed of the random salts in the values of rows
	BatchBytesMax   int              `sim:"1KiB..4MiB"` // approximate maximum batch size; 0 means BatchBytesMax; a single Append may exceed it
	BatchesInFlight int              `sim:"1..4"`       // maximum number of batches that are taken but not yet synced; 0 means BatchesInFlight
	Failpoints      failpoint.Points // set only by the simulator
}

// Writer groups the entries of a node's log into batches and computes the position
// up to which dependent effects may be released. The host appends batches to a Log and
// syncs them.
//
//		Append ─▶ waiting ─Next▶ in flight ─Written, Synced▶ released
//
//	 1. Batches are numbered without gaps. Each contains the hash of the previous one.
//	 2. The entries of one Append are never split over two batches.
//	 3. Released advances only over synced batches, in order.
//	 4. After a call of Failed, no batch is returned and Released does not advance.
type Writer struct {
	config   WriterConfig
	chain    chain
	waiting  []Entry
	groups   []group // number and size of the entries of each Append in w.waiting
	end      Pos
	taken    Mark // last batch taken; its hash is not set here, because chain computes it
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

// Batch is a unit of writing: a Log stores all of its entries or none.
type Batch struct {
	Node    actor.NodeID
	From    Mark // end of the log before the batch
	No      uint64
	Pos     Pos // end of the log after the batch
	Shards  []ShardEpoch
	Entries []Entry
	Places  []Place // of each entry; unset for a Snapshot
	Rows    []Row   // the batch for a Log that stores rows
	Hash    actor.Hash
}

// Mark returns the mark of the batch.
func (b *Batch) Mark() Mark { return Mark{b.No, b.Pos, b.Hash} }

// NewWriter returns a Writer that continues the log at config.From.
func NewWriter(config WriterConfig) *Writer {
	invariant.Check(actor.CheckName(string(config.Node)) == nil, "store: invalid node name %q", config.Node)
	if config.BatchBytesMax == 0 {
		config.BatchBytesMax = BatchBytesMax
	}
	if config.BatchesInFlight == 0 {
		config.BatchesInFlight = BatchesInFlight
	}
	return &Writer{config: config, end: config.From.Pos, released: config.From.Pos, taken: config.From,
		chain: chain{config.From, newRowWriter(config.Node, config.Seed)}}
}

// Append adds the entries of one step to the log and returns its new end.
func (w *Writer) Append(entries []Entry) Pos {
	if len(entries) == 0 {
		return w.end
	}
	w.end += Pos(len(entries))
	if w.failed {
		return w.end // the writer has failed: this position is never released
	}
	bytes := 0
	for i := range entries {
		bytes += entrySize(&entries[i])
	}
	w.waiting = append(w.waiting, entries...)
	w.groups = append(w.groups, group{len(entries), bytes})
	return w.end
}

// Next returns the next batch to write. It returns false if no entries wait, if
// BatchesInFlight is reached, or after Failed.
func (w *Writer) Next() (Batch, bool) {
	b, ok := w.Take()
	if ok {
		w.Seal(&b)
	}
	return b, ok
}

// Take is the first half of Next: it selects the entries. The batch has no rows yet.
func (w *Writer) Take() (Batch, bool) {
	if w.failed || len(w.groups) == 0 || len(w.inFlight) >= w.config.BatchesInFlight {
		return Batch{}, false
	}
	groups, entries, bytes := 0, 0, 0
	for _, g := range w.groups {
		if groups > 0 && (bytes+g.bytes > w.config.BatchBytesMax || w.config.Failpoints.On(failpoint.BatchOfOne)) {
			break
		}
		groups, entries, bytes = groups+1, entries+g.entries, bytes+g.bytes
	}
	b := Batch{Node: w.config.Node, No: w.taken.Batch + 1, Pos: w.taken.Pos + Pos(entries), Entries: w.waiting[:entries:entries]}
	w.waiting, w.groups = w.waiting[entries:], w.groups[groups:]
	if len(w.waiting) == 0 {
		w.waiting, w.groups = nil, nil
	}
	w.taken = Mark{Batch: b.No, Pos: b.Pos}
	w.inFlight = append(w.inFlight, inFlight{no: b.No, pos: b.Pos})
	return b, true
}

// Seal is the second half of Next: it encodes the rows. Reuse is the only other method
// that shares state with Seal, so a host may call Append at the same time. Batches
// MUST be sealed in order.
func (w *Writer) Seal(b *Batch) {
	invariant.Check(b.No == w.chain.last.Batch+1, "store: batch %d sealed after batch %d", b.No, w.chain.last.Batch)
	b.From, b.Shards = w.chain.last, shardsOf(b.Entries)
	w.chain.seal(b)
}

// Reuse releases the rows of the last sealed batch. The rows MUST NOT be read after
// Reuse, because the next Seal overwrites their memory. Reuse and Seal MUST NOT run
// concurrently.
func (w *Writer) Reuse(b *Batch) {
	w.chain.rows.recycle(b.Rows, b.Places)
	b.Rows, b.Places = nil, nil
}

// Written reports that a batch has been written, not necessarily durably. Batches
// MUST be reported in order.
func (w *Writer) Written(no uint64) {
	for i := range w.inFlight {
		if w.inFlight[i].no == no {
			w.inFlight[i].written = true
			return
		}
		invariant.Check(w.inFlight[i].written, "store: batch %d written before batch %d", no, w.inFlight[i].no)
	}
	invariant.Check(false, "store: batch %d is not in flight", no)
}

// Synced reports that a batch and all earlier batches are durable. All these batches
// MUST have been reported by Written before.
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

// Failed reports that a write or a sync failed. The log accepts no more writes.
func (w *Writer) Failed() { w.failed = true }

// Released returns the durable end of the log. Effects that depend only on entries
// before this position may be released.
func (w *Writer) Released() Pos { return w.released }

// End returns the end of the log, durable or not.
func (w *Writer) End() Pos { return w.end }

// Backlog returns the number of entries that wait for a batch.
func (w *Writer) Backlog() int { return len(w.waiting) }

// Size returns the approximate encoded size of the entry in bytes.
func (e *Entry) Size() int { return entrySize(e) }

// entrySize returns the approximate encoded size of an entry in bytes.
func entrySize(e *Entry) int {
	n := 512
	if r, ok := e.Record.(Snapshot); ok {
		n += len(r.Journal)
		for _, b := range r.Pages {
			n += len(b)
		}
	}
	visitParts(e.Record, func(parts []actor.Part) {
		for i := range parts {
			n += len(parts[i].Bytes)
		}
	})
	for _, ev := range e.Events {
		n += len(ev.Body) + 128
	}
	if a := e.Shown.Ask; a != nil {
		n += len(a.Piece.Text) + len(a.Piece.Detail)
	}
	for i := range e.Shown.Refused {
		n += actor.SizeOf(e.Shown.Refused[i].Ask.Parts)
	}
	return n
}
