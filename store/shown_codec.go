// SPDX-License-Identifier: Apache-2.0

package store

import (
	"math"

	"github.com/troupe-run/troupe/actor"
)

// The fields of an encoded Shown, as bits. All others are zero.
const (
	shownFirst = 1 << iota // Entry.First
	shownNumbers
	shownBegan // the header of the call follows
	shownChain // the chain of the call follows
	shownPosition
	shownRefused
	shownClamped
	shownAsk
	shownOnChannel // the header is that of a detached call with this switch
	shownOffChannel

	shownAll = shownOffChannel<<1 - 1
)

func (w *encoder) shown(e *Entry) {
	s := &e.Shown
	fields := uint64(0)
	for i, there := range [...]bool{e.First, s.N > 0, s.Began, !s.Began && s.Call != nil, s.Step > 0 || s.Index > 0,
		len(s.Refused) > 0, len(s.Clamped) > 0, s.Ask != nil} {
		if there {
			fields |= 1 << i
		}
	}
	if s.Began && s.Call.Kind == actor.Detached {
		fields |= [...]uint64{0, actor.On: shownOnChannel, actor.Off: shownOffChannel}[s.Call.Extensions.OnChannel()]
	}
	w.Uint(fields)
	if fields&shownNumbers != 0 {
		w.Uint(s.Seq)
		w.Uint(uint64(s.N))
	}
	if fields&shownBegan != 0 {
		w.Int(int64(s.Left))
		w.callHeader(s.Call)
	}
	if fields&shownChain != 0 {
		w.IDs(s.Call.Chain)
	}
	if fields&shownPosition != 0 {
		w.Uint(uint64(s.Step))
		w.Uint(uint64(s.Index))
	}
	if fields&shownRefused != 0 {
		w.asks(s.Refused)
	}
	if fields&shownClamped != 0 {
		w.Uint(uint64(len(s.Clamped)))
		for _, index := range s.Clamped {
			w.Uint(uint64(index))
		}
	}
	if fields&shownAsk != 0 {
		w.shownAsk(s.Ask)
	}
}

func (r decoder) shown(e *Entry) {
	s := &e.Shown
	fields := r.UintMax(shownAll, "fields of events")
	e.First = fields&shownFirst != 0
	if fields&shownNumbers != 0 {
		s.Seq, s.N = r.Uint(), uint32(r.UintMax(EventsMax, "number of events"))
		if s.Seq == 0 || s.N == 0 {
			r.Fail("events without numbers")
		}
	}
	if fields&shownBegan != 0 {
		s.Began, s.Left, s.Call = true, actor.Duration(r.Int()), r.callHeader()
	}
	switch channel := fields & (shownOnChannel | shownOffChannel); {
	case channel == 0:
	case !s.Began || s.Call.Kind != actor.Detached || channel == shownOnChannel|shownOffChannel:
		r.Fail("a switch of no detached call")
	case channel == shownOnChannel:
		s.Call.Extensions = s.Call.Extensions.WithChannel(actor.On)
	default:
		s.Call.Extensions = s.Call.Extensions.WithChannel(actor.Off)
	}
	if fields&shownChain != 0 {
		if s.Began {
			r.Fail("chain of a call with a header")
		}
		s.Call = &actor.Call{Chain: r.IDs()}
	}
	if fields&shownPosition != 0 {
		s.Step, s.Index = r.uint32("step"), uint16(r.UintMax(math.MaxUint16, "index"))
		if s.Step == 0 && s.Index == 0 {
			r.Fail("position without step")
		}
	}
	if fields&shownRefused != 0 {
		if s.Refused = r.asks(); len(s.Refused) == 0 {
			r.Fail("no refused asks")
		}
	}
	if fields&shownClamped != 0 {
		s.Clamped = decodeList(r, r.Count(AsksMax, "clamped calls"), func() uint16 { return uint16(r.UintMax(math.MaxUint16, "index")) })
		if len(s.Clamped) == 0 {
			r.Fail("no clamped calls")
		}
	}
	if fields&shownAsk != 0 {
		s.Ask = r.shownAsk()
	}
}

// callHeader writes the fields of a call that the start of its turn shows.
func (w *encoder) callHeader(c *actor.Call) {
	w.CallID(c.Root)
	w.CallID(c.Parent)
	w.String(c.Operation)
	w.IDs(c.Chain)
	w.Uint(uint64(c.Kind))
	w.Uint(uint64(c.Lane))
	w.Uint(uint64(c.Attempt))
	w.String(c.Principal)
	w.Uint(uint64(c.Origin))
	w.String(c.Project)
}

func (r decoder) callHeader() *actor.Call {
	return &actor.Call{Root: r.CallID(), Parent: r.CallID(), Operation: r.String(actor.TextBytesMax), Chain: r.IDs(),
		Kind: actor.Kind(r.UintMax(uint64(actor.Signal), "kind")), Lane: actor.Lane(r.UintMax(uint64(actor.Low), "lane")),
		Attempt: r.uint32("attempt"), Principal: r.String(actor.TextBytesMax),
		Origin: actor.Origin(r.UintMax(uint64(actor.System), "origin")), Project: r.String(actor.TextBytesMax)}
}

// The optional fields of an encoded ShownAsk, as bits.
const (
	askChild = 1 << iota
	askHeld
	askSignal
	askAttempt
	askPiece

	askAll = askPiece<<1 - 1
)

func (w *encoder) shownAsk(a *ShownAsk) {
	retry := a.Piece.Retry
	fields := uint64(0)
	for i, there := range [...]bool{!a.Child.IsZero(), a.Held, a.Origin != 0 || a.Principal != "", a.Attempt > 0 || a.Discards > 0,
		a.Piece.Text != "" || a.Piece.State != "" || a.Piece.Detail != "" || retry != nil} {
		if there {
			fields |= 1 << i
		}
	}
	w.Uint(fields)
	w.Uint(uint64(a.Kind))
	w.String(a.Name)
	w.Int(int64(a.Took))
	if fields&askChild != 0 {
		w.CallID(a.Child)
		w.ID(a.To)
		w.Uint(uint64(a.Status))
	}
	if fields&askSignal != 0 {
		w.String(a.Principal)
		w.Uint(uint64(a.Origin))
	}
	if fields&askAttempt != 0 {
		w.Uint(uint64(a.Attempt))
		w.Uint(a.Discards)
	}
	if fields&askPiece != 0 {
		w.String(a.Piece.Text)
		w.String(a.Piece.State)
		w.String(a.Piece.Detail)
		w.Refusal(retry)
	}
}

func (r decoder) shownAsk() *ShownAsk {
	fields := r.UintMax(askAll, "fields of an ask")
	a := &ShownAsk{Kind: actor.AskKind(r.UintMax(uint64(actor.AskInvoke), "kind of ask")), Name: r.String(actor.TextBytesMax),
		Took: actor.Duration(r.Int()), Held: fields&askHeld != 0}
	if fields&askChild != 0 {
		if a.Child, a.To, a.Status = r.CallID(), r.ID(), actor.Status(r.UintMax(uint64(actor.Failed), "status")); a.Child.IsZero() {
			r.Fail("child without an ID")
		}
	}
	if fields&askSignal != 0 {
		if a.Principal, a.Origin = r.String(actor.TextBytesMax), actor.Origin(r.UintMax(uint64(actor.System), "origin")); a.Principal == "" && a.Origin == 0 {
			r.Fail("signal without sender")
		}
	}
	if fields&askAttempt != 0 {
		if a.Attempt, a.Discards = r.uint32("attempt"), r.Uint(); a.Attempt == 0 && a.Discards == 0 {
			r.Fail("attempt without number")
		}
	}
	if fields&askPiece != 0 {
		a.Piece = actor.Piece{Text: r.String(actor.MessageBytesMax), State: r.String(actor.MessageBytesMax), Detail: r.String(actor.MessageBytesMax), Retry: r.Refusal()}
		if a.Piece == (actor.Piece{}) {
			r.Fail("piece without content")
		}
	}
	return a
}
