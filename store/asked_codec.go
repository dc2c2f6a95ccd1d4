// SPDX-License-Identifier: Apache-2.0

package store

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

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
