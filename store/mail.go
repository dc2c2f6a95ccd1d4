// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"slices"

	"github.com/troupe-run/troupe/actor"
)

// PendingMax is the maximum number of detached calls of one actor that are pending.
const PendingMax = 256

// Mail are the detached calls of an actor. They belong to the actor and not to the turn that made
// them, so they outlive the turn, and an end of the process. The zero Mail is empty.
type Mail struct {
	Rows []Pending      // in the order in which the calls were made
	Late []LateResponse // in the order in which the answers came
}

// LateResponse is the response to a call that had timed out: it was not delivered, and can be read.
type LateResponse struct {
	Call     actor.CallID
	Response []byte
}

// Bounds of Mail.Late. The oldest ones are dropped; what the callees have answered is also in their runs.
const (
	lateMax      = 16
	lateBytesMax = 1 << 20
)

// Pending is a detached call without an outcome, or one whose answer is late.
//
//	Detached ─▶ pending ─▶ Settled (answer, failure)
//	                   ├──▶ Settled (time-out) ─▶ late ─▶ Late
//	                   └──▶ Late (a reminder is cancelled) ─▶ late ─▶ Late
//
// An outcome ends the wait of the asker once: Settled and the acceptance of the run with the message
// are in one step, and a second Settled is invalid. A call that has timed out stays until its
// answer is there, so that what it performed is on record.
type Pending struct {
	Call    actor.Call   // as it is sent. Call.ID is the correlation, Call.Parent the asking run, Call.Left the time of the callee
	Tool    string       // that made the call
	Skill   string       // requested of the callee
	Client  string       // correlation that the asking agent has given as its own; "" if none
	At      actor.Time   // when it was made
	Clock   actor.Clock  // until the asker no longer waits, then until the row is dropped
	Reserve uint32       // number of calls that the turn for the outcome may make; those that the asking run has left at its end
	Purse   *actor.Purse // what that turn may spend on models, likewise
	Waits   actor.Hold   // what the callee waits for; zero: nothing
	Holds   uint64       // highest N of a Noticed record
	Late    bool         // it has timed out, or is silent
	Silent  bool         // its asker does not want the outcome
	// Cancelled reports that it is a reminder which a client has cancelled. Late is set too.
	Cancelled bool
}

// Row returns the row of a detached call, or nil.
func (m *Mail) Row(call actor.CallID) *Pending {
	for i := range m.Rows {
		if m.Rows[i].Call.ID == call {
			return &m.Rows[i]
		}
	}
	return nil
}

// Due returns the earliest deadline of the rows; 0 if there are none.
func (m *Mail) Due() (due actor.Time) {
	for i := range m.Rows {
		if at := m.Rows[i].Clock.Due(); due == 0 || at < due {
			due = at
		}
	}
	return due
}

// add adds a row.
func (m *Mail) add(p Pending) error {
	if m.Row(p.Call.ID) != nil {
		return fmt.Errorf("detached call %s made twice", p.Call.ID)
	}
	m.Rows = append(slices.Clip(m.Rows), p)
	return nil
}

// settle ends the wait for a call. The row stays if the callee may still answer.
func (m *Mail) settle(r Settled) error {
	row := m.Row(r.Call)
	if row == nil || row.Late {
		return fmt.Errorf("detached call %s is not pending", r.Call)
	}
	if r.Left == 0 {
		m.drop(r.Call)
		return nil
	}
	row.Late, row.Clock, row.Waits = true, actor.NewClock(r.At, r.Left), actor.Hold{}
	return nil
}

// wait sets what the callee of a pending call waits for.
func (m *Mail) wait(r Noticed) error {
	row := m.Row(r.Call)
	if row == nil || row.Late {
		return fmt.Errorf("detached call %s is not pending", r.Call)
	}
	row.Waits, row.Holds = r.For, r.N
	return nil
}

// end drops a row without an outcome.
func (m *Mail) end(r Late) error {
	row := m.Row(r.Call)
	switch {
	case row == nil:
		return fmt.Errorf("detached call %s has no row", r.Call)
	case r.Left == 0:
		m.drop(r.Call)
	case row.Late || r.Left < 0:
		return fmt.Errorf("detached call %s is not pending, or %v remain", r.Call, r.Left)
	default:
		row.Late, row.Cancelled, row.Clock = true, true, actor.NewClock(r.At, r.Left)
	}
	if len(r.Response) > 0 {
		m.keep(LateResponse{r.Call, r.Response})
	}
	return nil
}

func (m *Mail) keep(k LateResponse) {
	kept := append(slices.Clip(m.Late), k)
	for n := m.lateBytes() + len(k.Response); len(kept) > lateMax || n > lateBytesMax; kept = kept[1:] {
		n -= len(kept[0].Response)
	}
	m.Late = kept
}

func (m *Mail) lateBytes() (n int) {
	for _, k := range m.Late {
		n += len(k.Response)
	}
	return n
}

// LateTo returns the response to a call that had timed out, or nil.
func (m *Mail) LateTo(call actor.CallID) []byte {
	for _, k := range m.Late {
		if k.Call == call {
			return k.Response
		}
	}
	return nil
}

func (m *Mail) drop(call actor.CallID) {
	m.Rows = slices.DeleteFunc(slices.Clone(m.Rows), func(p Pending) bool { return p.Call.ID == call })
}

// heir is a turn for the outcome of a detached call, which gets what the asking run has left at its end.
type heir struct {
	budget *uint32
	purse  **actor.Purse
}

// heirs returns those to which an ended run leaves the calls that it has not made and the rest of its purse.
func (j *Journal) heirs(run actor.CallID) (all []heir) {
	for i := range j.Mail.Rows {
		if p := &j.Mail.Rows[i]; p.Call.Parent == run && !p.Late {
			all = append(all, heir{&p.Reserve, &p.Purse})
		}
	}
	for _, r := range j.Runs {
		if r.Call.Kind == actor.OneWay && r.Call.Parent == run && !r.Started() {
			all = append(all, heir{&r.Budget, &r.Purse})
		}
	}
	return all
}

// HasHeirs reports whether a run leaves its budget to the turns for the outcomes of its detached calls. It returns
// none of it to its caller.
func (j *Journal) HasHeirs(run *Run) bool { return len(j.heirs(run.Call.ID)) > 0 }

// OnlyReminds reports whether all heirs of a run are the turns of reminders, which the given tool makes.
func (j *Journal) OnlyReminds(run *Run, tool string) bool {
	own := 0
	for i := range j.Mail.Rows {
		if p := &j.Mail.Rows[i]; p.Call.Parent == run.Call.ID && !p.Late && p.Tool == tool {
			own++
		}
	}
	return own == len(j.heirs(run.Call.ID))
}

// bequeath divides the budget and the purse of a run that ends.
func (j *Journal) bequeath(run *Run) {
	heirs := j.heirs(run.Call.ID)
	part, first := run.Purse.Part(len(heirs), nil), run.Purse
	for i, h := range heirs {
		*h.budget += run.Budget / uint32(len(heirs))
		if i > 0 {
			*h.purse, first = (*h.purse).Plus(part), first.Less(part)
		}
	}
	if len(heirs) > 0 { // with what cannot be divided: the remainder, or a debt
		*heirs[0].purse = (*heirs[0].purse).Plus(first)
	}
}

// rebase moves clocks that started in the future to now.
func (m *Mail) rebase(now actor.Time) {
	for i := range m.Rows {
		m.Rows[i].Clock.Rebase(now)
	}
}

// hasFutureClock reports whether a clock starts after now.
func (m *Mail) hasFutureClock(now actor.Time) bool {
	return slices.ContainsFunc(m.Rows, func(p Pending) bool { return p.Clock.Since > now })
}

// memorySize returns the approximate memory in bytes.
func (m *Mail) memorySize() (n int) {
	for i := range m.Rows {
		n += runOverhead + actor.SizeOf(m.Rows[i].Call.Parts)
	}
	return n + m.lateBytes() + runOverhead*len(m.Late)
}

func (w *encoder) pending(p *Pending) {
	w.Call(p.Call)
	w.String(p.Tool)
	w.String(p.Skill)
	w.String(p.Client)
	w.time(p.At)
	w.clock(p.Clock)
	w.Uint(uint64(p.Reserve))
	w.purse(p.Purse)
	w.Hold(p.Waits)
	w.Uint(p.Holds)
	w.Bool(p.Late)
	w.Bool(p.Silent)
	w.Bool(p.Cancelled)
}

func (r decoder) pending() Pending {
	return Pending{Call: r.Call(), Tool: r.String(actor.TextBytesMax), Skill: r.String(actor.TextBytesMax), Client: r.String(actor.TextBytesMax), At: r.time(), Clock: r.clock(),
		Reserve: r.uint32("reserve"), Purse: r.purse(), Waits: r.Hold(), Holds: r.Uint(), Late: r.Bool(), Silent: r.Bool(), Cancelled: r.Bool()}
}

func (w *encoder) mail(m *Mail) {
	w.Uint(uint64(len(m.Rows)))
	for i := range m.Rows {
		w.pending(&m.Rows[i])
	}
	w.Uint(uint64(len(m.Late)))
	for _, k := range m.Late {
		w.CallID(k.Call)
		w.Bytes(k.Response)
	}
}

func (r decoder) mail() Mail {
	return Mail{Rows: decodeList(r, r.Count(itemsMax, "detached calls"), r.pending), Late: decodeList(r, r.Count(lateMax, "late responses"), r.lateResponse)}
}

func (r decoder) lateResponse() LateResponse { return LateResponse{r.CallID(), r.Bytes(lateBytesMax)} }
