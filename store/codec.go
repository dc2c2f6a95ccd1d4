// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"slices"

	"github.com/troupe-run/troupe/actor"
)

// CodecVersion is the first byte of every entry and journal. Other versions are rejected:
// no release has written one.
//
//  1. initial version
//  2. Added, Streamed, Rebased; actor state; retries and streaming of asks
//  3. snapshots refer to the entries with outcomes instead of containing the outcomes
//  4. calls may name a claimed run
//  5. usage of replies and answers, start of runs
//  6. summaries of runs in entries
//  7. extensions of calls, replies, holds and entries; reasons of holds; derived run events; Cut, Forgotten, Kept
//  8. transcripts; extensions and times of journals; Appended
//  9. decisions about tool calls; holds and times of runs
//  10. detached calls
//  11. detached calls with a correlation of their asker, silent ones, late responses
//  12. purses of runs and calls, usage with costs
const CodecVersion = 12

// frameVersion is the first byte of batch records and anchors. It has never changed.
const frameVersion = 1

// Bounds of the decoder. The limits of the runtime are lower.
const (
	AsksMax          = 1 << 16   // asks of one step
	EventsMax        = 1 << 16   // run events of one entry
	EventBytesMax    = 8 << 20   // bytes of a run event: the longest message, as JSON
	SnapshotBytesMax = 256 << 20 // bytes of an encoded journal
	itemsMax         = 1 << 24   // items of a list in a journal; SnapshotBytesMax is reached first
)

// encoder extends actor.Encoder with the types of this package.
type encoder struct{ actor.Encoder }

// decoder extends actor.Decoder with the types of this package.
type decoder struct{ *actor.Decoder }

// EncodeEntry returns the encoding of an entry for DecodeEntry.
func EncodeEntry(e Entry) []byte {
	w := &encoder{Encoder: actor.Encoder{Buf: make([]byte, 0, entrySize(&e))}}
	w.entry(&e, e.Record)
	return w.Buf
}

// entry writes an entry. It writes the argument record in place of e.Record.
func (w *encoder) entry(e *Entry, record Record) {
	w.Uint(CodecVersion)
	w.ID(e.Actor)
	w.Uint(uint64(e.Shard))
	w.Uint(uint64(e.Epoch))
	w.Uint(e.N)
	w.record(record)
	w.Uint(uint64(len(e.Events)))
	for i := range e.Events {
		ev := &e.Events[i]
		w.CallID(ev.Run)
		w.Uint(ev.Seq)
		w.Bytes(ev.Body)
	}
	w.Int(int64(e.WasDue))
	w.Int(int64(e.Due))
	w.summary(e.Summary)
	w.shown(e)
	w.Extensions(e.Extensions)
}

// DecodeEntry decodes an entry. It never panics and retains no part of b. If b is accepted,
// encoding the returned entry yields b again.
func DecodeEntry(b []byte) (Entry, error) {
	r := newDecoder(b)
	if err := r.readVersion("entry", CodecVersion); err != nil {
		return Entry{}, err
	}
	var e Entry
	e.Actor = r.ID()
	e.Shard = uint16(r.UintMax(1<<16-1, "shard"))
	e.Epoch = actor.Epoch(r.Uint())
	e.N = r.Uint()
	e.Record = r.record()
	e.Events = decodeList(r, r.Count(EventsMax, "events"), func() RunEvent {
		return RunEvent{Run: r.CallID(), Seq: r.Uint(), Body: r.Bytes(EventBytesMax)}
	})
	e.WasDue, e.Due = actor.Time(r.Int()), actor.Time(r.Int())
	e.Summary = r.summary(runOf(e.Record))
	r.shown(&e)
	e.Extensions = r.Extensions()
	if e.Actor == (actor.ID{}) {
		r.Fail("entry without actor")
	}
	if err := r.End(); err != nil {
		return Entry{}, fmt.Errorf("entry: %w", err)
	}
	return e, nil
}

// EncodeJournal returns the encoding of a journal for DecodeJournal. This encoding is
// the content of a Snapshot.
func EncodeJournal(j *Journal) []byte {
	w := &encoder{Encoder: actor.Encoder{Buf: make([]byte, 0, 1024)}}
	w.journal(j)
	return w.Buf
}

func (w *encoder) journal(j *Journal) {
	w.Uint(CodecVersion)
	w.Uint(j.N)
	w.Uint(uint64(len(j.Runs)))
	for _, run := range j.Runs {
		w.run(run)
	}
	w.outcomes(j)
	w.Uint(uint64(len(j.Buried)))
	for _, b := range j.Buried {
		w.buried(b)
	}
	w.items(j.ActorState)
	w.transcript(&j.Transcript)
	w.mail(&j.Mail)
	w.reported(&j.Reported)
	w.Extensions(j.Extensions)
	w.time(j.At)
}

// outcomes writes a reference to the log entry of each outcome.
func (w *encoder) outcomes(j *Journal) {
	evicted := slices.Clone(j.Evicted)
	for i := range j.Ended {
		evicted = append(evicted, j.Ended[i].evicted())
	}
	w.Uint(uint64(len(evicted)))
	for i := range evicted {
		a := &evicted[i]
		w.CallID(a.Call)
		w.Uint(a.N)
		w.time(a.Until)
		w.idempotency(a.key())
	}
}

func (r decoder) evicted() EvictedOutcome {
	a := EvictedOutcome{Call: r.CallID(), N: r.Uint(), Until: r.time()}
	if key := r.idempotency(); !key.IsZero() {
		a.Idempotency = &key
	}
	if a.N == 0 {
		r.Fail("outcome without entry")
	}
	return a
}

// DecodeJournal decodes a journal, with the same guarantees as DecodeEntry.
func DecodeJournal(b []byte) (Journal, error) {
	r := newDecoder(b)
	if err := r.readVersion("snapshot", CodecVersion); err != nil {
		return Journal{}, err
	}
	j := Journal{N: r.Uint()}
	j.Runs = decodeList(r, r.Count(itemsMax, "runs"), r.run)
	j.Evicted = decodeList(r, r.Count(itemsMax, "outcomes"), r.evicted)
	j.Buried = decodeList(r, r.Count(itemsMax, "tombstones"), r.buried)
	j.ActorState = r.items(itemsMax)
	j.stateBytes = itemsSize(j.ActorState)
	j.Transcript, j.Mail, j.Reported, j.Extensions, j.At = r.transcript(), r.mail(), r.reported(), r.Extensions(), r.time()
	if err := r.End(); err != nil {
		return Journal{}, fmt.Errorf("snapshot: %w", err)
	}
	return j, nil
}

func newDecoder(b []byte) decoder { return decoder{actor.NewDecoder(b)} }

// readVersion reads the first byte of an encoded value and rejects versions other than want.
func (r decoder) readVersion(what string, want uint64) error {
	if v := r.Uint(); r.Err() == nil && v != want {
		return fmt.Errorf("%s written in version %d, this program reads version %d", what, v, want)
	}
	return nil
}

func (w *encoder) run(run *Run) {
	w.Call(run.Call)
	w.time(run.At)
	w.Hash(run.Definition)
	w.clock(run.Clock)
	w.Uint(run.Holds)
	w.Uint(uint64(run.Budget))
	w.purse(run.Purse)
	w.Uint(uint64(len(run.Steps)))
	for _, step := range run.Steps {
		w.asks(step.Asks)
	}
	w.Uint(run.Seq)
	w.String(run.Parked)
	w.items(run.StateUpdates)
	w.time(run.StartedAt)
	w.Uint(run.Heard)
	w.time(run.HeldTo)
}

func (r decoder) run() *Run {
	run := &Run{Call: r.Call(), At: r.time(), Definition: r.Hash(), Clock: r.clock(), Holds: r.Uint(), Budget: r.uint32("budget"), Purse: r.purse()}
	run.Steps = decodeList(r, r.Count(itemsMax, "steps"), func() Step { return Step{r.asks()} })
	run.Seq = r.Uint()
	run.Parked = r.String(actor.TextBytesMax)
	run.StateUpdates = r.items(itemsMax)
	run.StartedAt, run.Heard, run.HeldTo = r.time(), r.Uint(), r.time()
	for _, step := range run.Steps {
		for i := range step.Asks {
			run.addUsage(&step.Asks[i])
		}
	}
	return run
}

func (w *encoder) items(items []actor.StateItem) {
	w.Uint(uint64(len(items)))
	for _, item := range items {
		w.String(item.Name)
		w.Bytes(item.Value)
	}
}

func (r decoder) items(limit int) []actor.StateItem {
	return decodeList(r, r.Count(limit, "state items"), func() actor.StateItem {
		return actor.StateItem{Name: r.String(actor.StateItemNameBytesMax), Value: r.Bytes(actor.StateItemValueBytesMax)}
	})
}

func (w *encoder) mark(m Mark) {
	w.Uint(m.Batch)
	w.Uint(uint64(m.Pos))
	w.Hash(m.Hash)
}

func (r decoder) mark() Mark { return Mark{r.Uint(), Pos(r.Uint()), r.Hash()} }

func (w *encoder) time(t actor.Time) { w.Int(int64(t)) }

func (r decoder) time() actor.Time { return actor.Time(r.Int()) }

func (r decoder) uint32(what string) uint32 { return uint32(r.UintMax(1<<32-1, what)) }

// decodeList decodes n items. At the first invalid item it stops and returns nil.
func decodeList[T any](r decoder, n int, item func() T) []T {
	if n == 0 {
		return nil
	}
	all := make([]T, 0, min(n, 16)) // n is untrusted input, so the capacity grows only as items are decoded
	for range n {
		v := item()
		if r.Err() != nil {
			return nil
		}
		all = append(all, v)
	}
	return all
}
