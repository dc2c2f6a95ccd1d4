// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
)

// shown is a JSON object as its reader decodes it.
type shown map[string]any

// add adds a member unless its value is the zero value of its type.
func (s shown) add(name string, value any) {
	switch value {
	case "", false, nil:
	default:
		s[name] = value
	}
}

// checkShown compares the encoding of the product with the object that a reader expects.
func checkShown(body []byte, want shown) error {
	canonical, wanted := jsontext.Value(slices.Clone(body)), jsontext.Value(invariant.Must(json.Marshal(want)))
	if err := canonical.Canonicalize(); err != nil {
		return fmt.Errorf("is no JSON object: %w: %.200s", err, body)
	}
	invariant.Must(0, wanted.Canonicalize())
	if got, want := canonical, wanted; !bytes.Equal(got, want) {
		at := 0
		for at < min(len(got), len(want)) && got[at] == want[at] {
			at++
		}
		return fmt.Errorf("is shown as … %.120s, want … %.120s", got[max(0, at-40):], want[max(0, at-40):])
	}
	return nil
}

// documentedStatus is a status of a run with the states derived from it.
var documentedStatus = map[runs.Status]struct{ name, agent string }{
	runs.Running: {"RUNNING", "Running"}, runs.PausedWaitingApproval: {"PAUSED_WAITING_APPROVAL", "Paused"},
	runs.PausedWaitingTool: {"PAUSED_WAITING_TOOL", "Waiting"}, runs.Done: {"DONE", ""}, runs.Failed: {"FAILED", ""}, runs.Cancelled: {"CANCELLED", ""},
}

// documentedReasons are the rows of docs/errors.md: a reason, its name in records, the code
// and the HTTP status of its problem.
var documentedReasons = map[actor.Reason]struct {
	name, record, code string
	http               int
}{
	actor.Busy: {"Busy", "AgentBusy", "agent_busy", 429}, actor.Cycle: {"Cycle", "cycle detected", "call_cycle", 409},
	actor.WaitCycle: {"WaitCycle", "wait cycle", "call_wait_cycle", 409}, actor.Depth: {"Depth", "Maximum call depth exceeded", "call_depth", 409},
	actor.Deadline: {"Deadline", "AgentCallTimeout", "timeout", 504}, actor.NotFound: {"NotFound", "AgentNotFound", "agent_not_found", 404},
	actor.Rejected: {"Rejected", "AgentCallRejected", "call_rejected", 403}, actor.Unavailable: {"Unavailable", "Unavailable", "agent_unavailable", 503},
	actor.Stopped: {"Stopped", "Failed", "cancelled", 409}, actor.Budget: {"Budget", "BudgetExceeded", "budget_exceeded", 402},
	actor.Invalid: {"Invalid", "InvalidInput", "invalid_request", 400}, actor.Unknown: {"Unknown", "AgentReplyLost", "outcome_unknown", 502},
	actor.NoDevice: {"NoDevice", "NoDevice", "client_offline", 409}, actor.EventsExceeded: {"EventsExceeded", "EventsExceeded", "events_exceeded", 402},
	actor.ModelAuth: {"ModelAuth", "ModelAuthFailed", "model_auth", 502}, actor.ModelNotFound: {"ModelNotFound", "ModelNotFound", "model_not_found", 502},
	actor.ModelRejected: {"ModelRejected", "ModelRequestRejected", "model_rejected", 502}, actor.PolicyBlocked: {"PolicyBlocked", "PolicyBlocked", "policy_blocked", 403},
	actor.ApprovalRejected: {"ApprovalRejected", "ApprovalRejected", "approval_rejected", 403}, actor.ApprovalDecided: {"ApprovalDecided", "ApprovalDecided", "approval_decided", 409},
}

var documentedScopes = map[actor.Scope]string{actor.ScopeCaller: "caller", actor.ScopeCallee: "callee", actor.ScopeNode: "node"}

func millis(d actor.Duration) float64 { return float64(d / time.Millisecond) }

// shownRefusal returns a refusal as its reader sees it.
func shownRefusal(r *actor.Refusal) any {
	if r == nil {
		return nil
	}
	d := documentedReasons[r.Reason]
	message := d.record
	if r.Reason == actor.Deadline {
		message += " (timeout)"
	}
	detail := strings.ToValidUTF8(r.Detail, "\uFFFD")
	if detail != "" {
		message += ": " + detail
	}
	s := shown{"type": d.record, "code": d.code, "reason": d.name, "message": message, "detail": detail}
	s.add("scope", documentedScopes[r.Scope])
	s.add("field", r.Field)
	s.add("reported_code", r.Code)
	s.add("operation", r.Operation)
	if len(r.Chain) > 0 {
		s["call_chain"] = names(r.Chain)
	}
	if r.RetryAfter > 0 {
		s["retry_after_ms"] = millis(r.RetryAfter)
	}
	if r.Timeout > 0 {
		s["timeout_ms"] = millis(r.Timeout)
	}
	return s
}

func (s shown) addRefusal(r *actor.Refusal) {
	if r != nil {
		s["error"] = shownRefusal(r)
	}
}

func (s shown) addTime(name string, t actor.Time) {
	if t != 0 {
		s[name] = shownTime(t)
	}
}

func (s shown) addID(name string, id actor.CallID) {
	if !id.IsZero() {
		s[name] = id.String()
	}
}

func (s shown) addActor(id actor.ID) {
	if id != (actor.ID{}) {
		s["agent_id"], s["actor"], s["session_id"] = id.Agent, id.String(), id.Key
	}
}

func (s shown) addUsage(name string, u runs.Usage) {
	if u != (runs.Usage{}) {
		s[name] = shown{"input_tokens": u.Input, "output_tokens": u.Output, "total_tokens": u.Total}
	}
}

// addStatus adds the status of a run and the states derived from it.
func (s shown) addStatus(status runs.Status, r *actor.Refusal, priority string, started actor.Time) {
	d := documentedStatus[status]
	s["status"], s["call_state"] = d.name, callState(status, r)
	switch {
	case d.agent == "":
	case r != nil:
		d.agent = "Parked"
	case status == runs.Running && started == 0:
		d.agent = "Queued"
	}
	s.add("agent_state", d.agent)
	if s["priority"] = priority; priority == "" {
		s["priority"] = "normal"
	}
}

// callState returns the state of the call that a run answers.
func callState(status runs.Status, r *actor.Refusal) string {
	switch {
	case status == runs.Done:
		return "Completed"
	case status != runs.Failed && status != runs.Cancelled:
		return "Pending"
	case r != nil && r.Reason == actor.Deadline:
		return "TimedOut"
	}
	return "Failed"
}

func shownWaits(all []runs.Wait) (list []shown) {
	for _, w := range all {
		list = append(list, shown{"name": w.Name, "until": shownTime(w.Until)})
	}
	return list
}

// checkShownSummary checks a summary as a list shows it.
func checkShownSummary(s *runs.Summary) error {
	want := shown{"run_id": s.Run.String(), "root_run_id": s.Root.String(), "call_depth": s.Depth, "created_at": shownTime(s.Created)}
	want.addID("parent_run_id", s.Parent)
	want.addActor(s.Actor)
	if s.Depth == 0 {
		want["root_agent_id"] = s.Actor.Agent
	}
	want.add("principal", s.User)
	want.addStatus(s.Status, s.Refusal, s.Priority, s.Started)
	want.add("workflow_id", s.Workflow)
	want.add("project_id", s.Project)
	want.addTime("started_at", s.Started)
	want.addTime("ended_at", s.Ended)
	if s.Waits != "" {
		want["waiting_for"] = shownWaits([]runs.Wait{{Name: s.Waits, Until: s.Until}})
	}
	if s.Status == runs.Done {
		want["outcome"], want["text"] = s.Outcome.String(), s.Text
		want.add("truncated", s.Truncated)
	}
	want.addRefusal(s.Refusal)
	want.addUsage("usage", s.Usage)
	want.addUsage("tree_usage", s.Tree)
	return checkShown(s.AppendJSON(nil), want)
}

// checkShownRecord checks a run as a request for it shows it.
func checkShownRecord(r *runs.Record) error {
	want := shown{"run_id": r.Run.String(), "call_depth": len(r.Chain), "call_chain": append([]string{}, names(r.Chain)...),
		"attempt": r.Attempt, "created_at": shownTime(r.Created), "last_seq": r.Seq}
	want.addID("root_run_id", r.Root)
	want.addID("parent_run_id", r.Parent)
	want.addActor(r.Actor)
	want.add("root_agent_id", append(slices.Clone(r.Chain), r.Actor)[0].Agent)
	want.add("principal", r.User)
	want.add("key_id", r.Key)
	want.addStatus(r.Status, r.Refusal, r.Priority, r.Started)
	if r.Started != 0 {
		want["time_left_ms"] = millis(r.Left)
	}
	want.add("project_id", r.Project)
	want.add("trace_id", r.Trace)
	want.addID("claimed_run_id", r.Claimed)
	want.addTime("started_at", r.Started)
	want.addTime("ended_at", r.Ended)
	if len(r.Waits) > 0 {
		want["waiting_for"] = shownWaits(r.Waits)
	}
	var paused, children []shown
	for _, p := range r.Pauses {
		o := shown{"name": p.Name}
		o.addID("child_run_id", p.Child)
		o.addTime("until", p.Until)
		paused = append(paused, o)
	}
	for _, c := range r.Children {
		state := map[actor.Status]runs.Status{0: runs.Running, actor.Failed: runs.Failed}[c.Status]
		if state == 0 {
			state = runs.Done
		}
		o := shown{"target": c.Target, "time_left_ms": millis(c.Left), "started_at": shownTime(c.At), "call_state": callState(state, c.Refusal)}
		o.addID("child_run_id", c.Run)
		o.addTime("ended_at", c.Ended)
		o.addRefusal(c.Refusal)
		children = append(children, o)
	}
	var approvals []shown
	for _, c := range r.Approvals() {
		approvals = append(approvals, shown{"approval_id": c.ID.Approval(), "tool_name": c.Name, "args_summary": c.Approval.Summary, "until": shownTime(c.Approval.Until)})
	}
	if approvals != nil {
		want["approvals"] = approvals
	}
	if paused != nil {
		want["paused"] = paused
	}
	if children != nil {
		want["children"] = children
	}
	var clamped []shown
	for _, c := range r.Clamped {
		o := shown{"asked_ms": millis(c.Asked), "time_left_ms": millis(c.Left)}
		o.add("name", c.Name)
		clamped = append(clamped, o)
	}
	if clamped != nil {
		want["clamped"] = clamped
	}
	if r.Status == runs.Done {
		want["outcome"], want["text"] = r.Outcome.String(), r.Text
		want.add("truncated", r.Truncated)
	}
	if len(r.Warnings) > 0 {
		want["warnings"] = r.Warnings
	}
	want.addRefusal(r.Refusal)
	want.addUsage("usage", r.Usage)
	want.addUsage("tree_usage", r.Tree)
	return checkShown(r.AppendJSON(nil), want)
}

// checkListedText checks that a summary has the beginning of an answer: all of it up to
// 4 KiB, of a longer one as many whole characters as fit.
func checkListedText(s *runs.Summary, text string, truncated bool) error {
	const limit = 4 << 10
	if len(text) <= limit {
		if s.Text != text || s.Truncated != truncated {
			return fmt.Errorf("lists %d bytes of text, truncated %v; want all %d, truncated %v", len(s.Text), s.Truncated, len(text), truncated)
		}
	} else if !s.Truncated || len(s.Text) > limit || len(s.Text) <= limit-4 || !strings.HasPrefix(text, s.Text) {
		return fmt.Errorf("lists %d bytes of a text of %d, truncated %v", len(s.Text), len(text), s.Truncated)
	}
	return nil
}
