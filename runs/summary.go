// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"cmp"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// ListedTextMax is the maximum length in bytes of a run's text in a list.
const ListedTextMax = 4 << 10

// Summary is the entry of a run in lists. It has a bounded size and is stored with
// each entry that changes it, so that a list reads no events.
type Summary struct {
	Run      actor.CallID
	Root     actor.CallID
	Parent   actor.CallID // zero for a root
	Actor    actor.ID
	User     string // principal that the run acts for
	Depth    int
	Workflow string
	Project  string
	Priority string // actor.Lane as text; "" means normal
	Status   Status // 0 means unknown: the row was written by a version without summaries
	Created  actor.Time
	Started  actor.Time // 0 while queued
	Ended    actor.Time // 0 until the end
	Waits    string     // name of the first signal that the run waits for
	Until    actor.Time // end of that wait

	Outcome   actor.Status // set with Ended
	Text      string       // beginning of the answer, at most ListedTextMax
	Truncated bool
	Refusal   *actor.Refusal // reason of a failure; of an open run, why it is parked
	Usage     Usage          // see Record
	Tree      Usage
	Spent     Spent
}

// SetText sets Text to the beginning of the text of an answer.
func (s *Summary) SetText(parts []actor.Part) {
	var e Event
	e.SetText(parts)
	s.Text, s.Truncated = shorten(e.Text, e.Truncated)
}

// listedReasonMax is the maximum length in bytes of each text of a listed refusal.
const listedReasonMax = 512

// SetRefusal sets Refusal, with each text cut to its bound.
func (s *Summary) SetRefusal(r *actor.Refusal) {
	short := *r
	short.Detail, _ = cutText(r.Detail, listedReasonMax)
	short.Field, _ = cutText(r.Field, listedReasonMax)
	short.Operation, _ = cutText(r.Operation, listedReasonMax)
	short.Timeout -= short.Timeout % time.Millisecond // as in an event
	short.RetryAfter -= short.RetryAfter % time.Millisecond
	s.Refusal = &short
}

func shorten(text string, truncated bool) (string, bool) {
	short, cut := cutText(text, ListedTextMax)
	if cut {
		short = strings.Clone(short) // the rest can be freed
	}
	return short, truncated || cut
}

// Summary returns the summary of a run whose events the record has. Events name no
// workflow.
func (r *Record) Summary() Summary {
	s := Summary{Run: r.Run, Root: r.Root, Parent: r.Parent, Actor: r.Actor, User: r.User, Depth: r.Depth(), Project: r.Project, Priority: r.Priority,
		Status: r.Status, Created: r.Created, Started: r.Started, Ended: r.Ended,
		Outcome: r.Outcome, Usage: r.Usage, Tree: r.Tree, Spent: r.Spent}
	if r.Refusal != nil {
		s.SetRefusal(r.Refusal)
	}
	if r.Parent.IsZero() && s.Root.IsZero() {
		s.Root = r.Run // a queued root
	}
	if len(r.Waits) > 0 {
		s.Waits, s.Until = r.Waits[0].Name, r.Waits[0].Until
	}
	s.Text, s.Truncated = shorten(r.Text, r.Truncated)
	return s
}

// AppendJSON appends the summary with the names of Record.AppendJSON.
func (s *Summary) AppendJSON(b []byte) []byte {
	o := object{b: append(b, '{')}
	o.id("run_id", s.Run)
	o.id("root_run_id", s.Root)
	if !s.Parent.IsZero() {
		o.id("parent_run_id", s.Parent)
	}
	o.actor(s.Actor)
	o.text("session_id", s.Actor.Key)
	if s.Depth == 0 {
		o.text("root_agent_id", s.Actor.Agent)
	}
	if s.User != "" {
		o.text("principal", s.User)
	}
	o.text("status", s.Status.String())
	o.text("call_state", CallState(s.Status, s.Refusal))
	if state := AgentState(s.Status, s.Started, s.Refusal); state != "" {
		o.text("agent_state", state)
	}
	if s.Workflow != "" {
		o.text("workflow_id", s.Workflow)
	}
	if s.Project != "" {
		o.text("project_id", s.Project)
	}
	o.text("priority", cmp.Or(s.Priority, actor.Normal.Priority()))
	o.int("call_depth", int64(s.Depth))
	o.time("created_at", s.Created)
	if s.Started != 0 {
		o.time("started_at", s.Started)
	}
	if s.Ended != 0 {
		o.time("ended_at", s.Ended)
	}
	if s.Waits != "" {
		list(&o, "waiting_for", []Wait{{Name: s.Waits, Until: s.Until}}, func(p *object, w Wait) { p.wait(w) })
	}
	if s.Status == Done {
		o.text("outcome", s.Outcome.String())
		o.text("text", s.Text)
		o.flag("truncated", s.Truncated)
	}
	if s.Refusal != nil {
		o.refusal("error", s.Refusal)
	}
	o.usages(s.Usage, s.Tree)
	return append(o.b, '}')
}
