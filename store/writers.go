// SPDX-License-Identifier: Apache-2.0

package store

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/failpoint"
	"github.com/troupe-run/troupe/internal/invariant"
)

// LogEnd is a log and its ends.
type LogEnd struct {
	Node actor.NodeID // name of the log
	Anchor
}

// LogOf returns the number of the log that has the entries of a shard. Each shard has one log.
func LogOf(shard uint16, logs int) uint16 { return uint16(int(shard) % logs) }

// Writers groups the entries of a process into transactions of one or several logs, and computes the
// position up to which dependent effects may be released. The host stores transactions and syncs them.
//
//		Append ─▶ waiting ─Take, Seal▶ in flight ─Written, Synced▶ released
//
//	 1. Transactions are numbered without gaps. So are the batches of each log, of which each contains the
//	    hash of the previous one.
//	 2. The entries of one Append are of one log, and are never split over two batches.
//	 3. A transaction has everything that was appended before its end, whatever the log. Therefore a crash loses
//	    what was appended last, as with one log.
//	 4. Released advances only over synced transactions, in order.
//	 5. After a call of Failed, no transaction is returned and Released does not advance.
//
// Positions count the entries of all logs.
type Writers struct {
	config   WriterConfig
	chains   []chain // of the logs, by number
	taken    []Mark  // last batch taken of each log; without hashes, because a chain computes them
	waiting  []Entry // of all logs, in the order of Append
	groups   []group // of the entries of each Append in w.waiting
	end      Pos
	last     inFlight // last transaction taken
	inFlight []inFlight
	released Pos
	failed   bool
	current  Transaction // reused
}

// group is the log, number and size of the entries of an Append.
type group struct {
	log            uint16
	entries, bytes int
}

type inFlight struct {
	no      uint64
	pos     Pos
	written bool
}

// Transaction is a unit of writing: Logs stores all of its batches or none.
type Transaction struct {
	No      uint64
	Batches []Batch // of the logs with entries, by number
}

// NewWriters returns a Writers that continues logs at their ends. It does not use the Node of its
// configuration.
func NewWriters(config WriterConfig, logs []LogEnd) *Writers {
	if config.BatchBytesMax == 0 {
		config.BatchBytesMax = BatchBytesMax
	}
	if config.BatchesInFlight == 0 {
		config.BatchesInFlight = BatchesInFlight
	}
	w := &Writers{config: config}
	for n, l := range logs {
		invariant.Check(actor.CheckName(string(l.Node)) == nil, "store: invalid node name %q", l.Node)
		seed := config.Seed
		seed[0], seed[1] = seed[0]^byte(n), seed[1]^byte(n>>8)
		w.chains, w.taken = append(w.chains, chain{l.End, newRowWriter(l.Node, seed)}), append(w.taken, l.End)
		w.last.no, w.last.pos = w.last.no+l.End.Batch, w.last.pos+l.End.Pos
	}
	w.end, w.released = w.last.pos, w.last.pos
	return w
}

// Continue has w continue a log at another end: another process may have written the log since it was last written
// here. No entry of the log may wait or be in flight.
func (w *Writers) Continue(log uint16, end Mark) {
	for _, g := range w.groups {
		invariant.Check(g.log != log, "store: log %d is continued while entries of it wait", log)
	}
	invariant.Check(w.taken[log].Batch == w.chains[log].last.Batch, "store: log %d is continued while a batch of it is written", log)
	w.chains[log].last, w.taken[log] = end, end
}

// Append adds the entries of one step, which MUST be of one log, and returns the new end.
func (w *Writers) Append(entries []Entry) Pos {
	if len(entries) == 0 {
		return w.end
	}
	w.end += Pos(len(entries))
	if w.failed {
		return w.end // the writer has failed: this position is never released
	}
	g := group{LogOf(entries[0].Shard, len(w.chains)), len(entries), 0}
	for i := range entries {
		log := LogOf(entries[i].Shard, len(w.chains))
		invariant.Check(log == g.log, "store: a step appends to log %d and to log %d", g.log, log)
		g.bytes += entrySize(&entries[i])
	}
	w.waiting = append(w.waiting, entries...)
	w.groups = append(w.groups, g)
	return w.end
}

// Take selects the entries of the next transaction. Its batches have no rows until Seal, and are valid until
// the next call of Take. It returns false if no entries wait, if BatchesInFlight is reached, or after Failed.
func (w *Writers) Take() (*Transaction, bool) {
	if w.failed || len(w.groups) == 0 || len(w.inFlight) >= w.config.BatchesInFlight {
		return nil, false
	}
	groups, entries, bytes := 0, 0, 0
	for _, g := range w.groups {
		if groups > 0 && (bytes+g.bytes > w.config.BatchBytesMax || w.config.Failpoints.On(failpoint.BatchOfOne)) {
			break
		}
		groups, entries, bytes = groups+1, entries+g.entries, bytes+g.bytes
	}
	w.last = inFlight{no: w.last.no + 1, pos: w.last.pos + Pos(entries)}
	w.current.No, w.current.Batches = w.last.no, w.current.Batches[:0]
	if len(w.chains) == 1 {
		w.add(0, w.waiting[:entries:entries])
	} else {
		w.split(w.groups[:groups], entries)
	}
	w.waiting, w.groups = w.waiting[entries:], w.groups[groups:]
	if len(w.waiting) == 0 {
		w.waiting, w.groups = nil, nil
	}
	w.inFlight = append(w.inFlight, w.last)
	return &w.current, true
}

// split adds a batch for each log that has entries in groups.
func (w *Writers) split(groups []group, entries int) {
	counts := make([]int, len(w.chains))
	for _, g := range groups {
		counts[g.log] += g.entries
	}
	all := make([]Entry, 0, entries)
	for log, n := range counts {
		if n == 0 {
			continue
		}
		from, at := len(all), 0
		for _, g := range groups {
			if int(g.log) == log {
				all = append(all, w.waiting[at:at+g.entries]...)
			}
			at += g.entries
		}
		w.add(log, all[from:len(all):len(all)])
	}
}

// add adds a batch of a log to the transaction.
func (w *Writers) add(log int, entries []Entry) {
	last := &w.taken[log]
	last.Batch, last.Pos = last.Batch+1, last.Pos+Pos(len(entries))
	w.current.Batches = append(w.current.Batches, Batch{Node: w.chains[log].rows.node, Log: uint16(log), No: last.Batch, Pos: last.Pos, Entries: entries})
}

// Seal encodes the rows of a transaction. Reuse is the only other method that shares state with Seal, so a
// host may call Append at the same time. Transactions MUST be sealed in order.
func (w *Writers) Seal(t *Transaction) {
	for i := range t.Batches {
		b := &t.Batches[i]
		c := &w.chains[b.Log]
		invariant.Check(b.No == c.last.Batch+1, "store: batch %d sealed after batch %d", b.No, c.last.Batch)
		b.From, b.Shards = c.last, shardsOf(b.Entries)
		c.seal(b)
	}
}

// Reuse releases the rows of the last sealed transaction. The rows MUST NOT be read after Reuse, because
// the next Seal overwrites their memory. Reuse and Seal MUST NOT run concurrently.
func (w *Writers) Reuse(t *Transaction) {
	for i := range t.Batches {
		b := &t.Batches[i]
		w.chains[b.Log].rows.recycle(b.Rows, b.Places)
		b.Rows, b.Places = nil, nil
	}
}

// Written reports that a transaction has been written, not necessarily durably. Transactions MUST be
// reported in order.
func (w *Writers) Written(no uint64) {
	for i := range w.inFlight {
		if w.inFlight[i].no == no {
			w.inFlight[i].written = true
			return
		}
		invariant.Check(w.inFlight[i].written, "store: batch %d written before batch %d", no, w.inFlight[i].no)
	}
	invariant.Check(false, "store: batch %d is not in flight", no)
}

// Synced reports that a transaction and all earlier ones are durable. All these MUST have been reported by
// Written before.
func (w *Writers) Synced(no uint64) {
	for len(w.inFlight) > 0 && w.inFlight[0].no <= no {
		f := w.inFlight[0]
		invariant.Check(f.written, "store: batch %d synced before it was written", f.no)
		w.inFlight = w.inFlight[1:]
		if !w.failed {
			w.released = max(w.released, f.pos)
		}
	}
}

// Failed reports that a write or a sync failed. The logs accept no more writes.
func (w *Writers) Failed() { w.failed = true }

// Released returns the durable end. Effects that depend only on entries before this position may be
// released.
func (w *Writers) Released() Pos { return w.released }

// End returns the end of the logs, durable or not.
func (w *Writers) End() Pos { return w.end }

// Backlog returns the number of entries that wait for a transaction.
func (w *Writers) Backlog() int { return len(w.waiting) }
