// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/mutant"
)

// Journal is the state of one actor: its records folded, in order. Apply is the
// only way to change it.
type Journal struct {
	N      uint64            // the last record's number
	Runs   []*Run            // open, in the order in which they were accepted
	Away   []Away            // remembered outcomes that stand in the log, in order
	Ended  []Ended           // and those behind them, whole
	Buried []Buried          // cancelled before they came, in order
	Kept   []actor.StateItem // by name, as ended runs left it

	outcomeBytes int           // what Ended weighs
	index        *outcomeIndex // once there is much to find
}

// Run is one accepted call without outcome.
type Run struct {
	Call       actor.Call
	At         actor.Time
	Definition actor.Hash
	Clock      actor.Clock       // its own time; stands still while it waits for a person, itself or below
	Holds      uint64            // how often Clock was stopped or started
	Budget     uint32            // calls it may still make
	Steps      []Step            // its turn so far; none while it waits in the mailbox
	Seq        uint64            // its last run event
	Parked     string            // why it does not go on, if so
	Keep       []actor.StateItem // what its turn keeps: part of Kept once it has ended
}

// Step is one action of a turn: its asks, each with its answer once it has one.
type Step struct{ Asks []Asked }

// Asked is one ask, and how it stands.
type Asked struct {
	Ask     actor.Ask    // as the agent made it: what a turn that runs again is compared with
	Sent    *actor.Ask   // as it went out, where the tools made something else of it
	Call    actor.CallID // the child call, if it is one
	To      actor.ID     // its callee
	Budget  uint32       // the share it took along
	Stamp   actor.Time
	Clock   actor.Clock // its time: from then on it is answered with a refusal
	Attempt uint32
	Holds   uint64 // the highest N heard of it
	Answer  *actor.Answer
	Again   uint32            // how often it was asked once more
	Shown   uint64            // the run's last event before the first piece of its answer; 0: none was shown
	Added   bool              // by the external agent of another ask, not by the turn
	For     actor.CallID      // the message that made it so, to be answered with it
	Promise actor.Idempotency // of that message
}

// IsCall tells whether the ask is a call to another actor that was made.
func (a *Asked) IsCall() bool { return !a.Call.IsZero() }

// Out is the ask as it went out.
func (a *Asked) Out() *actor.Ask {
	if a.Sent != nil {
		return a.Sent
	}
	return &a.Ask
}

// Open tells whether the ask waits for its answer.
func (a *Asked) Open() bool { return a.Answer == nil }

// Started tells whether the run has had the turn.
func (r *Run) Started() bool { return len(r.Steps) > 0 }

// Ahead tells whether a clock of an open run began after now: the wall's was put
// back since. A Rebased has them begin now, as nobody waits for it to come round.
func (j *Journal) Ahead(now actor.Time) bool {
	for _, run := range j.Runs {
		if run.Clock.Since > now || slices.ContainsFunc(run.Last(), func(a Asked) bool { return a.Clock.Since > now }) {
			return true
		}
	}
	return false
}

func (r *Run) rebase(now actor.Time) {
	r.Clock.Rebase(now)
	for i := range r.Last() {
		r.Last()[i].Clock.Rebase(now)
	}
}

// Last is the asks of the last step: only they can be open.
func (r *Run) Last() []Asked {
	if len(r.Steps) == 0 {
		return nil
	}
	return r.Steps[len(r.Steps)-1].Asks
}

// Child fills in the call that an ask of this run is, with the time left as given.
// It shares no content with the run, which may be read again while it is under way.
func (r *Run) Child(call *actor.Call, a *Asked, left actor.Duration, attempt uint32) {
	c := &r.Call
	*call = actor.Call{ID: a.Call, Root: c.Root, Parent: c.ID, To: a.To, Operation: a.Out().Operation,
		Chain: c.Path(), Kind: actor.Waiting, Lane: c.Lane, Left: left, Attempt: attempt,
		Principal: c.Principal, Origin: actor.Agent, Project: c.Project, Budget: a.Budget,
		Workflow: c.Workflow, Trace: c.Trace, Stamp: a.Stamp, Parts: actor.CloneParts(a.Out().Parts)}
}

// Run finds an open run; nil if there is none of that id.
func (j *Journal) Run(id actor.CallID) *Run {
	for _, r := range j.Runs {
		if r.Call.ID == id {
			return r
		}
	}
	return nil
}

// Due is the earliest deadline of the open runs; 0 if there are none.
func (j *Journal) Due() actor.Time {
	var due actor.Time
	for _, r := range j.Runs {
		if d := r.Clock.Due(); due == 0 || d < due {
			due = d
		}
	}
	return due
}

// Apply folds one more record. It fails where no record of ours could follow,
// and leaves the journal as it was.
func (j *Journal) Apply(r Record) error {
	switch r := r.(type) {
	case Accepted:
		if j.Run(r.Call.ID) != nil {
			return fmt.Errorf("run %s accepted twice", r.Call.ID)
		}
		j.Open(&Run{}, &r.Call, r.At, r.Definition)
	case Asking:
		run := j.Run(r.Run)
		if run == nil || len(r.Asks) == 0 || slices.ContainsFunc(run.Last(), func(a Asked) bool { return a.Open() }) {
			return fmt.Errorf("run %s cannot ask", r.Run)
		}
		run.Asks(r.At, slices.Clone(r.Asks))
		run.Keep = append(run.Keep, r.Keep...)
	case Added:
		run := j.Run(r.Run)
		if run == nil || !r.Ask.Added || !slices.ContainsFunc(run.Last(), func(a Asked) bool { return a.Open() && !a.Added }) {
			return fmt.Errorf("run %s has nobody who could add an ask", r.Run)
		}
		last := &run.Steps[len(run.Steps)-1]
		last.Asks = append(slices.Clip(last.Asks), r.Ask)
		if r.Ask.IsCall() {
			run.Budget -= min(run.Budget, 1+r.Ask.Budget)
		}
		run.updateClock(r.At)
	case Streamed:
		_, a, err := j.openAsk(r.Run, r.Step, r.Index)
		if err != nil {
			return err
		}
		if r.Again {
			a.Again++
		}
		if a.Shown == 0 {
			a.Shown = r.Shown
		}
	case Answered:
		run, a, err := j.openAsk(r.Run, r.Step, r.Index)
		if err != nil {
			return err
		}
		run.Answers(r.At, a, &r.Answer, r.Budget)
	case Retried:
		_, a, err := j.openAsk(r.Run, r.Step, r.Index)
		if err != nil {
			return err
		}
		a.Attempt, a.Shown = r.Attempt, 0
		a.Again++
	case Held:
		run, a, err := j.openAsk(r.Run, r.Step, r.Index)
		if err != nil {
			return err
		}
		a.Holds = r.N
		a.Clock.Hold(r.At, r.Until)
		run.updateClock(r.At)
	case Resumed:
		run, a, err := j.openAsk(r.Run, r.Step, r.Index)
		if err != nil {
			return err
		}
		a.Holds = r.N
		a.Clock.Resume(r.At)
		run.updateClock(r.At)
	case Parked:
		run := j.Run(r.Run)
		if run == nil {
			return fmt.Errorf("run %s is not open", r.Run)
		}
		run.Parked = r.Detail
	case Rebased:
		for _, run := range j.Runs {
			run.rebase(r.At)
		}
	case Ended:
		if run := j.Run(r.Call); run != nil && !mutant.On("kept-with-asks-lost") {
			j.updateState(run.Keep)
		}
		j.updateState(r.Keep)
		j.Runs = slices.DeleteFunc(j.Runs, func(run *Run) bool { return run.Call.ID == r.Call })
		r.Keep = nil
		j.addOutcome(r)
	case Buried:
		j.Buried = append(j.Buried, r)
	default:
		return fmt.Errorf("%T is not a change", r)
	}
	j.N++
	j.expireOutcomes(r.at())
	return nil
}

// Open begins a run. An actor that writes nothing down has no record of it, and
// may use the Run of one that was closed.
func (j *Journal) Open(run *Run, call *actor.Call, at actor.Time, definition actor.Hash) {
	*run = Run{Call: *call, At: at, Definition: definition, Clock: actor.NewClock(at, call.Left), Budget: call.Budget, Steps: run.Steps[:0]}
	j.Runs = append(j.Runs, run)
}

// Asks is the run's next step. The asks are its own from then on.
func (r *Run) Asks(at actor.Time, asks []Asked) {
	for i := range asks {
		asks[i].Ask.Work = nil // is not state
		if asks[i].Sent != nil && asks[i].Sent.Work != nil {
			sent := *asks[i].Sent
			sent.Work = nil
			asks[i].Sent = &sent
		}
		if asks[i].IsCall() {
			r.Budget -= min(r.Budget, 1+asks[i].Budget)
		}
	}
	r.Steps = append(r.Steps, Step{Asks: asks})
	r.updateClock(at)
}

// Answers gives an ask of the last step its answer, which is the run's from then
// on, and the run what a call brings back of its share.
func (r *Run) Answers(at actor.Time, a *Asked, answer *actor.Answer, budget uint32) {
	a.Answer = answer
	r.Budget += min(budget, a.Budget)
	r.updateClock(at)
}

// Close ends a run of an actor that writes nothing down, and gives it back; nil
// if there is none of that id. No outcome is remembered here.
func (j *Journal) Close(id actor.CallID) *Run {
	for i, run := range j.Runs {
		if run.Call.ID == id {
			j.Runs = slices.Delete(j.Runs, i, i+1)
			return run
		}
	}
	return nil
}

// updateState takes over items; the last of a name counts.
func (j *Journal) updateState(items []actor.StateItem) {
	for i, item := range items {
		if i == 0 {
			j.Kept = slices.Clone(j.Kept) // a turn may still read the old ones
		}
		at, there := slices.BinarySearchFunc(j.Kept, item.Name, func(k actor.StateItem, name string) int { return strings.Compare(k.Name, name) })
		switch {
		case len(item.Value) == 0 && there:
			j.Kept = slices.Delete(j.Kept, at, at+1)
		case len(item.Value) == 0:
		case there:
			j.Kept[at] = item
		default:
			j.Kept = slices.Insert(j.Kept, at, item)
		}
	}
}

// KeptNow is what the actor keeps, with what open runs keep already.
func (j *Journal) KeptNow() []actor.StateItem {
	now := Journal{Kept: j.Kept}
	for _, run := range j.Runs {
		now.updateState(run.Keep)
	}
	return now.Kept
}

// openAsk finds an ask that is open.
func (j *Journal) openAsk(id actor.CallID, step uint32, index uint16) (*Run, *Asked, error) {
	run := j.Run(id)
	if run == nil || int(step) != len(run.Steps) || int(index) >= len(run.Last()) || !run.Last()[index].Open() {
		return nil, nil, fmt.Errorf("run %s has no open ask %d.%d", id, step, index)
	}
	return run, &run.Last()[index], nil
}

// updateClock stops or starts the run's clock: it stands still as long as the ask
// does that is held longest. A Wait is held from the start.
func (r *Run) updateClock(at actor.Time) {
	var until actor.Time
	asks := r.Last()
	for i := range asks {
		switch a := &asks[i]; {
		case !a.Open():
		case a.Ask.Kind == actor.AskWait:
			until = max(until, a.Clock.Due())
		case a.Clock.Held(at):
			until = max(until, a.Clock.HeldUntil)
		}
	}
	switch {
	case until > at && until != r.Clock.HeldUntil:
		r.Clock.Hold(at, until)
		r.Holds++
	case until <= at && r.Clock.HeldUntil != 0:
		r.Clock.Resume(at)
		r.Holds++
	}
}

// ApplyEntry folds the entry that comes next.
func (j *Journal) ApplyEntry(e Entry) error {
	if e.N != j.N+1 {
		return fmt.Errorf("entry %d follows entry %d", e.N, j.N)
	}
	runs := slices.Clone(j.Runs) // an Ended takes its run out, after its last event
	if err := j.Apply(e.Record); err != nil {
		return fmt.Errorf("entry %d: %w", e.N, err)
	}
	for _, ev := range e.Events {
		for _, r := range append(runs, j.Runs...) {
			if r.Call.ID == ev.Run {
				r.Seq = ev.Seq
			}
		}
	}
	return nil
}

// Saved is what a disk holds of an actor: the last snapshot, if any, and the
// entries behind it, in order.
type Saved struct {
	Snapshot []byte
	Entries  []Entry
}
