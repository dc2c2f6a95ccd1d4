// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"fmt"
	"math"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// The index row of a run holds its summary. It is put with each entry that changes
// the run's status, a few times per run.

// summaryVersion is the first byte of an index row.
const summaryVersion = 3

// ApplySummarized is like Apply. If the record changed the summary of its run, it
// returns the summary; otherwise changed is false. For a record that ends the run,
// Run.Seq MUST include the last event.
func (j *Journal) ApplySummarized(r Record) (s runs.Summary, changed bool, err error) {
	id := runOf(r)
	run := j.Run(id)
	ended, ends := r.(Ended)
	var before runState
	if run != nil && !ends {
		before = run.state()
	}
	if err := j.Apply(r); err != nil {
		return s, false, err
	}
	known := run != nil
	switch {
	case known && ends:
		return run.endSummary(&ended), true, nil
	case !known:
		if run = j.Run(id); run == nil { // an outcome without run
			return s, false, nil
		}
	}
	after := run.state()
	if known && after == before {
		return s, false, nil
	}
	return run.summary(after), true, nil
}

// ApplyEntrySummarized is like ApplyEntry and returns the same as ApplySummarized.
func (j *Journal) ApplyEntrySummarized(e Entry) (s runs.Summary, changed bool, err error) {
	if e.N != j.N+1 {
		return s, false, fmt.Errorf("entry %d does not follow entry %d", e.N, j.N)
	}
	j.countEvents(&e)
	if s, changed, err = j.ApplySummarized(e.Record); err != nil {
		return s, false, fmt.Errorf("entry %d: %w", e.N, err)
	}
	j.countEvents(&e) // of a run that the entry accepts
	return s, changed, nil
}

// dropOutcomes drops outcomes and tombstones. Folding entries does not depend on them.
func (j *Journal) dropOutcomes() {
	j.Evicted, j.Ended, j.Buried, j.outcomeBytes, j.index = nil, nil, nil, 0, nil
}

// countEvents sets the number of the last event of open runs.
func (j *Journal) countEvents(e *Entry) {
	for _, ev := range e.Events {
		if run := j.Run(ev.Run); run != nil {
			run.Seq = ev.Seq
		}
	}
	if n := e.Shown.N; n > 0 {
		if run := j.Run(eventsOf(e.Record)); run != nil {
			run.Seq = e.Shown.Seq + uint64(n) - 1
		}
	}
}

// runOf returns the run that a record changes, or zero.
func runOf(r Record) actor.CallID {
	switch r := r.(type) {
	case Accepted:
		return r.Call.ID
	case Asking:
		return r.Run
	case Added:
		return r.Run
	case Answered:
		return r.Run
	case Held:
		return r.Run
	case Resolved:
		return r.Run
	case Resumed:
		return r.Run
	case Parked:
		return r.Run
	case Ended:
		return r.Call
	}
	return actor.CallID{}
}

// runState is the part of an open run on which a change of its summary depends.
type runState struct {
	started bool
	status  runs.Status
	wait    *Asked // first open wait for a signal
	parked  string // see Run.Parked
}

// state returns the state of an open run, as its events show it.
func (r *Run) state() runState {
	s := runState{started: r.Started(), status: runs.Running}
	if s.started { // a run without a step is shown as queued
		s.parked = r.Parked
	}
	paused, busy := s.parked != "", false
	asks := r.Last()
	for i := range asks {
		a := &asks[i]
		if !a.Open() {
			continue
		}
		switch kind := a.Out().Kind; {
		case kind == actor.AskWait:
			if s.wait == nil {
				s.wait = a
			}
		case a.Waits():
			paused = true
		case a.IsCall():
			busy, paused = true, paused || a.Clock.HeldUntil != 0
		case kind == actor.AskTool || kind == actor.AskWork:
			busy = true
		}
	}
	switch {
	case paused || s.wait != nil:
		s.status = runs.PausedWaitingApproval
	case busy:
		s.status = runs.PausedWaitingTool
	}
	return s
}

// summary returns the summary of an open run in a state.
func (r *Run) summary(state runState) runs.Summary {
	c := &r.Call
	s := runs.Summary{Run: c.ID, Root: c.Root, Actor: c.To, User: c.Principal, Depth: c.Depth(), Workflow: c.Workflow, Project: c.Project,
		Status: state.status, Created: r.At, Started: r.StartedAt, Usage: r.Usage, Tree: r.Tree, Spent: r.Spent}
	if !c.IsRoot() {
		s.Parent = c.Parent
	}
	if c.Lane != actor.Normal && c.Lane != 0 {
		s.Priority = c.Lane.Priority()
	}
	if state.wait != nil {
		s.Waits, s.Until = state.wait.Out().Name, state.wait.Clock.Due()
	}
	if state.parked != "" {
		s.SetRefusal(parkedRefusal(state.parked))
	}
	return s
}

// acceptedSummary returns the summary of a run that was just accepted.
func acceptedSummary(r *Accepted) runs.Summary {
	run := &Run{Call: r.Call, At: r.At}
	return run.summary(run.state())
}

// endSummary returns the summary of a run after its outcome.
func (r *Run) endSummary(e *Ended) runs.Summary {
	s := r.summary(runState{}) // it waits for nothing any more
	s.Ended, s.Outcome = e.At, e.Reply.Status
	switch refusal := e.Reply.Refusal; {
	case refusal == nil:
		s.Status = runs.Done
		s.SetText(e.Reply.Parts)
	case refusal.Reason == actor.Stopped:
		s.Status = runs.Cancelled
		s.SetRefusal(refusal)
	default:
		s.Status = runs.Failed
		s.SetRefusal(refusal)
	}
	queued := uint64(1) // events of a run that ends in the mailbox
	if r.Call.IsRoot() {
		queued++
	}
	if s.Started == 0 && r.Seq > queued { // its turn ended without a step
		s.Started = e.At
	}
	return s
}

// summaryChange is the change of a summary by an entry that was read from the log.
type summaryChange struct {
	actor actor.ID
	n     uint64 // number of the entry
	run   actor.CallID
	first *runs.Summary // of the accepted run; nil for other entries
	state *runs.Summary // as in the entry; nil if another entry of its step has it
	end   *runs.Summary // of the ended run; nil for other entries
	park  *Parked       // of the parked or resumed run; nil for other entries
}

// summaryChangeOf returns false if the entry changes no summary.
func summaryChangeOf(e *Entry) (c summaryChange, ok bool) {
	c = summaryChange{actor: e.Actor, n: e.N, run: runOf(e.Record), state: e.Summary}
	switch r := e.Record.(type) {
	case Accepted:
		first := acceptedSummary(&r)
		c.first = &first
	case Ended:
		end := (&Run{}).endSummary(&r)
		c.end = &end
	case Parked:
		c.park = &r
	}
	return c, !c.run.IsZero() && (c.first != nil || c.state != nil)
}

// after returns the summary after the change. The argument before MUST NOT be nil unless
// the entry accepts the run. An entry has only those fields that neither its record nor
// the summary before it has.
func (c *summaryChange) after(before *runs.Summary) *runs.Summary {
	if c.first != nil {
		before = c.first
	}
	after := *before
	if c.state == nil {
		return &after
	}
	after.Status, after.Started, after.Waits, after.Until = c.state.Status, c.state.Started, c.state.Waits, c.state.Until
	after.Usage, after.Tree, after.Spent = c.state.Usage, c.state.Tree, c.state.Spent
	switch {
	case c.park == nil:
	case c.park.Detail == "":
		after.Refusal = nil
	default:
		after.SetRefusal(parkedRefusal(c.park.Detail))
	}
	if c.end != nil {
		after.Ended, after.Outcome, after.Text, after.Truncated, after.Refusal = c.end.Ended, c.end.Outcome, c.end.Text, c.end.Truncated, c.end.Refusal
	}
	return &after
}

// summary writes the fields of an entry's summary that a read cannot derive.
func (w *encoder) summary(s *runs.Summary) {
	w.Bool(s != nil)
	if s == nil {
		return
	}
	w.Uint(statusSpent(s))
	w.time(s.Started)
	w.String(s.Waits)
	w.time(s.Until)
	w.Usage(s.Usage)
	w.Usage(s.Tree)
	encodeSpent(&w.Encoder, s.Spent)
}

func (r decoder) summary(run actor.CallID) *runs.Summary {
	if !r.Bool() {
		return nil
	}
	s := &runs.Summary{Run: run}
	var spent bool
	if s.Status, spent = decodeStatus(r.Decoder); s.Status == 0 {
		r.Fail("summary without status")
	}
	s.Started, s.Waits, s.Until = r.time(), r.String(actor.TextBytesMax), r.time()
	s.Usage, s.Tree = r.Usage(), r.Usage()
	if spent {
		s.Spent = decodeSpent(r.Decoder)
	}
	return s
}

// withSpent is added to the status of an encoded summary that has Spent.
const withSpent = 1 << 6

func statusSpent(s *runs.Summary) uint64 {
	if len(s.Spent) > 0 {
		return uint64(s.Status) | withSpent
	}
	return uint64(s.Status)
}

func decodeStatus(d *actor.Decoder) (status runs.Status, spent bool) {
	n := d.UintMax(uint64(runs.Cancelled)|withSpent, "status of a run")
	if status = runs.Status(n &^ withSpent); status > runs.Cancelled {
		d.Fail("unknown status %d of a run", status)
	}
	return status, n&withSpent != 0
}

// encodeSpent writes what a run spent by model, if there is any.
func encodeSpent(e *actor.Encoder, all runs.Spent) {
	if len(all) == 0 {
		return
	}
	e.Uint(uint64(len(all)))
	for i := range all {
		e.String(all[i].Model)
		e.Uint(all[i].Answers)
		e.Uint(all[i].Unmeasured)
		e.Usage(all[i].Usage)
	}
}

func decodeSpent(d *actor.Decoder) (all runs.Spent) {
	for range d.UintMax(runs.SpentMax, "models of a run") {
		all = append(all, runs.Spending{Model: d.String(runs.NameBytesMax), Answers: d.UintMax(actor.UsageMax, "answers"), Unmeasured: d.UintMax(actor.UsageMax, "answers without usage"), Usage: d.Usage()})
	}
	if len(all) == 0 {
		d.Fail("nothing spent")
	}
	return all
}

// appendSummary appends the index row of a run to b. The key holds the ID of the run.
func appendSummary(b []byte, s *runs.Summary) []byte {
	e := actor.Encoder{Buf: b}
	e.Uint(summaryVersion)
	e.ID(s.Actor)
	e.String(s.User)
	e.CallID(s.Root)
	e.CallID(s.Parent)
	e.Uint(uint64(s.Depth))
	e.String(s.Workflow)
	e.String(s.Project)
	e.String(s.Priority)
	e.Uint(statusSpent(s))
	e.Int(int64(s.Created))
	e.Int(int64(s.Started))
	e.Int(int64(s.Ended))
	e.String(s.Waits)
	e.Int(int64(s.Until))
	e.Uint(uint64(s.Outcome))
	e.String(s.Text)
	e.Bool(s.Truncated)
	e.Refusal(s.Refusal)
	e.Usage(s.Usage)
	e.Usage(s.Tree)
	encodeSpent(&e, s.Spent)
	sum := summarySum(s.Run, e.Buf[len(b):])
	e.Raw(sum[:])
	return e.Buf
}

// summarySum returns the checksum at the end of an index row. The row is part of no
// chain of hashes, because a later batch replaces it.
func summarySum(run actor.CallID, row []byte) (sum [8]byte) {
	var buffer [512]byte
	hash := actor.HashOf(append(append(buffer[:0], run[:]...), row...))
	copy(sum[:], hash[:])
	return sum
}

// decodeSummary decodes an index row.
func decodeSummary(run actor.CallID, value []byte) (runs.Summary, error) {
	d := newDecoder(value)
	if err := d.readVersion("owner", summaryVersion); err != nil {
		return runs.Summary{}, err
	}
	s := runs.Summary{Run: run, Actor: d.ID(), User: d.String(actor.TextBytesMax), Root: d.CallID()}
	if s.Actor == (actor.ID{}) {
		d.Fail("run without actor")
	}
	s.Parent, s.Depth = d.CallID(), int(d.UintMax(actor.ChainMax, "depth"))
	s.Workflow, s.Project, s.Priority = d.String(actor.TextBytesMax), d.String(actor.TextBytesMax), d.String(actor.NameBytesMax)
	var spent bool
	if s.Status, spent = decodeStatus(d.Decoder); s.Status == 0 {
		d.Fail("summary without status")
	}
	s.Created, s.Started, s.Ended = d.time(), d.time(), d.time()
	s.Waits, s.Until = d.String(actor.TextBytesMax), d.time()
	s.Outcome = actor.Status(d.UintMax(math.MaxUint8, "outcome"))
	s.Text, s.Truncated = d.String(runs.ListedTextMax), d.Bool()
	s.Refusal = d.Refusal()
	s.Usage, s.Tree = d.Usage(), d.Usage()
	if spent {
		s.Spent = decodeSpent(d.Decoder)
	}
	want := summarySum(run, value[:max(len(value)-8, 0)])
	if got := d.Raw(len(want)); d.Err() == nil && !bytes.Equal(got, want[:]) {
		d.Fail("differs from the row that was written")
	}
	return s, d.End()
}
