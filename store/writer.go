// SPDX-License-Identifier: Apache-2.0

package store

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/failpoint"
)

// Defaults of the bounds in WriterConfig.
const (
	BatchBytesMax   = 4 << 20
	BatchesInFlight = 64
)

// WriterConfig configures a Writer, or Writers. The struct tag sim of a field is the range from
// which the simulator draws its value.
type WriterConfig struct {
	Node            actor.NodeID     // of a Writer
	From            Mark             // end of its log, as returned by Verify
	Seed            [32]byte         // seed of the random salts in the values of rows
	BatchBytesMax   int              `sim:"1KiB..4MiB"` // approximate maximum batch size; 0 means BatchBytesMax; a single Append may exceed it
	BatchesInFlight int              `sim:"1..4"`       // maximum number of batches that are taken but not yet synced; 0 means BatchesInFlight
	Failpoints      failpoint.Points // set only by the simulator
}

// Writer is a Writers of one log. Each of its transactions is a batch, with the number of the batch.
//
//		Append ─▶ waiting ─Next▶ in flight ─Written, Synced▶ released
//
//	 1. Batches are numbered without gaps. Each contains the hash of the previous one.
//	 2. The entries of one Append are never split over two batches.
//	 3. Released advances only over synced batches, in order.
//	 4. After a call of Failed, no batch is returned and Released does not advance.
type Writer struct{ all *Writers }

// Batch is a unit of writing to one log: a Log stores all of its entries or none.
type Batch struct {
	Node    actor.NodeID
	Log     uint16 // number among the logs of its Writers
	From    Mark   // end of the log before the batch
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
	return &Writer{NewWriters(config, []LogEnd{{config.Node, Anchor{End: config.From}}})}
}

// Append adds the entries of one step to the log and returns its new end.
func (w *Writer) Append(entries []Entry) Pos { return w.all.Append(entries) }

// Next returns the next batch to write. It returns false if no entries wait, if
// BatchesInFlight is reached, or after Failed.
func (w *Writer) Next() (Batch, bool) {
	t, ok := w.all.Take()
	if !ok {
		return Batch{}, false
	}
	w.all.Seal(t)
	return t.Batches[0], true
}

// Reuse releases the rows of the last batch. They MUST NOT be read after Reuse, because the next
// batch overwrites their memory.
func (w *Writer) Reuse(b *Batch) { w.all.Reuse(&Transaction{b.No, []Batch{*b}}) }

// Written reports that a batch has been written, not necessarily durably. Batches
// MUST be reported in order.
func (w *Writer) Written(no uint64) { w.all.Written(no) }

// Synced reports that a batch and all earlier batches are durable. All these batches
// MUST have been reported by Written before.
func (w *Writer) Synced(no uint64) { w.all.Synced(no) }

// Failed reports that a write or a sync failed. The log accepts no more writes.
func (w *Writer) Failed() { w.all.Failed() }

// Released returns the durable end of the log. Effects that depend only on entries
// before this position may be released.
func (w *Writer) Released() Pos { return w.all.Released() }

// End returns the end of the log, durable or not.
func (w *Writer) End() Pos { return w.all.End() }

// Backlog returns the number of entries that wait for a batch.
func (w *Writer) Backlog() int { return w.all.Backlog() }

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
