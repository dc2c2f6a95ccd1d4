// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// Journal is the state of one actor: the fold of its records in order. For a journaled
// actor, Apply and ApplyEntry are the only ways to add to it.
type Journal struct {
	N          uint64            // number of the last record
	Runs       []*Run            // open runs in order of acceptance
	Evicted    []EvictedOutcome  // references to retained outcomes in the log, oldest first
	Ended      []Ended           // retained outcomes that are complete, all later than those in Evicted
	Buried     []Buried          // tombstones of calls cancelled before arrival, oldest first
	ActorState []actor.StateItem // actor state sorted by name, with the updates of ended runs
	Transcript Transcript
	Mail       Mail
	Reported   Reported         // by an external agent, of itself
	Extensions actor.Extensions // fields of a later version
	At         actor.Time       // time of the last record; 0 if there is none

	outcomeBytes int  // total memorySize of Ended
	stateBytes   int  // itemsSize of ActorState
	folds        bool // updates of the state are collected, see Fold
	updates      []actor.StateItem
	index        *outcomeIndex // nil until a lookup needs it
}

// Run is an accepted call without an outcome.
type Run struct {
	Call         actor.Call
	At           actor.Time
	Definition   actor.Hash
	Clock        actor.Clock       // time left; stopped while the run or a callee waits for a person
	Holds        uint64            // number of times that Clock was stopped or started
	Budget       uint32            // number of calls that the run may still make
	Purse        *actor.Purse      // what the run may still spend on models
	Steps        []Step            // steps of its turn; empty while the call waits in the mailbox
	Seq          uint64            // number of its last run event
	Parked       string            // reason why the turn is stopped; empty if it is not
	StateUpdates []actor.StateItem // updates by its turn; applied to ActorState when the run ends
	StartedAt    actor.Time        // time of its first step; 0 before
	Usage        actor.Usage       // of the answers to its steps, except those of calls
	Tree         actor.Usage       // of all answers to its steps
	Spent        runs.Spent        // as Usage, by model
	Heard        uint64            // length of the transcript when the turn began
	HeldTo       actor.Time        // latest end of a hold of Clock so far; 0 if there was none
}

// Step is one action of a turn: its asks with their answers.
type Step struct{ Asks []Asked }

// Asked is one ask and its progress.
type Asked struct {
	Ask           actor.Ask    // the ask as the agent made it; the asks of a replayed turn are compared with this field
	Sent          *actor.Ask   // as sent, if tools rewrote it; otherwise nil
	Call          actor.CallID // child call; zero if the ask made no call
	To            actor.ID     // callee of Call
	Budget        uint32       // share of the run's budget given to Call
	Stamp         actor.Time
	Clock         actor.Clock // time left; when it expires, the ask is answered with a refusal
	Attempt       uint32
	HeldFor       actor.Hold // of the Held record in effect
	Holds         uint64     // highest N of a Held or Resumed record
	Answer        *actor.Answer
	Retries       uint32            // number of retries
	StreamedAfter uint64            // Seq of the run's last event before the first published piece of the answer; 0 if none was published
	Added         bool              // set if the external agent of another ask made this ask, not the turn
	Callback      actor.CallID      // message that added the ask; the answer to the ask is the reply to that message
	CallbackKey   actor.Idempotency // idempotency key of that message
	Verdict       Verdict           // of the policy about a call of a declared tool; zero if none was made
	Await         *Await            // what the ask waits for before it is performed; nil: nothing
	ResultMax     uint32            // size in bytes of a result that the turn gets as a whole; 0 means any
	FailsRun      bool              // the failure of the tool ends the run
	OnDevice      bool              // a device of the user performs the tool
	Purse         *actor.Purse      // part of the run's purse: for Call, or the most that the answer of a model can cost; nil: none
}

// Verdict is a decision of the policy, and the rule that led to it.
type Verdict struct {
	Decision runs.Decision
	Rule     string
}

// Await is the decision of a person without which an ask is not performed. While it is
// pending, the clock of the ask runs to its expiry, and that of the run is stopped.
type Await struct {
	Digest  actor.Hash // of the subject of the decision: definition, arguments, run and ask
	Summary string     // of the arguments, for the person
	Status  runs.ApprovalStatus
}

// Waits reports whether an open ask waits for a decision.
func (a *Asked) Waits() bool {
	return a.Open() && a.Await != nil && a.Await.Status == runs.ApprovalStatusPending
}

// AwaitsBudget reports whether an ask waits, or waited, for a larger budget.
func (a *Asked) AwaitsBudget() bool { return a.Await != nil && a.Out().Kind == actor.AskModel }

// IsCall reports whether the ask made a call to another actor. It is false for a
// refused call.
func (a *Asked) IsCall() bool { return !a.Call.IsZero() }

// Out returns the ask as it was sent.
func (a *Asked) Out() *actor.Ask {
	if a.Sent != nil {
		return a.Sent
	}
	return &a.Ask
}

// Open reports whether the ask waits for its answer.
func (a *Asked) Open() bool { return a.Answer == nil }

// Invoking reports whether an external agent works on the ask. Such an agent may add
// calls to the step.
func (a *Asked) Invoking() bool {
	return a.Open() && !a.Added && a.Out().Kind == actor.AskInvoke
}

// FailedBy returns the failure of a tool in the last step that ends the run, or nil. The failure of a tool with a
// fallback does not end it. A call that an external agent added ends it only while that agent works.
func (r *Run) FailedBy() *actor.Refusal {
	asks := r.Last()
	for i := range asks {
		a := &asks[i]
		if a.FailsRun && !a.Open() && a.Answer.Refusal != nil && (a.Added || a.Answer.Refusal.Fallback() == "") && (!a.Added || slices.ContainsFunc(asks, func(o Asked) bool { return o.Invoking() })) {
			return a.Answer.Refusal
		}
	}
	return nil
}

// Started reports whether the run's turn has made its first step.
func (r *Run) Started() bool { return len(r.Steps) > 0 }

// HasFutureClock reports whether a clock of an open run starts after now, because the
// system clock was set back. A Rebased record moves such clocks to now. Without it,
// runs would stall until the system clock catches up.
func (j *Journal) HasFutureClock(now actor.Time) bool {
	for _, run := range j.Runs {
		if run.Clock.Since > now || slices.ContainsFunc(run.Last(), func(a Asked) bool { return a.Clock.Since > now }) {
			return true
		}
	}
	return j.Mail.hasFutureClock(now)
}

func (r *Run) rebase(now actor.Time) {
	r.Clock.Rebase(now)
	for i := range r.Last() {
		r.Last()[i].Clock.Rebase(now)
	}
}

// Last returns the asks of the last step. Asks of earlier steps are never open.
func (r *Run) Last() []Asked {
	if len(r.Steps) == 0 {
		return nil
	}
	return r.Steps[len(r.Steps)-1].Asks
}

// Child sets *call to the child call of an ask, with the given time left. The ask may
// lower the priority of the call, but not raise it above that of the run. The call
// shares no content with the run, which may be reused while the call is in transit.
func (r *Run) Child(call *actor.Call, a *Asked, left actor.Duration, attempt uint32) {
	c := &r.Call
	*call = actor.Call{ID: a.Call, Root: c.Root, Parent: c.ID, To: a.To, Operation: a.Out().Operation,
		Chain: c.Path(), Kind: actor.Waiting, Lane: max(c.Lane, a.Ask.Lane), Left: left, Attempt: attempt,
		Principal: c.Principal, Origin: actor.Agent, Project: c.Project, Budget: a.Budget, Purse: a.Purse,
		Workflow: c.Workflow, Trace: c.Trace, Stamp: a.Stamp, Parts: actor.CloneParts(a.Out().Parts), Extensions: c.Extensions.Inherited()}
}

// Run returns the open run of a call, or nil.
func (j *Journal) Run(id actor.CallID) *Run {
	for _, r := range j.Runs {
		if r.Call.ID == id {
			return r
		}
	}
	return nil
}

// Due returns the earliest deadline of the open runs and detached calls, or 0 if there are none.
func (j *Journal) Due() actor.Time {
	due := j.Mail.Due()
	for _, r := range j.Runs {
		if d := r.Clock.Due(); due == 0 || d < due {
			due = d
		}
	}
	return due
}

// Apply folds one more record. If the record is not valid after the previous records,
// Apply returns an error and leaves the journal unchanged.
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
			return fmt.Errorf("run %s cannot start another step", r.Run)
		}
		if !run.Started() {
			run.Heard = j.Transcript.Len()
		}
		run.AddStep(r.At, slices.Clone(r.Asks))
		run.StateUpdates = append(run.StateUpdates, r.StateUpdates...)
	case Added:
		run := j.Run(r.Run)
		if run == nil || !r.Ask.Added || !slices.ContainsFunc(run.Last(), func(a Asked) bool { return a.Open() && !a.Added }) {
			return fmt.Errorf("run %s has no open ask that can add another", r.Run)
		}
		last := &run.Steps[len(run.Steps)-1]
		last.Asks = append(slices.Clip(last.Asks), r.Ask)
		run.take(&r.Ask)
		run.updateClock(r.At)
	case Streamed:
		_, a, err := j.openAsk(r.Run, r.Step, r.Index)
		if err != nil {
			return err
		}
		if r.Retry {
			a.Retries++
			a.StreamedAfter = 0 // the retry voids the pieces
		}
		if a.StreamedAfter == 0 {
			a.StreamedAfter = r.StreamedAfter
		}
		j.report(&r)
	case Answered:
		run, a, err := j.openAsk(r.Run, r.Step, r.Index)
		if err != nil {
			return err
		}
		run.SetAnswer(r.At, a, &r.Answer, r.Budget, r.Purse)
	case Retried:
		_, a, err := j.openAsk(r.Run, r.Step, r.Index)
		if err != nil {
			return err
		}
		a.Attempt, a.StreamedAfter = r.Attempt, 0
		a.Retries++
	case Resolved:
		run, a, err := j.openAsk(r.Run, r.Step, r.Index)
		switch {
		case err != nil:
			return err
		case a.Await == nil:
			return fmt.Errorf("ask %d.%d of run %s waits for no decision", r.Step, r.Index, r.Run)
		}
		if err := runs.ApprovalTransition(a.Await.Status, r.Status); err != nil {
			return err
		}
		await := *a.Await
		await.Status, a.Await = r.Status, &await
		if r.Status == runs.ApprovalStatusApproved {
			a.Clock = actor.NewClock(r.At, r.Left)
			run.Purse = run.Purse.Plus(r.Raise).Less(a.Purse)
		}
		run.updateClock(r.At)
	case Drawn:
		run := j.Run(r.Run)
		if run == nil || run.Started() || r.Purse == nil || run.Purse == nil || run.Purse.Day != 0 {
			return fmt.Errorf("run %s cannot draw a purse", r.Run)
		}
		run.Purse = r.Purse
	case Held:
		run, a, err := j.openAsk(r.Run, r.Step, r.Index)
		if err != nil {
			return err
		}
		a.Holds, a.HeldFor = r.N, r.For
		a.Clock.Hold(r.At, r.Until)
		run.updateClock(r.At)
	case Resumed:
		run, a, err := j.openAsk(r.Run, r.Step, r.Index)
		if err != nil {
			return err
		}
		a.Holds, a.HeldFor = r.N, actor.Hold{}
		a.Clock.Resume(r.At)
		run.updateClock(r.At)
	case Parked:
		run := j.Run(r.Run)
		if run == nil {
			return fmt.Errorf("run %s is not open", r.Run)
		}
		if run.Parked = r.Detail; r.Detail != "" {
			run.hold(r.At, r.At.Add(actor.WaitTimeoutMax))
		}
		run.updateClock(r.At)
	case Rebased:
		for _, run := range j.Runs {
			run.rebase(r.At)
		}
		j.Mail.rebase(r.At)
	case Ended:
		if run := j.Run(r.Call); run != nil {
			j.updateState(run.StateUpdates)
		}
		j.updateState(r.StateUpdates)
		if run := j.Run(r.Call); run != nil {
			j.addRunMessages(run, &r)
			j.bequeath(run)
		}
		j.Runs = slices.DeleteFunc(j.Runs, func(run *Run) bool { return run.Call.ID == r.Call })
		r.StateUpdates = nil
		j.addOutcome(r)
	case Appended:
		j.Transcript.add(r.Message)
	case Detached:
		run := j.Run(r.Pending.Call.Parent)
		if run == nil {
			return fmt.Errorf("run %s is not open", r.Pending.Call.Parent)
		}
		if err := j.Mail.add(r.Pending); err != nil {
			return err
		}
		run.Budget -= min(run.Budget, 1+r.Pending.Call.Budget)
		run.Purse = run.Purse.Less(r.Pending.Call.Purse)
	case Settled:
		if err := j.Mail.settle(r); err != nil {
			return err
		}
	case Noticed:
		if err := j.Mail.wait(r); err != nil {
			return err
		}
	case Late:
		if err := j.Mail.end(r); err != nil {
			return err
		}
	case Buried:
		j.Buried = append(j.Buried, r)
	default:
		return fmt.Errorf("unexpected record %T", r)
	}
	j.N++
	j.At = r.at()
	j.expireOutcomes(j.At)
	return nil
}

// Open adds an open run for an accepted call. It overwrites the argument run and
// reuses the memory of its steps. A caller may pass a run returned by Close. A
// volatile actor calls Open directly, without a record.
func (j *Journal) Open(run *Run, call *actor.Call, at actor.Time, definition actor.Hash) {
	*run = Run{Call: *call, At: at, Definition: definition, Clock: actor.NewClock(at, call.Left), Budget: call.Budget, Purse: call.Purse, Steps: run.Steps[:0]}
	j.Runs = append(j.Runs, run)
}

// AddStep adds the run's next step. The run takes ownership of the slice asks.
func (r *Run) AddStep(at actor.Time, asks []Asked) {
	for i := range asks {
		asks[i].Ask.Work = nil // not part of the state
		if asks[i].Sent != nil && asks[i].Sent.Work != nil {
			sent := *asks[i].Sent
			sent.Work = nil
			asks[i].Sent = &sent
		}
		r.take(&asks[i])
	}
	if len(r.Steps) == 0 {
		r.StartedAt = at
	}
	r.Steps = append(r.Steps, Step{Asks: asks})
	r.updateClock(at)
}

// take takes what an ask is given from the budget and the purse of the run. One that waits for a decision is
// given nothing yet.
func (r *Run) take(a *Asked) {
	if a.IsCall() {
		r.Budget -= min(r.Budget, 1+a.Budget)
	}
	if !a.Waits() {
		r.Purse = r.Purse.Less(a.Purse)
	}
}

// SetAnswer answers an ask of the last step. It adds the arguments budget and purse, the unused
// parts of what the ask was given, to those of the run. The run takes ownership of *answer.
func (r *Run) SetAnswer(at actor.Time, a *Asked, answer *actor.Answer, budget uint32, purse *actor.Purse) {
	a.Answer = answer
	r.addUsage(a)
	r.Budget += min(budget, a.Budget)
	r.Purse = r.Purse.Plus(purse)
	r.updateClock(at)
}

// addUsage adds the usage of an answered ask.
func (r *Run) addUsage(a *Asked) {
	if a.Open() {
		return
	}
	if !a.IsCall() {
		r.Usage = r.Usage.Add(a.Answer.Usage)
		switch kind := a.Out().Kind; {
		case kind == actor.AskModel && a.Answer.Refusal == nil:
			r.Spent = r.Spent.Add(a.AnsweredBy(a.Answer), a.Answer.Usage)
		case kind == actor.AskInvoke && a.Answer.Usage != actor.Usage{}:
			r.Spent = r.Spent.Add("", a.Answer.Usage)
		}
	}
	r.Tree = r.Tree.Add(a.Answer.Usage)
}

// Close removes the run of a call and returns that run, or nil if the call has no open
// run. It retains no outcome. Only volatile actors use it.
func (j *Journal) Close(id actor.CallID) *Run {
	for i, run := range j.Runs {
		if run.Call.ID == id {
			j.Runs = slices.Delete(j.Runs, i, i+1)
			return run
		}
	}
	return nil
}

// updateState applies items to ActorState in order. An empty value deletes the item.
func (j *Journal) updateState(items []actor.StateItem) {
	if j.folds {
		j.updates = append(j.updates, items...)
		return
	}
	j.mergeState(items)
}

// mergeState is updateState in one pass over the state, however many items there are. The previous slice stays as it is, because a
// turn may still read it.
func (j *Journal) mergeState(items []actor.StateItem) {
	if len(items) == 0 {
		return
	}
	byName := func(a, b actor.StateItem) int { return strings.Compare(a.Name, b.Name) }
	sorted := slices.Clone(items)
	slices.SortStableFunc(sorted, byName)
	next, rest := make([]actor.StateItem, 0, len(j.ActorState)+len(sorted)), j.ActorState
	for i := range sorted {
		item := sorted[i : i+1 : i+1]
		if i+1 < len(sorted) && sorted[i+1].Name == item[0].Name { // a later one follows
			continue
		}
		at, there := slices.BinarySearchFunc(rest, item[0], byName)
		next, rest = append(next, rest[:at]...), rest[at:]
		if there {
			j.stateBytes -= itemsSize(rest[:1])
			rest = rest[1:]
		}
		if len(item[0].Value) > 0 {
			j.stateBytes += itemsSize(item)
			next = append(next, item...)
		}
	}
	j.ActorState = append(next, rest...)
}

// EffectiveState returns the actor state after applying the updates of open runs.
func (j *Journal) EffectiveState() []actor.StateItem {
	now := Journal{ActorState: j.ActorState}
	for _, run := range j.Runs {
		now.updateState(run.StateUpdates)
	}
	return now.ActorState
}

// StateSize is the number of items of an actor state, and the length of their names and values in bytes.
type StateSize struct{ Items, Bytes int }

// StateSizes returns the size of the actor state with the updates of open runs, and with further ones as well. It
// depends on the number of updates only: a state may have many items.
func (j *Journal) StateSizes(updates []actor.StateItem) (before, after StateSize) {
	size := StateSize{len(j.ActorState), j.stateBytes - itemOverhead*len(j.ActorState)}
	known := map[string]int{} // length of the value of an item that was updated; 0: deleted
	count := func(name string, length, sign int) {
		if length > 0 {
			size.Items, size.Bytes = size.Items+sign, size.Bytes+sign*(len(name)+length)
		}
	}
	update := func(items []actor.StateItem) {
		for i := range items {
			name := items[i].Name
			length, updated := known[name]
			if at, there := slices.BinarySearchFunc(j.ActorState, name, func(s actor.StateItem, name string) int { return strings.Compare(s.Name, name) }); !updated && there {
				length = len(j.ActorState[at].Value)
			}
			count(name, length, -1)
			known[name] = len(items[i].Value)
			count(name, known[name], 1)
		}
	}
	for _, run := range j.Runs {
		update(run.StateUpdates)
	}
	before = size
	update(updates)
	return before, size
}

// openAsk returns an open ask and its run.
func (j *Journal) openAsk(id actor.CallID, step uint32, index uint16) (*Run, *Asked, error) {
	if run := j.Run(id); run != nil && int(step) == len(run.Steps) {
		if asks := run.Last(); int(index) < len(asks) && asks[index].Open() {
			return run, &asks[index], nil
		}
	}
	return nil, nil, fmt.Errorf("run %s has no open ask %d.%d", id, step, index)
}

// updateClock stops or restarts the run's clock. The clock is stopped until the hold
// that ends last among the open asks has ended, or while the run is parked. An AskWait is held from its start
// until its deadline, and an ask that waits for a decision until that expires. The clock of an external agent follows the calls that it added.
func (r *Run) updateClock(at actor.Time) {
	var parkedUntil actor.Time
	if r.Parked != "" {
		parkedUntil = r.Clock.HeldUntil
	}
	until, addedUntil := parkedUntil, parkedUntil
	asks := r.Last()
	for i := range asks {
		switch a := &asks[i]; {
		case !a.Open():
		case a.Waits():
			until = max(until, a.Clock.Due())
			if a.Added {
				addedUntil = max(addedUntil, a.Clock.Due())
			}
		case a.Ask.Kind == actor.AskWait:
			until = max(until, a.Clock.Due())
		case a.IsCall() && a.Clock.Held(at):
			until = max(until, a.Clock.HeldUntil)
			if a.Added {
				addedUntil = max(addedUntil, a.Clock.HeldUntil)
			}
		}
	}
	r.hold(at, until)
	for i := range asks {
		a := &asks[i]
		if !a.Open() || a.Added {
			continue
		}
		switch a.Out().Kind {
		case actor.AskInvoke:
			holdClock(&a.Clock, at, addedUntil)
		case actor.AskModel: // repeated once the run continues
			holdClock(&a.Clock, at, parkedUntil)
		}
	}
}

// hold stops the run's clock until the given time, or restarts it if that time has passed.
func (r *Run) hold(at, until actor.Time) {
	if holdClock(&r.Clock, at, until) {
		r.Holds++
		r.HeldTo = max(r.HeldTo, r.Clock.HeldUntil)
	}
}

// HeldFor returns the reason of the hold that ends last among the open asks. It is zero
// if there is none.
func (r *Run) HeldFor(now actor.Time) actor.Hold {
	var last actor.Hold
	var until actor.Time
	asks := r.Last()
	for i := range asks {
		switch a := &asks[i]; {
		case !a.Open():
		case a.Waits() && a.Clock.Due() > until:
			id := runs.ToolCallID{Run: r.Call.ID, Step: uint32(len(r.Steps)), Index: uint16(i)}
			reason := actor.HoldApproval
			if a.AwaitsBudget() {
				reason = actor.HoldBudget
			}
			last, until = actor.Hold{Reason: reason, Subject: id.Approval(), Name: a.Out().Name, Text: a.Await.Summary}, a.Clock.Due()
		case a.Ask.Kind == actor.AskWait && a.Clock.Due() > until:
			last, until = actor.Hold{Reason: actor.HoldSignal, Subject: a.Ask.Name}, a.Clock.Due()
		case a.IsCall() && a.Clock.Held(now) && a.Clock.HeldUntil > until:
			last, until = a.HeldFor, a.Clock.HeldUntil
		}
	}
	return last
}

// holdClock stops the clock until the given time, or restarts it if that time has
// passed. It reports whether the clock changed.
func holdClock(clock *actor.Clock, at, until actor.Time) bool {
	switch {
	case until > at && until != clock.HeldUntil:
		clock.Hold(at, until)
	case until <= at && clock.HeldUntil != 0:
		clock.Resume(at)
	default:
		return false
	}
	return true
}

// ApplyEntry folds the next entry.
func (j *Journal) ApplyEntry(e Entry) error {
	if e.N != j.N+1 {
		return fmt.Errorf("entry %d does not follow entry %d", e.N, j.N)
	}
	if err := j.Apply(e.Record); err != nil {
		return fmt.Errorf("entry %d: %w", e.N, err)
	}
	j.countEvents(&e)
	return nil
}

// Saved is the stored data of an actor: its last snapshot, if any, and the entries
// after that snapshot, in order.
type Saved struct {
	Snapshot []byte
	Entries  []Entry
}
