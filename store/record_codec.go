// SPDX-License-Identifier: Apache-2.0

package store

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
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
