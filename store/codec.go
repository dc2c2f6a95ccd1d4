// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
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
	tagAppended
	tagResolved
	tagDetached
	tagSettled
	tagNoticed
	tagLate
	tagDrawn
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

func (w *encoder) record(record Record) {
	switch r := record.(type) {
	case Accepted:
		w.Uint(tagAccepted)
		w.Call(r.Call)
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
		w.String(r.State)
		w.String(r.Detail)
	case Answered:
		w.Uint(tagAnswered)
		w.askHeader(r.Run, r.Step, r.Index, r.At)
		w.answer(r.Answer)
		w.Uint(uint64(r.Budget))
		w.purse(r.Purse)
	case Retried:
		w.Uint(tagRetried)
		w.askHeader(r.Run, r.Step, r.Index, r.At)
		w.Uint(uint64(r.Attempt))
	case Drawn:
		w.Uint(tagDrawn)
		w.CallID(r.Run)
		w.time(r.At)
		w.purse(r.Purse)
	case Held:
		w.Uint(tagHeld)
		w.askHeader(r.Run, r.Step, r.Index, r.At)
		w.Uint(r.N)
		w.time(r.Until)
		w.Hold(r.For)
	case Resumed:
		w.Uint(tagResumed)
		w.askHeader(r.Run, r.Step, r.Index, r.At)
		w.Uint(r.N)
	case Resolved:
		w.Uint(tagResolved)
		w.askHeader(r.Run, r.Step, r.Index, r.At)
		w.Uint(uint64(r.Status))
		w.Int(int64(r.Left))
		w.String(r.Detail)
		w.purse(r.Raise)
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
	case Appended:
		w.Uint(tagAppended)
		w.time(r.At)
		w.ChatMessage(&r.Message)
	case Detached:
		w.Uint(tagDetached)
		w.pending(&r.Pending)
	case Settled:
		w.Uint(tagSettled)
		w.CallID(r.Call)
		w.time(r.At)
		w.CallID(r.Run)
		w.Int(int64(r.Left))
	case Noticed:
		w.Uint(tagNoticed)
		w.CallID(r.Call)
		w.time(r.At)
		w.Uint(r.N)
		w.Hold(r.For)
	case Late:
		w.Uint(tagLate)
		w.CallID(r.Call)
		w.time(r.At)
		w.Uint(uint64(r.Status))
		w.Bytes(r.Response)
		w.Int(int64(r.Left))
	case Buried:
		w.Uint(tagBuried)
		w.buried(r)
	case Snapshot:
		w.Uint(tagSnapshot)
		w.Bytes(r.Journal)
		w.Uint(uint64(len(r.Pages)))
		for _, b := range r.Pages {
			w.Bytes(b)
		}
	default:
		invariant.Check(false, "store: cannot encode %T: give it a tag", record)
	}
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
		return Streamed{run, step, index, at, r.Bool(), r.Uint(), r.String(ReportedStateMax), r.String(ReportedDetailMax)}
	case tagAnswered:
		run, step, index, at := r.askHeader()
		return Answered{run, step, index, at, r.answer(), r.uint32("budget"), r.purse()}
	case tagRetried:
		run, step, index, at := r.askHeader()
		return Retried{run, step, index, at, r.uint32("attempt")}
	case tagHeld:
		run, step, index, at := r.askHeader()
		return Held{run, step, index, at, r.Uint(), r.time(), r.Hold()}
	case tagResumed:
		run, step, index, at := r.askHeader()
		return Resumed{run, step, index, at, r.Uint()}
	case tagResolved:
		run, step, index, at := r.askHeader()
		return Resolved{run, step, index, at, r.approvalStatus(), actor.Duration(r.Int()), r.String(actor.TextBytesMax), r.purse()}
	case tagDrawn:
		return Drawn{Run: r.CallID(), At: r.time(), Purse: r.purse()}
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
	case tagAppended:
		return Appended{At: r.time(), Message: r.ChatMessage()}
	case tagDetached:
		return Detached{r.pending()}
	case tagSettled:
		return Settled{r.CallID(), r.time(), r.CallID(), actor.Duration(r.Int())}
	case tagNoticed:
		return Noticed{r.CallID(), r.time(), r.Uint(), r.Hold()}
	case tagLate:
		return Late{r.CallID(), r.time(), actor.Status(r.UintMax(uint64(actor.Failed), "status")), r.Bytes(lateBytesMax), actor.Duration(r.Int())}
	case tagBuried:
		return r.buried()
	case tagSnapshot:
		return Snapshot{Journal: r.Bytes(SnapshotBytesMax),
			Pages: decodeList(r, r.Count(itemsMax, "blobs of pages"), func() []byte { return r.Bytes(SnapshotBytesMax) })}
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
	w.Hold(a.HeldFor)
	w.Bool(a.Answer != nil)
	if a.Answer != nil {
		w.answer(*a.Answer)
	}
	w.Uint(uint64(a.Retries))
	w.Uint(a.StreamedAfter)
	w.Bool(a.Added)
	if a.Added {
		w.CallID(a.Callback)
		w.idempotency(a.CallbackKey)
	}
	w.toolCall(a)
}

// The optional fields of an ask, as bits. All but the purse are of a declared tool.
const (
	toolVerdict = 1 << iota
	toolAwait
	toolResultMax
	toolFailsRun
	toolOnDevice
	toolPurse

	toolAll = toolPurse<<1 - 1
)

// toolCall writes the fields of an ask for a declared tool.
func (w *encoder) toolCall(a *Asked) {
	fields := uint64(0)
	for i, there := range [...]bool{a.Verdict != Verdict{}, a.Await != nil, a.ResultMax > 0, a.FailsRun, a.OnDevice, a.Purse != nil} {
		if there {
			fields |= 1 << i
		}
	}
	w.Uint(fields)
	if fields&toolVerdict != 0 {
		w.Uint(uint64(a.Verdict.Decision))
		w.String(a.Verdict.Rule)
	}
	if fields&toolAwait != 0 {
		w.Hash(a.Await.Digest)
		w.String(a.Await.Summary)
		w.Uint(uint64(a.Await.Status))
	}
	if fields&toolResultMax != 0 {
		w.Uint(uint64(a.ResultMax))
	}
	if a.Purse != nil {
		w.Purse(a.Purse)
	}
}

// purse writes a purse, which may be nil.
func (w *encoder) purse(p *actor.Purse) {
	w.Bool(p != nil)
	if p != nil {
		w.Purse(p)
	}
}

func (r decoder) purse() *actor.Purse {
	if !r.Bool() {
		return nil
	}
	return r.Purse()
}

func (r decoder) toolCall(a *Asked) {
	fields := r.UintMax(toolAll, "fields of a tool call")
	if fields&toolVerdict != 0 {
		a.Verdict = Verdict{runs.Decision(r.UintMax(uint64(runs.Block), "decision")), r.String(actor.TextBytesMax)}
		if a.Verdict == (Verdict{}) {
			r.Fail("verdict without decision")
		}
	}
	if fields&toolAwait != 0 {
		a.Await = &Await{r.Hash(), r.String(actor.TextBytesMax), r.approvalStatus()}
	}
	if fields&toolResultMax != 0 {
		if a.ResultMax = r.uint32("result bytes"); a.ResultMax == 0 {
			r.Fail("result bound of 0 bytes")
		}
	}
	if fields&toolPurse != 0 {
		a.Purse = r.Purse()
	}
	a.FailsRun, a.OnDevice = fields&toolFailsRun != 0, fields&toolOnDevice != 0
}

func (r decoder) approvalStatus() runs.ApprovalStatus {
	return runs.ApprovalStatus(r.UintMax(uint64(runs.ApprovalStatusExpired), "status of an approval"))
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
	a.Retries, a.StreamedAfter = r.uint32("retries"), r.Uint()
	if a.Added = r.Bool(); a.Added {
		a.Callback, a.CallbackKey = r.CallID(), r.idempotency()
	}
	r.toolCall(&a)
	return a
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
	w.Bool(used)
	if used {
		w.Usage(a.Usage)
	}
}

func (r decoder) answer() actor.Answer {
	a := actor.Answer{Parts: r.Parts(), Warnings: r.Strings(), Refusal: r.Refusal()}
	if r.Bool() {
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
