// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"fmt"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// WorkKind is the kind of an event in the life of a tool call.
type WorkKind uint8

// Kinds of events, in the order in which one tool call can have them.
const (
	WorkTool       WorkKind = iota + 1 // the tool call moved to the state in the field Tool
	WorkApproval                       // an approval moved to the state in the field Approval; in state PENDING, Args are shown to the approver
	WorkExpired                        // the deadline of the approval passed
	WorkReported                       // the person who decided on the approval received its state, which is in the field Approval
	WorkPerformed                      // the effect left with the arguments Args under the approval Number; NeedsApproval is set if the policy requires an approval
	WorkRolledBack                     // a crash restored the durable state: of the tool call (field Tool) if Number is 0, else of the approval (field Approval); state 0 means that the tool call or approval no longer exists
	WorkAdvanced                       // the run continued after the tool call: with its Result, or with a failure
)

// WorkEvent is an event of the tool call at one position of a run.
type WorkEvent struct {
	Kind          WorkKind
	Run           actor.CallID
	Step          uint32
	Index         uint16
	Number        uint32 // number of the approval, from 1
	Tool          runs.ToolStatus
	Approval      runs.ApprovalStatus
	Args          actor.Hash
	NeedsApproval bool
	Result        bool
}

// Work checks how runs handle tool calls and their approvals, using the transition tables of
// package runs. It is the counterpart of the TLA+ module Work, as Checker is that of module
// Calls. It stops at the first violation.
type Work struct {
	tools     map[toolCall]runs.ToolStatus
	approvals map[approvalID]*approvalState
	step      uint64
	violation *Violation
}

type toolCall struct {
	run   actor.CallID
	step  uint32
	index uint16
}

type approvalID struct {
	of     toolCall
	number uint32
}

// approvalState is the state of an approval, the arguments that were shown, and the facts that
// outside parties already rely on.
type approvalState struct {
	status    runs.ApprovalStatus
	args      actor.Hash
	expired   bool
	reported  runs.ApprovalStatus
	performed bool
}

// NewWork returns a checker for runs that have not begun.
func NewWork() *Work {
	return &Work{tools: map[toolCall]runs.ToolStatus{}, approvals: map[approvalID]*approvalState{}}
}

// Observe checks the next event. It returns the first violation, and returns it again on every
// later call.
func (w *Work) Observe(e WorkEvent) *Violation {
	if w.violation != nil {
		return w.violation
	}
	w.step++
	at := toolCall{e.Run, e.Step, e.Index}
	tool, g := w.tools[at], w.approvals[approvalID{at, e.Number}]
	if g == nil {
		g = &approvalState{}
		w.approvals[approvalID{at, e.Number}] = g
	}
	switch e.Kind {
	case WorkTool:
		if runs.ToolTransition(tool, e.Tool) == nil { // transitions rejected by the tables have no effect
			w.tools[at] = e.Tool
		}
	case WorkAdvanced:
		if e.Result && !tool.Advances() {
			w.fail(OnlySucceededAdvances, "run %s continues from tool call %d.%d with a result, but its state is %s", e.Run, e.Step, e.Index, tool)
		}
	case WorkApproval:
		w.transition(e, g)
	case WorkExpired:
		g.expired = true
	case WorkReported:
		if g.reported != 0 && g.reported != e.Approval || e.Approval != g.status {
			w.fail(ApprovalOnce, "approval %d of tool call %d.%d of run %s is %s, but was reported as %s", e.Number, e.Step, e.Index, e.Run, g.status, e.Approval)
		}
		g.reported = e.Approval
	case WorkRolledBack:
		w.rollBack(e, at, g)
	case WorkPerformed:
		if e.NeedsApproval || e.Number != 0 {
			w.checkPermission(e, g)
		}
	}
	return w.violation
}

// rollBack restores the durable state after a crash. A state that was reported to a person, or
// whose effect has left, must be durable.
func (w *Work) rollBack(e WorkEvent, at toolCall, g *approvalState) {
	if e.Number == 0 {
		w.tools[at] = e.Tool
		return
	}
	if g.reported != 0 && g.reported != e.Approval || g.performed && e.Approval != runs.ApprovalStatusApproved {
		w.fail(ApprovalOnce, "approval %d of tool call %d.%d of run %s is lost in a crash although it was reported or used", e.Number, e.Step, e.Index, e.Run)
	}
	if g.status = e.Approval; g.status == 0 {
		*g = approvalState{}
	}
}

// transition changes the state of an approval. A decision is final and must arrive before the
// deadline.
func (w *Work) transition(e WorkEvent, g *approvalState) {
	switch err := runs.ApprovalTransition(g.status, e.Approval); {
	case err != nil:
		w.fail(ApprovalOnce, "approval %d of tool call %d.%d of run %s: %v", e.Number, e.Step, e.Index, e.Run, err)
	case e.Approval == runs.ApprovalStatusApproved && g.expired:
		w.fail(ApprovalOnce, "approval %d of tool call %d.%d of run %s is given after its deadline", e.Number, e.Step, e.Index, e.Run)
	case e.Approval == runs.ApprovalStatusPending:
		g.args = e.Args
	}
	g.status = e.Approval
}

// checkPermission checks that an effect is covered by its approval.
func (w *Work) checkPermission(e WorkEvent, g *approvalState) {
	switch {
	case e.Number == 0:
		w.fail(ApprovalOnce, "tool call %d.%d of run %s is performed without the approval its policy requires", e.Step, e.Index, e.Run)
	case g.status != runs.ApprovalStatusApproved:
		w.fail(ApprovalOnce, "tool call %d.%d of run %s is performed while its approval %d is %s", e.Step, e.Index, e.Run, e.Number, g.status)
	case g.args != e.Args:
		w.fail(ApprovalOnce, "tool call %d.%d of run %s is performed with other arguments than the approved ones", e.Step, e.Index, e.Run)
	}
	g.performed = true
}

func (w *Work) fail(spec, format string, args ...any) {
	w.violation = &Violation{Spec: spec, Detail: fmt.Sprintf(format, args...), Step: w.step}
}
