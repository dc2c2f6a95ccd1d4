// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"strconv"

	"github.com/cespare/xxhash/v2"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/store"
)

// CanonicalLog is the canonical log of a simulation. Each input of a cell, each
// resulting entry and effect, and each event is one line of text. So is each action
// of the simulation itself. The hash of the log is the SHA-256 of its bytes, so the
// hash can be recomputed from the text.
//
//	in  cell time input …      en  actor number record
//	out effect …               ev  event
//	ba  node number hash       --  action of the simulation
//
// The hash of a batch covers all its entries and all batches before it.
//
// A nil CanonicalLog discards all lines. It is used if no hash is requested.
type CanonicalLog struct {
	hash    hash.Hash
	out     io.Writer // receives the lines; nil: only the hash is computed
	buf     []byte
	scratch actor.Encoder // buffer for values that are only digested
}

func newCanonicalLog(o Options) *CanonicalLog {
	if o.Unhashed && o.Events == nil {
		return nil
	}
	return &CanonicalLog{hash: sha256.New(), out: o.Events}
}

// HashLog returns the hash of a canonical log.
func HashLog(r io.Reader) (string, error) {
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func (l *CanonicalLog) endLine() {
	l.buf = append(l.buf, '\n')
	if len(l.buf) > 1<<15 {
		l.flush()
	}
}

func (l *CanonicalLog) flush() {
	l.hash.Write(l.buf)
	if l.out != nil {
		l.out.Write(l.buf) //nolint:errcheck // the owner of the writer checks for errors
	}
	l.buf = l.buf[:0]
}

// Hash returns the hash of all lines so far.
func (l *CanonicalLog) Hash() string {
	if l == nil {
		return ""
	}
	l.flush()
	return hex.EncodeToString(l.hash.Sum(nil))
}

func (l *CanonicalLog) note(now actor.Time, format string, args ...any) {
	if l == nil {
		return
	}
	l.buf = append(l.buf, "-- "...)
	l.buf = strconv.AppendInt(l.buf, int64(now), 10)
	l.buf = append(l.buf, ' ')
	l.buf = fmt.Appendf(l.buf, format, args...)
	l.endLine()
}

func (l *CanonicalLog) event(e *history.Event) {
	if l == nil {
		return
	}
	l.buf = append(l.buf, "ev "...)
	l.buf = e.AppendTo(l.buf)
	l.endLine()
}

func (l *CanonicalLog) input(cell actor.Address, now actor.Time, in runtime.Input, bytes []byte) {
	if l == nil {
		return
	}
	l.buf = append(l.buf, "in "...)
	l.buf = appendAddress(l.buf, cell)
	l.buf = append(l.buf, ' ')
	l.buf = strconv.AppendInt(l.buf, int64(now), 10)
	switch in := in.(type) {
	case runtime.Boot:
		l.buf = fmt.Appendf(l.buf, " boot running=%v strikes=%v", in.Running, in.Strikes)
	case runtime.Deliver:
		l.buf = append(l.buf, " deliver "...)
		l.buf = appendID(l.buf, in.Envelope.To)
		if bytes == nil {
			l.scratch.Buf = actor.Append(l.scratch.Buf[:0], in.Envelope)
			bytes = l.scratch.Buf
		}
		l.digest(bytes)
	case *runtime.Visit:
		l.buf = append(l.buf, " visit "...)
		l.buf = appendID(l.buf, in.Call.To)
		l.scratch.Buf = actor.Append(l.scratch.Buf[:0], actor.Envelope{To: in.Call.To, Body: actor.Request{Call: in.Call}})
		l.digest(l.scratch.Buf)
	case runtime.Outcome:
		l.buf = append(l.buf, " outcome "...)
		l.effectID(in.ID, in.Attempt)
		l.digest(l.encodeAnswer(in.Answer))
	case runtime.Streamed:
		l.buf = append(l.buf, " streamed "...)
		l.effectID(in.ID, in.Attempt)
		l.digest(l.encodePiece(in.Piece))
	case runtime.Loaded:
		l.buf = append(l.buf, " loaded "...)
		l.buf = appendID(l.buf, in.Actor)
		l.buf = fmt.Appendf(l.buf, " snapshot=%d entries=%d", len(in.Saved.Snapshot), len(in.Saved.Entries))
		l.digest(in.Saved.Snapshot)
	case runtime.Recalled:
		l.buf = append(l.buf, " recalled "...)
		l.buf = appendID(l.buf, in.Actor)
		l.buf = strconv.AppendUint(append(l.buf, ' '), in.Outcome, 10)
		l.digest(l.encodeReply(in.Reply))
	case runtime.PageLoaded:
		l.buf = append(l.buf, " page "...)
		l.buf = appendID(l.buf, in.Actor)
		l.digest(in.Page[:])
	case runtime.LoadFailed:
		l.buf = append(l.buf, " load-failed "...)
		l.buf = appendID(l.buf, in.Actor)
	case runtime.Due:
		l.buf = append(l.buf, " due"...)
		for _, id := range in.Actors {
			l.buf = append(l.buf, ' ')
			l.buf = appendID(l.buf, id)
		}
	case runtime.Owners:
		l.buf = append(l.buf, " owners"...)
		l.digest(bytes)
	case runtime.Agents:
		l.buf = append(l.buf, " agents"...)
		for i := range in.Definitions {
			l.buf = append(append(l.buf, ' '), in.Definitions[i].Name...)
		}
	case runtime.Limits:
		l.buf = append(l.buf, " limits"...)
		for _, limit := range in.Limits.Settings() {
			l.buf = fmt.Appendf(l.buf, " %s=%d", limit.Key, limit.Value)
		}
	case runtime.CellRestarted:
		l.buf = append(l.buf, " cell-restarted "...)
		l.buf = appendAddress(l.buf, in.Cell)
	case runtime.Tick:
		l.buf = append(l.buf, " tick"...)
	}
	l.endLine()
}

func (l *CanonicalLog) entry(e *store.Entry) {
	if l == nil {
		return
	}
	l.buf = append(l.buf, "en "...)
	l.buf = appendID(l.buf, e.Actor)
	l.buf = append(l.buf, ' ')
	l.buf = strconv.AppendUint(l.buf, e.N, 10)
	l.buf = append(l.buf, ' ')
	l.buf = append(l.buf, recordName(e.Record)...)
	l.endLine()
}

func (l *CanonicalLog) batch(node actor.NodeID, b *store.Batch) {
	if l == nil {
		return
	}
	l.buf = append(append(l.buf, "ba "...), node...)
	l.buf = strconv.AppendUint(append(l.buf, ' '), b.No, 10)
	l.buf = hex.AppendEncode(append(l.buf, ' '), b.Hash[:8])
	l.endLine()
}

func (l *CanonicalLog) effect(e *runtime.Effect, bytes []byte) {
	if l == nil {
		return
	}
	l.buf = append(l.buf, "out "...)
	if e.Gated {
		l.buf = append(l.buf, "gated "...)
	}
	l.effectID(e.ID, e.Attempt)
	switch op := e.Op.(type) {
	case runtime.Send:
		l.buf = append(l.buf, " send "...)
		l.buf = append(l.buf, op.Node...)
		l.buf = append(l.buf, '.')
		l.buf = strconv.AppendUint(l.buf, uint64(op.Cell), 10)
		l.digest(bytes)
	case runtime.Respond:
		l.buf = append(l.buf, " respond held="...)
		l.buf = strconv.AppendInt(l.buf, int64(op.HeldUntil), 10)
		l.digest(l.encodeReply(op.Reply))
	case runtime.Publish:
		l.buf = append(l.buf, " publish "...)
		l.buf = op.Event.Run.AppendTo(l.buf)
		l.buf = append(l.buf, ' ')
		l.buf = strconv.AppendUint(l.buf, op.Event.Seq, 10)
		l.digest(op.Event.Body)
	case runtime.Tool:
		l.buf = append(append(l.buf, " tool "...), op.Name...)
		l.digest(op.Input)
	case runtime.Work:
		l.buf = append(append(l.buf, " work "...), op.Name...)
		l.buf = append(l.buf, ' ')
		l.buf = strconv.AppendInt(l.buf, int64(op.Left), 10)
	case runtime.Model:
		l.buf = append(append(l.buf, " model "...), op.Name...)
		l.buf = append(l.buf, ' ')
		l.buf = strconv.AppendInt(l.buf, int64(op.Left), 10)
		l.digest(op.Body)
		for _, t := range op.Tools {
			l.digest([]byte(t.Description))
		}
	case runtime.Invoke:
		l.buf = append(append(l.buf, " invoke "...), op.Name...)
		l.buf = append(l.buf, ' ')
		l.buf = strconv.AppendInt(l.buf, int64(op.Left), 10)
		l.digest(op.Target)
		l.digest(op.Messages)
	case runtime.Joined:
		l.buf = append(l.buf, " joined "...)
		l.buf = op.Run.AppendTo(l.buf)
	case runtime.Adjust:
		l.buf = append(l.buf, " adjust "...)
		l.buf = strconv.AppendInt(l.buf, int64(op.Left), 10)
	case runtime.Abort:
		l.buf = append(l.buf, " abort"...)
	case runtime.Await:
		l.buf = append(l.buf, " await"...)
	case runtime.Load:
		l.buf = append(l.buf, " load "...)
		l.buf = appendID(l.buf, op.Actor)
		if op.Outcome > 0 {
			l.buf = strconv.AppendUint(append(l.buf, ' '), op.Outcome, 10)
		}
		if op.Page != (actor.Hash{}) {
			l.digest(op.Page[:])
		}
	case runtime.MayForget:
		l.buf = fmt.Appendf(l.buf, " may forget %s", op.Session.Name)
	case runtime.Forgot:
		l.buf = fmt.Appendf(l.buf, " forgot %s %v", op.Session.Name, op.Refusal)
	case runtime.Expiries:
		l.buf = fmt.Appendf(l.buf, " expiries %d from %d", len(op.Shards), op.Shards[0])
	}
	l.endLine()
}

func (l *CanonicalLog) effectID(id actor.EffectID, attempt uint32) {
	if id.Run.IsZero() {
		return
	}
	l.buf = id.Run.AppendTo(l.buf)
	for _, n := range [...]uint64{uint64(id.Step), uint64(id.Index), uint64(attempt)} {
		l.buf = append(l.buf, '.')
		l.buf = strconv.AppendUint(l.buf, n, 10)
	}
}

// digest appends a checksum. It distinguishes different values, but does not resist
// deliberate collisions.
func (l *CanonicalLog) digest(b []byte) {
	sum := xxhash.Sum64(b)
	l.buf = append(l.buf, ' ')
	for shift := 60; shift >= 0; shift -= 4 {
		l.buf = append(l.buf, "0123456789abcdef"[sum>>shift&15])
	}
}

func appendID(b []byte, id actor.ID) []byte {
	if id.Tenant != actor.DefaultTenant {
		b = append(append(b, id.Tenant...), '/')
	}
	return append(append(append(b, id.Agent...), '/'), id.Key...)
}

func appendAddress(b []byte, a actor.Address) []byte {
	b = append(append(b, a.Node...), '.')
	b = strconv.AppendUint(b, uint64(a.Cell), 10)
	return strconv.AppendUint(append(b, '#'), a.Incarnation, 10)
}

// encodeAnswer, encodePiece and encodeReply return a buffer that is valid until the
// next call of any of them.
func (l *CanonicalLog) encodeAnswer(a actor.Answer) []byte {
	l.scratch.Buf = l.scratch.Buf[:0]
	l.scratch.Parts(a.Parts)
	l.scratch.Refusal(a.Refusal)
	return l.scratch.Buf
}

func (l *CanonicalLog) encodePiece(p actor.Piece) []byte {
	l.scratch.Buf = l.scratch.Buf[:0]
	l.scratch.String(p.Text)
	l.scratch.String(p.State)
	l.scratch.String(p.Detail)
	l.scratch.Refusal(p.Retry)
	return l.scratch.Buf
}

func (l *CanonicalLog) encodeReply(r actor.Reply) []byte {
	l.scratch.Buf = l.scratch.Buf[:0]
	l.scratch.Reply(r)
	return l.scratch.Buf
}

func recordName(r store.Record) string {
	switch r.(type) {
	case store.Accepted:
		return "Accepted"
	case store.Asking:
		return "Asking"
	case store.Answered:
		return "Answered"
	case store.Added:
		return "Added"
	case store.Streamed:
		return "Streamed"
	case store.Retried:
		return "Retried"
	case store.Held:
		return "Held"
	case store.Resumed:
		return "Resumed"
	case store.Resolved:
		return "Resolved"
	case store.Drawn:
		return "Drawn"
	case store.Parked:
		return "Parked"
	case store.Rebased:
		return "Rebased"
	case store.Cut:
		return "Cut"
	case store.Forgotten:
		return "Forgotten"
	case store.Kept:
		return "Kept"
	case store.Ended:
		return "Ended"
	case store.Appended:
		return "Appended"
	case store.Detached:
		return "Detached"
	case store.Settled:
		return "Settled"
	case store.Noticed:
		return "Noticed"
	case store.Late:
		return "Late"
	case store.Buried:
		return "Buried"
	case store.Snapshot:
		return "Snapshot"
	}
	invariant.Check(false, "sim: %T has no name in the log: give it a case", r)
	return ""
}
