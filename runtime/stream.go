// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/upstream"
)

// Streams. Answers of models and external agents arrive in pieces. Each piece is
// recorded before it is published. If the effect is retried after some pieces were
// published, an attempt event in the stream shows clients to discard these pieces.

// streamed handles a piece of an answer. A piece of an ended attempt is dropped as
// late.
func (c *Cell) streamed(in Streamed) {
	t, i := c.findStreaming(in.ID, in.Attempt)
	if t == nil {
		c.emit(history.Event{Kind: history.Drop, Call: in.ID.Run, What: "piece", Why: "late", Step: in.ID.Step, Index: in.ID.Index, Attempt: in.Attempt})
		return
	}
	a, p := &t.run.Last()[i], in.Piece
	record := store.Streamed{Run: t.run.Call.ID, Step: t.step(), Index: uint16(i), At: c.now}
	shown, bytes := &store.ShownAsk{Kind: a.Out().Kind}, 0
	switch {
	case p.Retry != nil:
		shown.Attempt, shown.Discards, shown.Piece.Retry = 2+a.Retries, a.StreamedAfter, p.Retry.Fit()
		record.Retry = true
		t.sends[i].codes = nil
		if a.Invoking() {
			repeats{c, t}.begin()
		}
	case p.State != "":
		shown.Piece.State, shown.Piece.Detail = shownPiece(p.State), shownPiece(p.Detail)
		bytes = len(p.State) + len(p.Detail)
		record.State = actor.FitText(p.State, store.ReportedStateMax)
		if len(p.Detail) <= store.ReportedDetailMax {
			record.Detail = p.Detail
		}
		record.StreamedAfter = t.run.Seq
	case p.Text != "":
		text := userTexts{c}.piece(t, i, p.Text)
		if text == "" {
			return
		}
		shown.Piece.Text = shownPiece(text)
		bytes = len(p.Text)
		record.StreamedAfter = t.run.Seq
	default:
		return
	}
	s := &t.sends[i]
	s.pieces, s.pieceBytes = s.pieces+1, s.pieceBytes+bytes
	if refusal := c.checkStream(t.run, a, s); refusal != nil {
		t.finishTurn(c, failedOutcome(refusal))
		return
	}
	t.act.record(c, record, store.Shown{Ask: shown})
}

// shownPiece returns the text of a piece within the bounds of the codec. Its event shows
// less.
func shownPiece(text string) string { return actor.FitText(text, actor.MessageBytesMax) }

// checkStream returns a refusal if an answer has more pieces, or more bytes in its
// pieces, than allowed. The pieces before remain in the run's stream.
func (c *Cell) checkStream(run *store.Run, a *store.Asked, s *sendState) *actor.Refusal {
	l := &c.limits
	switch name := a.ShownName(); {
	case s.pieces > l.StreamEventsMax:
		return actor.Refuse(actor.EventsExceeded, "the answer of %s has more than %d deltas and states (stream_events_max)", name, l.StreamEventsMax)
	case s.pieceBytes > l.StreamBytesMax:
		return actor.Refuse(actor.EventsExceeded, "the answer of %s has more than %d bytes in deltas and states (stream_bytes_max)", name, l.StreamBytesMax)
	}
	return c.checkEvents(run, 1)
}

// checkEvents returns a refusal if the run cannot publish more events.
func (v *env) checkEvents(run *store.Run, more int) *actor.Refusal {
	if run.Seq+uint64(more) >= uint64(v.limits.RunEventsMax) { // the last event is the end of the run
		return actor.Refuse(actor.EventsExceeded, "the run has %d events, at most %d allowed (run_events_max)", run.Seq, v.limits.RunEventsMax)
	}
	return nil
}

// findStreaming returns the turn and index of the open ask that the effect serves,
// or nil.
func (c *Cell) findStreaming(id actor.EffectID, attempt uint32) (*turn, int) {
	act := c.actors.find(c.inFlight[id])
	if act == nil {
		return nil, 0
	}
	t, i := act.turn(id.Run), int(id.Index)
	if t == nil || t.step() != id.Step || !t.run.Last()[i].Open() || t.sends[i].attempt != attempt {
		return nil, 0
	}
	return t, i
}

// completionOf decodes the answer of a model or external agent. It returns the zero
// value if the answer holds no completion.
func completionOf(answer actor.Answer) upstream.Completion {
	completion, err := upstream.DecodeCompletion(inlineBytes(answer.Parts))
	if err != nil {
		return upstream.Completion{}
	}
	return completion
}

func usageOf(completion upstream.Completion) runs.Usage {
	count := func(n int64) int64 { return min(max(n, 0), actor.UsageMax) }
	u := completion.Usage
	used := runs.Usage{Input: count(u.Input), Output: count(u.Output), Total: count(u.Total), Cached: count(u.Cached)}
	if u.Priced && used.Total > 0 {
		used.Priced, used.Cost = used.Total, count(u.Cost)
	}
	return used
}

// inlineBytes returns the content of the only part, or nil.
func inlineBytes(parts []actor.Part) []byte {
	if len(parts) != 1 {
		return nil
	}
	return parts[0].Bytes
}
