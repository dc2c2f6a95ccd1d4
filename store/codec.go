// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/internal/mutant"
	"github.com/troupe-run/troupe/runs"
)

// CodecVersion is the first byte of every entry and journal that is written. All
// earlier versions MUST remain readable. A later version is rejected, because this
// program does not know its format.
//
//  1. initial version
//  2. Added, Streamed, Rebased; actor state; retries and streaming of asks
//  3. snapshots refer to the entries with outcomes instead of containing the outcomes
//  4. calls may name a claimed run
//  5. usage of replies and answers, start of runs
//  6. summaries of runs in entries
//  7. extensions of calls, replies, holds and entries; reasons of holds; derived run events; Cut, Forgotten, Kept
const CodecVersion = 7

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

// The tags of records on disk. A number MUST NOT be reused.
const (
	tagAccepted = iota + 1
	tagAsking
	tagAnswered
	tagRetried
	tagHeld
	tagResumed
	tagParked
	tagEnded
	tagBuried
	tagSnapshot
	tagAdded
	tagStreamed
	tagRebased
	tagCut
	tagForgotten
	tagKept
)

// encoder extends actor.Encoder with the types of this package.
type encoder struct {
	actor.Encoder
	version1       bool // write the format of version 1
	beyondVersion1 bool // set with version1 if that format cannot represent the value
}

func (w *encoder) writeVersion() {
	if w.WithoutExtensions = w.version1; w.version1 {
		w.Uint(1)
		return
	}
	w.Uint(CodecVersion)
}

// extended records that the format of version 1 has no place for extensions.
func (w *encoder) extended(all ...actor.Extensions) {
	for _, x := range all {
		w.beyondVersion1 = w.beyondVersion1 || x != ""
	}
}

// hold writes a hold, for which the format of version 1 has no place.
func (w *encoder) hold(h actor.Hold) {
	w.beyondVersion1 = w.beyondVersion1 || h != actor.Hold{}
	w.Hold(h)
}

func (w *encoder) call(c *actor.Call) {
	w.extended(c.Extensions)
	w.Call(*c)
}

type decoder struct {
	*actor.Decoder
	version uint64 // of the encoded value
}

// EncodeEntry returns the encoding of an entry for DecodeEntry.
func EncodeEntry(e Entry) []byte {
	w := &encoder{Encoder: actor.Encoder{Buf: make([]byte, 0, entrySize(&e))}}
	w.entry(&e, e.Record)
	return w.Buf
}

// entry writes an entry. It writes the argument record in place of e.Record.
func (w *encoder) entry(e *Entry, record Record) {
	w.writeVersion()
	w.ID(e.Actor)
	w.Uint(uint64(e.Shard))
	w.Uint(uint64(e.Epoch))
	w.Uint(e.N)
	w.record(record)
	events := e.Events
	if w.version1 {
		shown := *e // keeps e off the heap
		events = invariant.Must(shown.AllEvents())
	}
	w.Uint(uint64(len(events)))
	for i := range events {
		ev := &events[i]
		w.CallID(ev.Run)
		w.Uint(ev.Seq)
		w.Bytes(ev.Body)
	}
	w.Int(int64(e.WasDue))
	w.Int(int64(e.Due))
	if !w.version1 {
		w.summary(e.Summary)
		w.shown(e)
	}
	w.extended(e.Extensions)
	w.Extensions(e.Extensions)
}

// DecodeEntry decodes an entry. It never panics and retains no part of b. If b has the
// current version and is accepted, encoding the returned entry yields b again.
func DecodeEntry(b []byte) (Entry, error) {
	r := newDecoder(b)
	if err := r.readVersion("entry", CodecVersion); err != nil {
		return Entry{}, err
	}
	r.skipExtensions()
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
	if run := runOf(e.Record); r.version >= 6 {
		e.Summary = r.summary(run)
	} else if !run.IsZero() {
		e.Summary = &runs.Summary{Run: run}
	}
	if r.version >= 7 {
		r.shown(&e)
	}
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
	w.writeVersion()
	w.Uint(j.N)
	w.Uint(uint64(len(j.Runs)))
	for _, run := range j.Runs {
		w.run(run)
	}
	w.outcomes(j)
	buried := j.Buried
	if mutant.On("snapshot-forgets-tombstones") {
		buried = nil
	}
	w.Uint(uint64(len(buried)))
	for _, b := range buried {
		w.buried(b)
	}
	w.items(j.ActorState)
}

// outcomes first writes the complete outcomes whose log entry is unknown. Then it
// writes a reference to the log entry of each other outcome.
func (w *encoder) outcomes(j *Journal) {
	evicted := slices.Clone(j.Evicted)
	var complete []Ended
	for i := range j.Ended {
		if e := &j.Ended[i]; e.n > 0 {
			evicted = append(evicted, e.evicted())
		} else {
			complete = append(complete, *e)
		}
	}
	if mutant.On("snapshot-forgets-outcomes") {
		evicted, complete = nil, nil
	}
	w.Uint(uint64(len(complete)))
	for i := range complete {
		w.ended(complete[i])
	}
	if w.version1 {
		w.beyondVersion1 = w.beyondVersion1 || len(evicted) > 0
		return
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

func (r decoder) outcomes(j *Journal) {
	j.Ended = decodeList(r, r.Count(itemsMax, "outcomes"), r.ended)
	for i := range j.Ended {
		j.outcomeBytes += j.Ended[i].memorySize()
	}
	if r.version >= 3 {
		j.Evicted = decodeList(r, r.Count(itemsMax, "evicted outcomes"), r.evicted)
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
	r.skipExtensions()
	j := Journal{N: r.Uint()}
	j.Runs = decodeList(r, r.Count(itemsMax, "runs"), r.run)
	r.outcomes(&j)
	j.Buried = decodeList(r, r.Count(itemsMax, "tombstones"), r.buried)
	j.ActorState = r.items(itemsMax)
	if err := r.End(); err != nil {
		return Journal{}, fmt.Errorf("snapshot: %w", err)
	}
	return j, nil
}

func newDecoder(b []byte) decoder { return decoder{Decoder: actor.NewDecoder(b)} }

// readVersion reads the first byte of an encoded value and rejects versions above newest.
func (r *decoder) readVersion(what string, newest uint64) error {
	r.version = r.Uint()
	if r.Err() == nil && (r.version == 0 || r.version > newest) {
		return fmt.Errorf("%s written in version %d, this program reads up to version %d", what, r.version, newest)
	}
	if mutant.On("first-version-unread") {
		r.version = newest
	}
	return nil
}

// skipExtensions makes the decoder read an earlier version, which has no extensions.
func (r *decoder) skipExtensions() {
	if r.version < 7 {
		r.ReadWithoutExtensions()
	}
}

func (w *encoder) record(record Record) {
	switch r := record.(type) {
	case Added, Streamed, Rebased, Cut, Forgotten, Kept:
		w.beyondVersion1 = true
	case Snapshot:
		if w.version1 {
			r.Journal = w.journalVersion1(r.Journal)
			record = r
		}
	}
	switch r := record.(type) {
	case Accepted:
		w.Uint(tagAccepted)
		w.call(&r.Call)
		w.time(r.At)
		w.Hash(r.Definition)
	case Asking:
		w.Uint(tagAsking)
		w.CallID(r.Run)
		w.time(r.At)
		w.asks(r.Asks)
		w.items(r.StateUpdates)
	case Added:
		w.Uint(tagAdded)
		w.CallID(r.Run)
		w.time(r.At)
		w.asked(&r.Ask)
	case Streamed:
		w.Uint(tagStreamed)
		w.askHeader(r.Run, r.Step, r.Index, r.At)
		w.Bool(r.Retry)
		w.Uint(r.StreamedAfter)
	case Answered:
		w.Uint(tagAnswered)
		w.askHeader(r.Run, r.Step, r.Index, r.At)
		w.answer(r.Answer)
		w.Uint(uint64(r.Budget))
	case Retried:
		w.Uint(tagRetried)
		w.askHeader(r.Run, r.Step, r.Index, r.At)
		w.Uint(uint64(r.Attempt))
	case Held:
		w.Uint(tagHeld)
		w.askHeader(r.Run, r.Step, r.Index, r.At)
		w.Uint(r.N)
		w.time(r.Until)
		w.hold(r.For)
	case Resumed:
		w.Uint(tagResumed)
		w.askHeader(r.Run, r.Step, r.Index, r.At)
		w.Uint(r.N)
	case Parked:
		w.Uint(tagParked)
		w.CallID(r.Run)
		w.time(r.At)
		w.String(r.Detail)
	case Cut:
		w.Uint(tagCut)
		w.mark(r.Upto)
		w.time(r.At)
	case Forgotten:
		w.Uint(tagForgotten)
		w.time(r.At)
	case Kept:
		w.Uint(tagKept)
		w.ended(r.Outcome)
	case Rebased:
		w.Uint(tagRebased)
		w.time(r.At)
	case Ended:
		w.Uint(tagEnded)
		w.ended(r)
		w.items(r.StateUpdates)
	case Buried:
		w.Uint(tagBuried)
		w.buried(r)
	case Snapshot:
		w.Uint(tagSnapshot)
		w.Bytes(r.Journal)
	default:
		invariant.Check(false, "store: cannot encode %T: give it a tag", record)
	}
}

// journalVersion1 reencodes a journal in the format of version 1.
func (w *encoder) journalVersion1(journal []byte) []byte {
	j := invariant.Must(DecodeJournal(journal))
	old := &encoder{version1: true}
	old.journal(&j)
	w.beyondVersion1 = w.beyondVersion1 || old.beyondVersion1
	return old.Buf
}

func (r decoder) record() Record {
	switch tag := r.Uint(); tag {
	case tagAccepted:
		return Accepted{Call: r.Call(), At: r.time(), Definition: r.Hash()}
	case tagAsking:
		return Asking{Run: r.CallID(), At: r.time(), Asks: r.asks(), StateUpdates: r.items(actor.StateUpdatesMax)}
	case tagAdded:
		return Added{Run: r.CallID(), At: r.time(), Ask: r.asked()}
	case tagStreamed:
		run, step, index, at := r.askHeader()
		return Streamed{run, step, index, at, r.Bool(), r.Uint()}
	case tagAnswered:
		run, step, index, at := r.askHeader()
		return Answered{run, step, index, at, r.answer(), r.uint32("budget")}
	case tagRetried:
		run, step, index, at := r.askHeader()
		return Retried{run, step, index, at, r.uint32("attempt")}
	case tagHeld:
		run, step, index, at := r.askHeader()
		return Held{run, step, index, at, r.Uint(), r.time(), r.Hold()}
	case tagResumed:
		run, step, index, at := r.askHeader()
		return Resumed{run, step, index, at, r.Uint()}
	case tagParked:
		return Parked{Run: r.CallID(), At: r.time(), Detail: r.String(actor.TextBytesMax)}
	case tagCut:
		return Cut{Upto: r.mark(), At: r.time()}
	case tagForgotten:
		return Forgotten{At: r.time()}
	case tagKept:
		return Kept{Outcome: r.ended()}
	case tagRebased:
		return Rebased{At: r.time()}
	case tagEnded:
		e := r.ended()
		e.StateUpdates = r.items(actor.StateUpdatesMax)
		return e
	case tagBuried:
		return r.buried()
	case tagSnapshot:
		return Snapshot{Journal: r.Bytes(SnapshotBytesMax)}
	default:
		r.Fail("unknown record %d", tag)
		return nil
	}
}

// askHeader writes the first fields, which all records about one ask have in common.
func (w *encoder) askHeader(run actor.CallID, step uint32, index uint16, at actor.Time) {
	w.CallID(run)
	w.Uint(uint64(step))
	w.Uint(uint64(index))
	w.time(at)
}

func (r decoder) askHeader() (run actor.CallID, step uint32, index uint16, at actor.Time) {
	return r.CallID(), r.uint32("step"), uint16(r.UintMax(1<<16-1, "index")), r.time()
}

func (w *encoder) ended(e Ended) {
	w.CallID(e.Call)
	w.time(e.At)
	w.beyondVersion1 = w.beyondVersion1 || e.Reply.Usage != actor.Usage{} || e.Reply.Tree != actor.Usage{}
	w.extended(e.Reply.Extensions)
	w.Reply(e.Reply)
	w.time(e.Until)
	w.idempotency(e.Idempotency)
}

func (r decoder) ended() Ended {
	e := Ended{Call: r.CallID(), At: r.time(), Reply: r.Reply(), Until: r.time()}
	e.Idempotency = r.idempotency()
	return e
}

func (w *encoder) idempotency(i actor.Idempotency) {
	w.Bool(!i.IsZero())
	if !i.IsZero() {
		w.String(i.Principal)
		w.String(i.Route)
		w.String(i.Key)
		w.Hash(i.Body)
	}
}

func (r decoder) idempotency() actor.Idempotency {
	if !r.Bool() {
		return actor.Idempotency{}
	}
	i := actor.Idempotency{Principal: r.String(actor.TextBytesMax), Route: r.String(actor.TextBytesMax),
		Key: r.String(actor.TextBytesMax), Body: r.Hash()}
	if i.IsZero() {
		r.Fail("idempotency without key")
	}
	return i
}

func (w *encoder) buried(b Buried) {
	w.CallID(b.Call)
	w.time(b.At)
	w.time(b.Until)
}

func (r decoder) buried() Buried {
	return Buried{Call: r.CallID(), At: r.time(), Until: r.time()}
}

func (w *encoder) run(run *Run) {
	w.call(&run.Call)
	w.time(run.At)
	w.Hash(run.Definition)
	w.clock(run.Clock)
	w.Uint(run.Holds)
	w.Uint(uint64(run.Budget))
	w.Uint(uint64(len(run.Steps)))
	for _, step := range run.Steps {
		w.asks(step.Asks)
	}
	w.Uint(run.Seq)
	w.String(run.Parked)
	w.items(run.StateUpdates)
	if w.version1 {
		w.beyondVersion1 = w.beyondVersion1 || run.StartedAt != run.firstStamp()
		return
	}
	w.time(run.StartedAt)
}

func (r decoder) run() *Run {
	run := &Run{Call: r.Call(), At: r.time(), Definition: r.Hash(), Clock: r.clock(), Holds: r.Uint(), Budget: r.uint32("budget")}
	run.Steps = decodeList(r, r.Count(itemsMax, "steps"), func() Step { return Step{r.asks()} })
	run.Seq = r.Uint()
	run.Parked = r.String(actor.TextBytesMax)
	run.StateUpdates = r.items(itemsMax)
	run.StartedAt = run.firstStamp()
	if r.version >= 5 {
		run.StartedAt = r.time()
	}
	for _, step := range run.Steps {
		for i := range step.Asks {
			run.addUsage(&step.Asks[i])
		}
	}
	return run
}

func (w *encoder) asks(asks []Asked) {
	w.Uint(uint64(len(asks)))
	for i := range asks {
		w.asked(&asks[i])
	}
}

func (r decoder) asks() []Asked { return decodeList(r, r.Count(AsksMax, "asks"), r.asked) }

func (w *encoder) asked(a *Asked) {
	w.ask(a.Ask)
	w.Bool(a.Sent != nil)
	if a.Sent != nil {
		w.ask(*a.Sent)
	}
	w.CallID(a.Call)
	w.ID(a.To)
	w.Uint(uint64(a.Budget))
	w.time(a.Stamp)
	w.clock(a.Clock)
	w.Uint(uint64(a.Attempt))
	w.Uint(a.Holds)
	w.hold(a.HeldFor)
	w.Bool(a.Answer != nil)
	if a.Answer != nil {
		w.answer(*a.Answer)
	}
	if w.version1 {
		w.beyondVersion1 = w.beyondVersion1 || a.Retries > 0 || a.StreamedAfter > 0 || a.Added
		return
	}
	w.Uint(uint64(a.Retries))
	w.Uint(a.StreamedAfter)
	w.Bool(a.Added)
	if a.Added {
		w.CallID(a.Callback)
		w.idempotency(a.CallbackKey)
	}
}

func (r decoder) asked() Asked {
	var a Asked
	a.Ask = r.ask()
	if r.Bool() {
		sent := r.ask()
		a.Sent = &sent
	}
	a.Call = r.CallID()
	a.To = r.ID()
	a.Budget = r.uint32("budget")
	a.Stamp = r.time()
	a.Clock = r.clock()
	a.Attempt = r.uint32("attempt")
	a.Holds = r.Uint()
	a.HeldFor = r.Hold()
	if r.Bool() {
		answer := r.answer()
		a.Answer = &answer
	}
	if r.version < 2 {
		return a
	}
	a.Retries, a.StreamedAfter = r.uint32("retries"), r.Uint()
	if a.Added = r.Bool(); a.Added {
		a.Callback, a.CallbackKey = r.CallID(), r.idempotency()
	}
	return a
}

func (w *encoder) items(items []actor.StateItem) {
	if w.version1 {
		w.beyondVersion1 = w.beyondVersion1 || len(items) > 0
		return
	}
	w.Uint(uint64(len(items)))
	for _, item := range items {
		w.String(item.Name)
		w.Bytes(item.Value)
	}
}

func (r decoder) items(limit int) []actor.StateItem {
	if r.version < 2 {
		return nil
	}
	return decodeList(r, r.Count(limit, "state items"), func() actor.StateItem {
		return actor.StateItem{Name: r.String(actor.StateItemNameBytesMax), Value: r.Bytes(actor.StateItemValueBytesMax)}
	})
}

// ask writes an ask without its fields Work and Body, which are never stored.
func (w *encoder) ask(a actor.Ask) {
	w.Uint(uint64(a.Kind))
	w.String(a.Name)
	w.String(a.Operation)
	w.Parts(a.Parts)
	w.Int(int64(a.Timeout))
	flags := uint64(a.Lane) << 1
	if a.Idempotent {
		flags |= 1
	}
	w.Uint(flags)
}

func (r decoder) ask() actor.Ask {
	a := actor.Ask{Kind: actor.AskKind(r.UintMax(uint64(actor.AskInvoke), "kind of ask")),
		Name: r.String(actor.TextBytesMax), Operation: r.String(actor.TextBytesMax), Parts: r.Parts(),
		Timeout: actor.Duration(r.Int())}
	flags := r.UintMax(uint64(actor.Low)<<1|1, "flags of an ask")
	a.Idempotent, a.Lane = flags&1 != 0, actor.Lane(flags>>1)
	return a
}

func (w *encoder) answer(a actor.Answer) {
	w.Parts(a.Parts)
	w.Strings(a.Warnings)
	w.Refusal(a.Refusal)
	used := a.Usage != actor.Usage{}
	if w.version1 {
		w.beyondVersion1 = w.beyondVersion1 || used
		return
	}
	w.Bool(used)
	if used {
		w.Usage(a.Usage)
	}
}

func (r decoder) answer() actor.Answer {
	a := actor.Answer{Parts: r.Parts(), Warnings: r.Strings(), Refusal: r.Refusal()}
	if r.version >= 5 && r.Bool() {
		if a.Usage = r.Usage(); a.Usage == (actor.Usage{}) {
			r.Fail("usage without tokens")
		}
	}
	return a
}

func (w *encoder) clock(c actor.Clock) {
	w.Int(int64(c.Left))
	w.time(c.Since)
	w.time(c.HeldUntil)
}

func (r decoder) clock() actor.Clock {
	return actor.Clock{Left: actor.Duration(r.Int()), Since: r.time(), HeldUntil: r.time()}
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
