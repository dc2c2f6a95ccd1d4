// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/troupe-run/troupe/actor"
)

// Record is the state of a run, derived from its events so far.
type Record struct {
	Run      actor.CallID
	Root     actor.CallID // zero until the run has started
	Parent   actor.CallID // zero for the root of the tree
	Actor    actor.ID     // zero until UserInput or RunStarted; only a run requested by a client has UserInput
	Chain    []actor.ID
	Left     actor.Duration // time left when the run started
	Attempt  uint32         // highest attempt of the run or of any operation it repeated
	User     string         // principal that the run acts for
	Key      string         // ID of the API key that changes the registry
	Project  string         // project_id; may be empty
	Priority string         // actor.Lane as text; "" means normal
	Trace    string         // W3C trace ID sent by the client; may be empty
	Claimed  actor.CallID   // run that the client names as its cause, without proof; zero if none
	Status   Status
	Seq      uint64     // number of the last event
	Created  actor.Time // time of the first event
	Started  actor.Time // 0 while queued
	Ended    actor.Time // 0 until the end

	Waits    []Wait  // open waits for signals
	Pauses   []Pause // other reasons why the run is paused
	Children []Child // the calls it made, in order
	Clamped  []Clamp // the first clampedMax calls and waits with less time than requested

	Outcome   actor.Status // set with Ended
	Text      string       // the answer
	Truncated bool
	Warnings  []string
	Refusal   *actor.Refusal // reason of a failure; of an open run, why it is parked
	Usage     Usage          // of the run, by the answers of its models and external agents so far
	Tree      Usage          // of the run and of the calls that it has answers to, with all below them
	Spent     Spent

	openTools []ToolCall // in progress
}

// Wait is a signal that a run waits for.
type Wait struct {
	Name     string
	Until    actor.Time
	position position
}

// Clamp is a call or a wait that was given less time than it requested.
type Clamp struct {
	Name        string // the callee or the signal; may be empty
	Asked, Left actor.Duration
}

// clampedMax is the maximum number of clamps in a record.
const clampedMax = 16

// Pause is a reason why a run is paused: it is held by a call below it, or parked.
type Pause struct {
	Name  string
	Child actor.CallID // the call that holds the run, or zero
	Until actor.Time   // 0 means no time limit
}

// Child is a call made by a run, and its outcome.
type Child struct {
	Run      actor.CallID // zero if the call was refused before it was sent
	Actor    actor.ID     // zero if the call was refused before it was sent
	Target   string       // the actor as text; the name given by the agent if the call was not sent
	Left     actor.Duration
	At       actor.Time
	Ended    actor.Time   // 0 while in progress
	Status   actor.Status // 0 while in progress
	Refusal  *actor.Refusal
	position position
}

// position is a step and an index, and thus identifies an ask within a turn.
type position struct {
	step  uint32
	index uint16
}

// Depth returns the number of calls above the run.
func (r *Record) Depth() int { return len(r.Chain) }

// CallState returns the state of the call that the run answers.
func (r *Record) CallState() string { return CallState(r.Status, r.Refusal) }

// AgentState returns the state of the agent that serves the run.
func (r *Record) AgentState() string { return AgentState(r.Status, r.Started, r.Refusal) }

// Fold derives the record of a run from all its events, starting with the first.
func Fold(events []Event) (Record, error) {
	var r Record
	for i := range events {
		if err := r.apply(&events[i]); err != nil {
			return Record{}, applyError(&events[i], err)
		}
	}
	return r, nil
}

// Apply adds one event. On error the record is unchanged.
func (r *Record) Apply(e *Event) error {
	next := *r
	next.Waits, next.Pauses = slices.Clone(r.Waits), slices.Clone(r.Pauses)
	next.Clamped = slices.Clone(r.Clamped)
	next.Children, next.openTools = slices.Clone(r.Children), slices.Clone(r.openTools)
	if err := next.apply(e); err != nil {
		return applyError(e, err)
	}
	*r = next
	return nil
}

func applyError(e *Event, why error) error {
	return fmt.Errorf("event %d of run %s: %w", e.Seq, e.Run, why)
}

func (r *Record) apply(e *Event) error {
	if err := e.Check(); err != nil {
		return err
	}
	switch {
	case r.Seq == 0:
		r.Run, r.Created, r.Attempt, r.Status = e.Run, e.At, 1, Running
	case e.Run != r.Run:
		return fmt.Errorf("does not belong to run %s", r.Run)
	}
	if e.Seq != r.Seq+1 {
		return fmt.Errorf("does not follow event %d", r.Seq)
	}
	if r.Status.Ended() {
		return fmt.Errorf("%s, but the run is %s", e.Type, r.Status)
	}
	if r.Started == 0 && e.Type != UserInput && e.Type != RunStarted && e.Type != RunFailed && e.Type != RunCancelled {
		return fmt.Errorf("%s, but the run has not started", e.Type)
	}
	r.Seq = e.Seq
	r.addUsage(e)
	if err := r.update(e); err != nil {
		return err
	}
	status := r.derive(e.Type)
	if status == r.Status {
		return nil
	}
	if err := Transition(r.Status, status); err != nil {
		return err
	}
	r.Status = status
	return nil
}

// update applies the content of the event.
func (r *Record) update(e *Event) error {
	at := position{e.Step, e.Index}
	switch e.Type {
	case UserInput:
		if r.Seq != 1 {
			return fmt.Errorf("user_input after the first event")
		}
		r.Actor, r.User, r.Key, r.Project, r.Priority, r.Trace, r.Claimed = e.Actor, e.Principal, e.Key, e.Project, e.Priority, e.Trace, e.Claimed
	case RunStarted:
		if r.Started != 0 {
			return fmt.Errorf("started twice")
		}
		r.Started, r.Actor, r.Root, r.Parent, r.Chain, r.Left = e.At, e.Actor, e.Root, e.Parent, e.Chain, e.Left
		r.Attempt, r.User, r.Project, r.Priority = max(r.Attempt, e.Attempt), e.Principal, e.Project, e.Priority
	case RunPaused:
		if e.Approval != "" { // the state of its tool call shows it
			break
		}
		r.resume(e.Child)
		r.Pauses = append(r.Pauses, Pause{e.Name, e.Child, e.Until})
		if e.Refusal != nil {
			r.Refusal = e.Refusal
		}
	case RunResumed:
		if e.Approval != "" {
			break
		}
		r.resume(e.Child)
		if e.Child.IsZero() {
			r.Refusal = nil
		}
	case RunDone:
		r.end(e, e.Status)
	case RunFailed, RunCancelled:
		r.end(e, actor.Failed)
	case AgentCalledChild:
		r.Children = append(r.Children, Child{Run: e.Child, Actor: e.Actor, Target: e.Actor.String(), Left: e.Left, At: e.At, position: at})
	case AgentCallRefused:
		r.Children = append(r.Children, Child{Target: e.Name, At: e.At, Ended: e.At, Status: actor.Failed, Refusal: e.Refusal, position: at})
	case AgentChildDone:
		i := slices.IndexFunc(r.Children, func(c Child) bool { return c.Run == e.Child && c.Status == 0 })
		if i < 0 {
			return fmt.Errorf("no pending call to run %s", e.Child)
		}
		c := &r.Children[i]
		c.Ended, c.Status, c.Refusal = e.At, e.Status, e.Refusal
		r.resume(e.Child) // an ended call no longer holds the run
	case ToolCallCreated:
		c, err := newToolCall(e)
		if err != nil {
			return err
		}
		r.openTools = append(r.openTools, c)
	case PolicyDecision, ApprovalCreated, ApprovalDecision, ApprovalExpired, ToolDispatched, ToolResult:
		i := slices.IndexFunc(r.openTools, func(c ToolCall) bool { return c.ID.Step == e.Step && c.ID.Index == e.Index })
		if i < 0 {
			return fmt.Errorf("no pending tool at %d.%d", at.step, at.index)
		}
		if err := r.openTools[i].apply(e); err != nil {
			return err
		}
		if e.Type == ToolResult {
			r.openTools = slices.Delete(r.openTools, i, i+1)
		}
	case TimeoutClamped:
		if len(r.Clamped) < clampedMax {
			r.Clamped = append(r.Clamped, Clamp{e.Name, e.Asked, e.Left})
		}
	case WaitOpened:
		r.Waits = append(r.Waits, Wait{e.Name, e.Until, at})
	case SignalReceived, WaitExpired:
		i := slices.IndexFunc(r.Waits, func(w Wait) bool { return w.position == at && w.Name == e.Name })
		if i < 0 {
			return fmt.Errorf("no open wait for %s at %d.%d", e.Name, at.step, at.index)
		}
		r.Waits = slices.Delete(r.Waits, i, i+1)
	case Attempt:
		r.Attempt = max(r.Attempt, e.Attempt)
	}
	return nil
}

// addUsage adds the usage of an answer. That of the last event is their sum.
func (r *Record) addUsage(e *Event) {
	r.Spent = r.Spent.addAnswer(e)
	switch e.Type {
	case LLMCallDone, AgentInvokeDone:
		r.Usage, r.Tree = r.Usage.Add(e.Usage), r.Tree.Add(e.Usage)
	case AgentChildDone:
		r.Tree = r.Tree.Add(e.Usage)
	}
}

func (r *Record) end(e *Event, outcome actor.Status) {
	r.Ended, r.Outcome, r.Text, r.Truncated, r.Warnings, r.Refusal = e.At, outcome, e.Text, e.Truncated, e.Warnings, e.Refusal
	r.Waits, r.Pauses, r.openTools = nil, nil, nil
}

// resume removes the pause that the call with the given child run has caused. For a
// zero child it removes the pause that no call has caused.
func (r *Record) resume(child actor.CallID) {
	r.Pauses = slices.DeleteFunc(r.Pauses, func(p Pause) bool { return p.Child == child })
}

// derive returns the status that follows from the open operations.
func (r *Record) derive(last Type) Status {
	out := func(c Child) bool { return c.Status == 0 }
	switch {
	case last == RunDone:
		return Done
	case last == RunFailed:
		return Failed
	case last == RunCancelled:
		return Cancelled
	case len(r.Pauses) > 0 || len(r.Waits) > 0 || len(r.Approvals()) > 0:
		return PausedWaitingApproval
	case len(r.openTools) > 0 || slices.ContainsFunc(r.Children, out):
		return PausedWaitingTool
	default:
		return Running
	}
}

// Approvals returns the open tool calls that wait for a person.
func (r *Record) Approvals() (all []ToolCall) {
	for i := range r.openTools {
		if r.openTools[i].Status == ToolStatusWaitingApproval {
			all = append(all, r.openTools[i])
		}
	}
	return all
}

// WithApprovals returns the record with these calls as those that wait for a person. It can be
// shown; no event can be applied to it.
func (r Record) WithApprovals(all []ToolCall) Record {
	r.openTools = all
	return r
}

// AppendJSON appends the record in the format of GET /v1/runs/{id}.
func (r *Record) AppendJSON(b []byte) []byte {
	o := object{b: append(b, '{')}
	o.text("run_id", r.Run.String())
	if !r.Root.IsZero() {
		o.text("root_run_id", r.Root.String())
	}
	if !r.Parent.IsZero() {
		o.text("parent_run_id", r.Parent.String())
	}
	if r.Actor != (actor.ID{}) {
		o.actor(r.Actor)
		o.text("session_id", r.Actor.Key)
		root := r.Actor
		if len(r.Chain) > 0 {
			root = r.Chain[0]
		}
		o.text("root_agent_id", root.Agent)
	}
	if r.User != "" {
		o.text("principal", r.User)
	}
	if r.Key != "" {
		o.text("key_id", r.Key)
	}
	o.text("status", r.Status.String())
	o.text("call_state", r.CallState())
	if state := r.AgentState(); state != "" {
		o.text("agent_state", state)
	}
	if r.Project != "" {
		o.text("project_id", r.Project)
	}
	o.text("priority", cmp.Or(r.Priority, actor.Normal.Priority()))
	if r.Trace != "" {
		o.text("trace_id", r.Trace)
	}
	if !r.Claimed.IsZero() {
		o.id("claimed_run_id", r.Claimed)
	}
	o.int("call_depth", int64(r.Depth()))
	o.chain("call_chain", r.Chain)
	if r.Started != 0 {
		o.millis("time_left_ms", r.Left)
	}
	o.int("attempt", int64(r.Attempt))
	o.time("created_at", r.Created)
	if r.Started != 0 {
		o.time("started_at", r.Started)
	}
	if r.Ended != 0 {
		o.time("ended_at", r.Ended)
	}
	o.int("last_seq", int64(r.Seq))
	if len(r.Pauses) > 0 {
		list(&o, "paused", r.Pauses, func(p *object, why Pause) { p.pause(why) })
	}
	if len(r.Waits) > 0 {
		list(&o, "waiting_for", r.Waits, func(p *object, w Wait) { p.wait(w) })
	}
	if waiting := r.Approvals(); len(waiting) > 0 {
		list(&o, "approvals", waiting, func(p *object, c ToolCall) { p.openApproval(c) })
	}
	if len(r.Children) > 0 {
		list(&o, "children", r.Children, func(p *object, c Child) { p.child(c) })
	}
	if len(r.Clamped) > 0 {
		list(&o, "clamped", r.Clamped, func(p *object, c Clamp) { p.clamp(c) })
	}
	if r.Status == Done {
		o.text("outcome", r.Outcome.String())
		o.text("text", r.Text)
		o.flag("truncated", r.Truncated)
	}
	if len(r.Warnings) > 0 {
		o.texts("warnings", r.Warnings)
	}
	if r.Refusal != nil {
		o.refusal("error", r.Refusal)
	}
	o.usages(r.Usage, r.Tree)
	return append(o.b, '}')
}

func (o *object) wait(w Wait) {
	o.text("name", w.Name)
	o.time("until", w.Until)
}

func (o *object) clamp(c Clamp) {
	if c.Name != "" {
		o.text("name", c.Name)
	}
	o.millis("asked_ms", c.Asked)
	o.millis("time_left_ms", c.Left)
}

func (o *object) openApproval(c ToolCall) {
	o.text("approval_id", c.ID.Approval())
	o.text("tool_name", c.Name)
	o.text("args_summary", c.Approval.Summary)
	o.time("until", c.Approval.Until)
}

func (o *object) pause(p Pause) {
	o.text("name", p.Name)
	if !p.Child.IsZero() {
		o.text("child_run_id", p.Child.String())
	}
	if p.Until != 0 {
		o.time("until", p.Until)
	}
}

func (o *object) child(c Child) {
	if !c.Run.IsZero() {
		o.text("child_run_id", c.Run.String())
	}
	o.text("target", c.Target)
	o.millis("time_left_ms", c.Left)
	o.time("started_at", c.At)
	if c.Ended != 0 {
		o.time("ended_at", c.Ended)
	}
	o.text("call_state", c.CallState())
	if c.Refusal != nil {
		o.refusal("error", c.Refusal)
	}
}

// CallState returns the state of the call as seen by its caller.
func (c Child) CallState() string {
	switch c.Status {
	case 0:
		return CallState(Running, nil)
	case actor.Failed:
		return CallState(Failed, c.Refusal)
	default:
		return CallState(Done, nil)
	}
}

func list[T any](o *object, name string, all []T, write func(*object, T)) {
	o.name(name)
	o.b = append(o.b, '[')
	for i, v := range all {
		if i > 0 {
			o.b = append(o.b, ',')
		}
		p := object{b: append(o.b, '{')}
		write(&p, v)
		o.b = append(p.b, '}')
	}
	o.b = append(o.b, ']')
}
