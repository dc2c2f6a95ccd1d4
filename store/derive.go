// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/upstream"
)

// The events of a run are derived from its entries when they are read. An entry holds the
// part of its events that its record lacks, so derivation can begin at any entry. The
// rules of derivation are part of CodecVersion: the events of an entry never change.

// Shown is the part of the run events of an entry that its record lacks. All events of an
// entry are of the run that its record changes.
type Shown struct {
	Seq     uint64         // number of the first event; 0 if there is none
	N       uint32         // number of events
	Began   bool           // the turn began in this step
	Left    actor.Duration // time left of the run when its turn began
	Call    *actor.Call    // of the run, without its content: callHeader if Began, else its chain; may be nil
	Step    uint32         // step of the record's asks
	Index   uint16         // index of an added ask
	Refused []Asked        // asks that the agent's own rules refused; they precede the other events of the step
	Clamped []uint16       // indexes of calls and waits whose timeout exceeded the limit
	Ask     *ShownAsk      // ask that the record changes; nil if the change has no event
}

// ShownAsk is the part of an ask that the event of its change shows.
type ShownAsk struct {
	Kind      actor.AskKind
	Name      string
	Child     actor.CallID   // run of a call
	To        actor.ID       // callee of a call
	Status    actor.Status   // of the reply to a call
	Took      actor.Duration // in whole milliseconds
	Held      bool           // the call was held until its answer
	Principal string         // sender of a signal
	Origin    actor.Origin   // of a signal
	Attempt   uint32         // number of the attempt that begins
	Discards  uint64         // see runs.Event
	Piece     actor.Piece    // of a streamed answer
}

// RunEvents returns the derived events of an entry. The entry MUST hold its content, not
// references to blobs of this package.
func (e *Entry) RunEvents() []runs.Event { return e.AppendRunEvents(nil) }

// AppendRunEvents appends the derived events of an entry to all.
func (e *Entry) AppendRunEvents(all []runs.Event) []runs.Event {
	if e.Shown.N == 0 {
		return all
	}
	d := derivation{entry: e, events: slices.Grow(all, int(min(e.Shown.N, derivedAtOnce)))}
	d.derive()
	return d.events
}

// derivedAtOnce bounds the memory that the number in an entry, which may be damaged,
// requests.
const derivedAtOnce = 64

// AllEvents returns the events of an entry as clients read them: those that have a body, and
// those that are derived. It returns an error if the entry is damaged.
func (e *Entry) AllEvents() ([]RunEvent, error) {
	derived := e.RunEvents()
	if len(derived) != int(e.Shown.N) {
		return nil, fmt.Errorf("entry %d has %d run events, want %d", e.N, len(derived), e.Shown.N)
	}
	all := slices.Clip(e.Events)
	for _, v := range derived {
		body, err := runs.EncodeChecked(v)
		if err != nil {
			return nil, fmt.Errorf("entry %d: %w", e.N, err)
		}
		all = append(all, RunEvent{v.Run, v.Seq, body})
	}
	return all, nil
}

// AskedParts returns the content of an ask that an entry makes, or nil.
func AskedParts(e *Entry, step uint32, index uint16) []actor.Part {
	switch r := e.Record.(type) {
	case Asking:
		if step == e.Shown.Step && int(index) < len(r.Asks) {
			return r.Asks[index].Ask.Parts
		}
	case Added:
		return r.Ask.Ask.Parts
	}
	return nil
}

// AnsweredParts returns the content of an answer that an entry records, or nil.
func AnsweredParts(e *Entry, step uint32, index uint16) []actor.Part {
	if r, ok := e.Record.(Answered); ok && r.Step == step && r.Index == index {
		return r.Answer.Parts
	}
	return nil
}

// StateUpdatesOf returns the changes of an actor's state that a record makes, or makes at the end of
// its run.
func StateUpdatesOf(r Record) []actor.StateItem {
	switch r := r.(type) {
	case Asking:
		return r.StateUpdates
	case Ended:
		return r.StateUpdates
	}
	return nil
}

// TimeOf returns the time of a record.
func TimeOf(r Record) actor.Time { return r.at() }

// WithoutBodies returns the entry with the numbers of its events only.
func (e Entry) WithoutBodies() Entry {
	var all []RunEvent
	for i := range e.Events {
		all = append(all, RunEvent{Run: e.Events[i].Run, Seq: e.Events[i].Seq})
	}
	for i := range uint64(e.Shown.N) {
		all = append(all, RunEvent{Run: eventsOf(e.Record), Seq: e.Shown.Seq + i})
	}
	e.Events, e.Shown = all, Shown{}
	return e
}

// RefusedAsk returns an ask for Shown.Refused, with the content that its events show.
func RefusedAsk(ask *actor.Ask, refusal *actor.Refusal, at actor.Time) Asked {
	shown := actor.Ask{Kind: ask.Kind, Name: actor.FitText(ask.Name, actor.TextBytesMax)}
	text, truncated := runs.ShownText(ask.Parts)
	if text != "" {
		shown.Parts = actor.Text(text)
	}
	if truncated {
		shown.Parts = append(shown.Parts, actor.Part{Media: "application/octet-stream"})
	}
	return Asked{Ask: shown, Stamp: at, Answer: &actor.Answer{Refusal: refusal}}
}

// EventRun returns the run whose events the entry has.
func (e *Entry) EventRun() actor.CallID { return eventsOf(e.Record) }

// eventsOf returns the run whose events an entry with the record has.
func eventsOf(r Record) actor.CallID {
	switch r := r.(type) {
	case Streamed:
		return r.Run
	case Retried:
		return r.Run
	}
	return runOf(r)
}

// EventCount returns the number of events of an entry.
func (e *Entry) EventCount() int { return len(e.Events) + int(e.Shown.N) }

// NumberEvents sets the numbers of the events of an entry, which follow the event with the
// number after. It returns the number of the last one.
func (e *Entry) NumberEvents(after uint64) uint64 {
	d := derivation{entry: e, counting: true}
	d.derive()
	if d.n == 0 {
		e.Shown = Shown{}
		return after
	}
	e.Shown.Seq, e.Shown.N = after+1, d.n
	return after + uint64(d.n)
}

// RefusedEvents returns the number of events of an ask in Shown.Refused.
func RefusedEvents(a *Asked) int {
	d := derivation{entry: &Entry{}, counting: true}
	d.asked(a, 0)
	return int(d.n)
}

// derivation derives or counts the events of one entry.
type derivation struct {
	entry    *Entry
	counting bool
	n        uint32
	events   []runs.Event
}

func (d *derivation) derive() {
	e, s := d.entry, &d.entry.Shown
	switch r := e.Record.(type) {
	case Accepted:
		d.accepted(&r)
	case Asking:
		d.begun()
		d.refused(len(r.Asks))
		for i := range r.Asks {
			d.asked(&r.Asks[i], uint16(i))
		}
	case Added:
		d.asked(&r.Ask, s.Index)
	case Streamed:
		d.streamed(&r)
	case Answered:
		d.answered(&r)
	case Retried:
		if s.Ask != nil {
			d.add(runs.Attempt, func(v *runs.Event) {
				v.Attempt, v.Step, v.Index, v.Discards = s.Ask.Attempt, r.Step, r.Index, s.Ask.Discards
			})
		}
	case Resolved:
		d.resolved(&r)
	case Held:
		if s.Ask != nil && s.Call != nil {
			d.add(runs.ApprovalRequired, func(v *runs.Event) {
				v.Kind = runs.ApprovalKind(r.For.Reason == actor.HoldBudget)
				v.Child, v.Until, v.Approval, v.Name, v.Text = s.Ask.Child, r.Until, r.For.Subject, r.For.Name, r.For.Text
			})
		}
		if s.Ask != nil && !s.Ask.Held {
			d.add(runs.RunPaused, func(v *runs.Event) { v.Name, v.Child, v.Until = heldName, s.Ask.Child, r.Until })
		}
	case Resumed:
		if s.Ask != nil {
			d.add(runs.RunResumed, func(v *runs.Event) { v.Name, v.Child = heldName, s.Ask.Child })
		}
	case Parked:
		if r.Detail == "" {
			d.add(runs.RunResumed, func(v *runs.Event) { v.Name = parkedName })
			break
		}
		d.add(runs.RunPaused, func(v *runs.Event) { v.Name, v.Refusal = parkedName, parkedRefusal(r.Detail) })
	case Ended:
		if s.Call != nil { // it ends a run
			d.begun()
			d.refused(0)
			if r.Reply.Extensions.LeftOut() {
				d.add(runs.MessageLeftOut, func(v *runs.Event) { v.Name = actor.MessageID{Call: r.Call}.String() })
			}
			d.ended(&r.Reply)
		}
	}
}

// parkedRefusal returns the reason of a parked run as its events show it.
func parkedRefusal(detail string) *actor.Refusal {
	if rest, ok := strings.CutPrefix(detail, UnmatchedText); ok {
		return &actor.Refusal{Reason: actor.Unknown, Detail: rest}
	}
	return &actor.Refusal{Reason: actor.Unavailable, Detail: detail}
}

// UnmatchedText begins the reason of a run whose external agent was invoked again and made
// another request than before. Whether the former one had an effect is for a person to find out.
const UnmatchedText = "outcome unknown: "

// Names of pauses.
const (
	heldName     = "held"
	parkedName   = "parked"
	approvalName = "approval"
)

// add adds the next event, unless the events are only counted.
func (d *derivation) add(t runs.Type, fill func(*runs.Event)) {
	if d.n++; d.counting {
		return
	}
	d.events = append(d.events, runs.Event{Run: eventsOf(d.entry.Record), Seq: d.entry.Shown.Seq + uint64(d.n) - 1, At: d.entry.Record.at(), Type: t})
	fill(&d.events[len(d.events)-1])
}

func (d *derivation) accepted(r *Accepted) {
	call := &r.Call
	if !call.IsRoot() {
		return
	}
	d.add(runs.UserInput, func(v *runs.Event) {
		v.Actor, v.Principal, v.Origin, v.Project = call.To, call.Principal, call.Origin.String(), call.Project
		v.Priority, v.Trace, v.Claimed, v.Request = shownPriority(call), call.TraceID(), call.Claimed, call.Idempotency.Key
		v.Key, _ = call.Authority()
		v.SetText(call.Parts)
	})
}

// shownPriority returns the priority in the events of a run; "" means normal.
func shownPriority(call *actor.Call) string {
	if call.Lane == actor.Normal || call.Lane == 0 {
		return ""
	}
	return call.Lane.Priority()
}

// begun adds the start of the turn.
func (d *derivation) begun() {
	s := &d.entry.Shown
	if !s.Began {
		return
	}
	d.add(runs.RunStarted, func(v *runs.Event) {
		call := s.Call
		v.Actor, v.Kind, v.Operation, v.Origin = d.entry.Actor, call.Kind.String(), call.Operation, call.Origin.String()
		v.Root, v.Depth, v.Chain, v.Left = call.Root, call.Depth(), call.Chain, s.Left
		v.Principal, v.Project, v.Attempt, v.Priority = call.Principal, call.Project, call.Attempt, shownPriority(call)
		if !call.IsRoot() {
			v.Parent = call.Parent
		}
		if call.Kind == actor.Detached {
			v.Channel = [...]string{"", actor.On: runs.ChannelOn, actor.Off: runs.ChannelOff}[call.Extensions.OnChannel()]
		}
	})
}

// refused adds the asks that the agent's own rules refused. Their indexes follow those of
// the issued asks.
func (d *derivation) refused(issued int) {
	for i := range d.entry.Shown.Refused {
		d.asked(&d.entry.Shown.Refused[i], uint16(issued+i))
	}
}

// asked adds an ask, or its refusal.
func (d *derivation) asked(a *Asked, index uint16) {
	s, out := &d.entry.Shown, a.Out()
	var chain []actor.ID
	if s.Call != nil {
		chain = s.Call.Chain
	}
	add := func(t runs.Type, fill func(*runs.Event)) {
		d.add(t, func(v *runs.Event) {
			v.Step, v.Index = s.Step, index
			fill(v)
		})
	}
	clamped := func(name func() string) {
		if slices.Contains(s.Clamped, index) {
			add(runs.TimeoutClamped, func(v *runs.Event) { v.Asked, v.Left, v.Name = out.Timeout, a.Clock.Left, name() })
		}
	}
	waits := func() {
		id := runs.ToolCallID{Run: d.entry.EventRun(), Step: s.Step, Index: index}.Approval()
		add(runs.ApprovalCreated, func(v *runs.Event) {
			v.Kind, v.Name, v.Until, v.Text, v.Approval = runs.ApprovalKind(a.AwaitsBudget()), shownName(out), a.Clock.Due(), a.Await.Summary, id
		})
		if s.Call != nil && len(chain) == 0 {
			d.add(runs.ApprovalRequired, func(v *runs.Event) {
				v.Kind, v.Name, v.Until, v.Text, v.Approval = runs.ApprovalKind(a.AwaitsBudget()), shownName(out), a.Clock.Due(), a.Await.Summary, id
			})
		}
		d.add(runs.RunPaused, func(v *runs.Event) { v.Name, v.Until, v.Approval = approvalName, a.Clock.Due(), id })
	}
	path := func() []actor.ID { return append(slices.Clip(chain), d.entry.Actor) }
	switch {
	case a.IsCall():
		clamped(a.To.String)
		add(runs.AgentCalledChild, func(v *runs.Event) {
			v.Actor, v.Child, v.Left, v.Chain = a.To, a.Call, a.Clock.Left, path()
			v.Depth = len(v.Chain)
			v.SetText(out.Parts)
		})
	case out.Kind == actor.AskCall && !a.Open():
		add(runs.AgentCallRefused, func(v *runs.Event) {
			v.Name, v.Refusal, v.Chain = shownName(out), a.Answer.Refusal, path()
			v.Depth = len(v.Chain)
		})
	case out.Kind == actor.AskTool, out.Kind == actor.AskWork:
		add(runs.ToolCallCreated, func(v *runs.Event) {
			v.Name, v.Kind, v.Chain, v.Depth = shownName(out), runs.KindTool, chain, len(chain)
			switch {
			case out.Kind == actor.AskWork:
				v.Kind = runs.KindWork
			case a.OnDevice:
				v.Kind = runs.KindClient
			}
			v.SetText(out.Parts)
		})
		if a.Verdict.Decision != 0 {
			add(runs.PolicyDecision, func(v *runs.Event) {
				v.Name, v.Kind, v.Text = shownName(out), a.Verdict.Decision.String(), a.Verdict.Rule
			})
		}
		switch {
		case a.Waits():
			waits()
		case !a.Open():
			add(runs.ToolResult, func(v *runs.Event) { setResult(v, out.Kind, shownName(out), d.elapsed(a), a.Answer) })
		default:
			add(runs.ToolDispatched, func(v *runs.Event) { v.Name, v.Attempt, v.Left = out.Name, 1, a.Clock.Left })
		}
	case out.Streams() && a.Waits():
		add(runs.ToolCallCreated, func(v *runs.Event) {
			v.Name, v.Kind, v.Chain, v.Depth = shownName(out), runs.KindBudget, chain, len(chain)
		})
		waits()
	case out.Streams():
		started, done := streamTypes(out.Kind)
		add(started, func(v *runs.Event) {
			v.Name, v.Left = shownName(out), a.Clock.Left
			v.Request = modelRequestID(a)
			if out.Kind == actor.AskModel && v.Request == "" { // the request to an external agent is the run's own message
				v.SetText(out.Parts)
			} else {
				v.SetText(nil)
			}
		})
		if !a.Open() {
			add(done, func(v *runs.Event) { setResult(v, out.Kind, shownName(out), d.elapsed(a), a.Answer) })
		}
	case out.Kind == actor.AskWait && a.Open():
		clamped(func() string { return shownName(out) })
		add(runs.WaitOpened, func(v *runs.Event) { v.Name, v.Until = out.Name, a.Clock.Due() })
	}
}

// elapsed returns the time from an ask to the entry.
func (d *derivation) elapsed(a *Asked) actor.Duration { return Elapsed(a, d.entry.Record.at()) }

// Elapsed returns the time since an ask was made, or since it was approved, in whole
// milliseconds. The stamp of the ask may be slightly later than the instant of the ask, but
// never earlier.
func Elapsed(a *Asked, now actor.Time) actor.Duration {
	if a.Await != nil && a.Await.Status == runs.ApprovalStatusApproved {
		return max(now.Sub(a.Clock.Since), 0).Round(millisecond)
	}
	return max(now.Sub(a.Stamp), 0).Round(millisecond)
}

const millisecond = actor.Duration(1_000_000)

// shownName returns the name of an ask, which MUST NOT be empty in an event.
func shownName(out *actor.Ask) string { return cmp.Or(out.Name, "(unnamed)") }

// ShownName returns the name of an ask in the events of its run.
func (a *Asked) ShownName() string { return shownName(a.Out()) }

// AnsweredBy returns the name under which an answer to the ask is shown and counted: for a model, that of the
// one that answered.
func (a *Asked) AnsweredBy(answer *actor.Answer) string {
	if a.Out().Kind == actor.AskModel && len(answer.Parts) == 1 {
		return cmp.Or(upstream.FallbackOf(answer.Parts[0].Bytes), a.ShownName())
	}
	return a.ShownName()
}

func streamTypes(kind actor.AskKind) (started, done runs.Type) {
	if kind == actor.AskModel {
		return runs.LLMCallStarted, runs.LLMCallDone
	}
	return runs.AgentInvokeStarted, runs.AgentInvokeDone
}

// setResult sets the fields of the result of a tool, work, a model or an external agent.
func setResult(v *runs.Event, kind actor.AskKind, name string, took actor.Duration, answer *actor.Answer) {
	v.Name, v.Status, v.Warnings, v.Took = name, actor.Succeeded, answer.Warnings, took
	if answer.Refusal != nil {
		v.Status, v.Refusal = actor.Failed, answer.Refusal
	}
	if kind == actor.AskModel || kind == actor.AskInvoke {
		v.Text, v.Usage = completionText(answer.Parts), answer.Usage
		return
	}
	v.SetText(answer.Parts)
}

// completionText returns the text in the answer of a model or external agent, or "" if the
// answer holds no completion.
func completionText(parts []actor.Part) string {
	if len(parts) != 1 {
		return ""
	}
	completion, err := upstream.DecodeCompletion(parts[0].Bytes)
	if err != nil {
		return ""
	}
	return completion.Text
}

func (d *derivation) answered(r *Answered) {
	a := d.entry.Shown.Ask
	if a == nil {
		return
	}
	add := func(t runs.Type, fill func(*runs.Event)) {
		d.add(t, func(v *runs.Event) {
			v.Step, v.Index = r.Step, r.Index
			fill(v)
		})
	}
	switch a.Kind {
	case actor.AskCall:
		add(runs.AgentChildDone, func(v *runs.Event) {
			v.Actor, v.Child, v.Status, v.Refusal, v.Warnings = a.To, a.Child, a.Status, r.Answer.Refusal, r.Answer.Warnings
			v.Took, v.Usage = a.Took, r.Answer.Usage
			v.SetText(r.Answer.Parts)
		})
		if a.Held {
			d.add(runs.RunResumed, func(v *runs.Event) { v.Name, v.Child = heldName, a.Child })
		}
	case actor.AskWait:
		if r.Answer.Refusal != nil {
			add(runs.WaitExpired, func(v *runs.Event) { v.Name, v.Refusal = a.Name, r.Answer.Refusal })
			return
		}
		add(runs.SignalReceived, func(v *runs.Event) {
			v.Name, v.Principal, v.Origin = a.Name, a.Principal, a.Origin.String()
			v.SetText(r.Answer.Parts)
		})
	default:
		t := runs.ToolResult
		if a.Kind == actor.AskModel || a.Kind == actor.AskInvoke {
			_, t = streamTypes(a.Kind)
		}
		add(t, func(v *runs.Event) { setResult(v, a.Kind, a.Name, a.Took, &r.Answer) })
	}
}

// resolved adds the decision about a tool call, or its expiry.
func (d *derivation) resolved(r *Resolved) {
	a := d.entry.Shown.Ask
	if a == nil {
		return
	}
	add := func(t runs.Type, fill func(*runs.Event)) {
		d.add(t, func(v *runs.Event) {
			v.Name, v.Step, v.Index = a.Name, r.Step, r.Index
			fill(v)
		})
	}
	id := runs.ToolCallID{Run: r.Run, Step: r.Step, Index: r.Index}.Approval()
	resumed := func() {
		d.add(runs.RunResumed, func(v *runs.Event) { v.Name, v.Approval = approvalName, id })
	}
	// The decision about a budget ends what a person was asked, and the request is sent or refused.
	budget := func() {
		if a.Kind != actor.AskModel {
			return
		}
		add(runs.ToolResult, func(v *runs.Event) {
			if v.Status = actor.Succeeded; r.Status != runs.ApprovalStatusApproved {
				v.Status, v.Refusal = actor.Failed, actor.Refuse(actor.Budget, "the budget was not raised")
				return
			}
			v.SetText(actor.Text(raised(r.Raise)))
		})
		add(runs.LLMCallStarted, func(v *runs.Event) { v.Left = r.Left })
	}
	if r.Status == runs.ApprovalStatusExpired {
		add(runs.ApprovalExpired, func(v *runs.Event) {
			v.Kind, v.Text, v.Approval = runs.ApprovalKind(a.Kind == actor.AskModel), r.Detail, id
		})
		resumed()
		budget()
		return
	}
	add(runs.ApprovalDecision, func(v *runs.Event) {
		v.Kind, v.Text, v.Approval, v.Principal, v.Origin = r.Status.String(), r.Detail, id, a.Principal, a.Origin.String()
	})
	resumed()
	if r.Status == runs.ApprovalStatusApproved {
		add(runs.ToolDispatched, func(v *runs.Event) { v.Attempt, v.Left = 1, r.Left })
	}
	budget()
}

// raised returns what was added to a budget as JSON.
func raised(p *actor.Purse) string {
	if p == nil {
		return "{}"
	}
	b := []byte{'{'}
	if p.Tokens != 0 {
		b = fmt.Appendf(b, `"tokens":%d`, p.Tokens)
	}
	if p.Micros != 0 {
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, `"money":%s`, actor.ShowMoney(p.Micros))
	}
	return string(append(b, '}'))
}

// streamed adds a piece of an answer.
func (d *derivation) streamed(r *Streamed) {
	a := d.entry.Shown.Ask
	if a == nil {
		return
	}
	t := runs.AgentStreamDelta
	switch {
	case a.Piece.Retry != nil:
		t = runs.Attempt
	case a.Piece.State != "":
		t = runs.AgentStateChanged
	}
	d.add(t, func(v *runs.Event) {
		v.Step, v.Index = r.Step, r.Index
		switch t {
		case runs.Attempt:
			v.Attempt, v.Discards, v.Refusal = a.Attempt, a.Discards, a.Piece.Retry
		case runs.AgentStateChanged:
			v.Name, v.Text = a.Piece.State, a.Piece.Detail
		default:
			v.Text = a.Piece.Text
		}
	})
}

func (d *derivation) ended(reply *actor.Reply) {
	switch refusal := reply.Refusal; {
	case refusal == nil:
		d.add(runs.RunDone, func(v *runs.Event) {
			v.Status, v.Warnings, v.Usage = reply.Status, reply.Warnings, reply.Usage
			v.SetText(reply.Parts)
		})
	case refusal.Reason == actor.Stopped:
		d.add(runs.RunCancelled, func(v *runs.Event) { v.Refusal = refusal })
	default:
		d.add(runs.RunFailed, func(v *runs.Event) { v.Refusal = refusal })
	}
}
