// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"fmt"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// WorkKind is what happened to a tool call, or because of it.
type WorkKind uint8

// The kinds, in the order in which the life of one tool call has them.
const (
	WorkTool       WorkKind = iota + 1 // it went to the state Tool
	WorkApproval                       // an approval of it went to the state Approval; PENDING shows somebody Args
	WorkExpired                        // that approval's time is over
	WorkReported                       // somebody who clicked on it was told the state Approval
	WorkPerformed                      // the effect left, with Args, as that approval permits, which the policy wants if Asked
	WorkRolledBack                     // a crash: the approval is in the state Approval again, or, without Number, the tool call in Tool; 0 if it never was
	WorkAdvanced                       // the run went on from the end of the tool call: with a Result, or a failure
)

// WorkEvent is one of those, of the tool call at a place of a run.
type WorkEvent struct {
	Kind          WorkKind
	Run           actor.CallID
	Step          uint32
	Index         uint16
	Number        uint32 // of the approval, from 1
	Tool          runs.ToolStatus
	Approval      runs.ApprovalStatus
	Args          actor.Hash
	NeedsApproval bool
	Result        bool
}

// Work judges how runs deal with tool calls and the people who approve them, by
// the tables of package runs: it is the twin of module Work where Checker is that
// of Calls. It stops at the first violation.
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

// approvalState is an approval: its state, what was shown, and what somebody relies on.
type approvalState struct {
	status    runs.ApprovalStatus
	args      actor.Hash
	expired   bool
	reported  runs.ApprovalStatus
	performed bool
}

// NewWork returns a judge of runs that have not begun.
func NewWork() *Work {
	return &Work{tools: map[toolCall]runs.ToolStatus{}, approvals: map[approvalID]*approvalState{}}
}

// Observe takes what happened next. It returns the first violation, now and ever after.
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
		if runs.ToolTransition(tool, e.Tool) == nil { // what the tables refuse does not happen
			w.tools[at] = e.Tool
		}
	case WorkAdvanced:
		if e.Result && !tool.Advances() {
			w.fail(OnlySucceededAdvances, "run %s goes on from tool call %d.%d with a result, and that is %s", e.Run, e.Step, e.Index, tool)
		}
	case WorkApproval:
		w.transition(e, g)
	case WorkExpired:
		g.expired = true
	case WorkReported:
		if g.reported != 0 && g.reported != e.Approval || e.Approval != g.status {
			w.fail(ApprovalOnce, "approval %d of tool call %d.%d of run %s is %s, and somebody is told %s", e.Number, e.Step, e.Index, e.Run, g.status, e.Approval)
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

// rollBack goes back to what a disk has. What somebody was told, or what has left, must be there.
func (w *Work) rollBack(e WorkEvent, at toolCall, g *approvalState) {
	if e.Number == 0 {
		w.tools[at] = e.Tool
		return
	}
	if g.reported != 0 && g.reported != e.Approval || g.performed && e.Approval != runs.ApprovalStatusApproved {
		w.fail(ApprovalOnce, "approval %d of tool call %d.%d of run %s is forgotten in a crash, and somebody relies on it", e.Number, e.Step, e.Index, e.Run)
	}
	if g.status = e.Approval; g.status == 0 {
		*g = approvalState{}
	}
}

// transition moves an approval. What was decided stays, and a decision comes in time.
func (w *Work) transition(e WorkEvent, g *approvalState) {
	switch err := runs.ApprovalTransition(g.status, e.Approval); {
	case err != nil:
		w.fail(ApprovalOnce, "approval %d of tool call %d.%d of run %s: %v", e.Number, e.Step, e.Index, e.Run, err)
	case e.Approval == runs.ApprovalStatusApproved && g.expired:
		w.fail(ApprovalOnce, "approval %d of tool call %d.%d of run %s is given after its time", e.Number, e.Step, e.Index, e.Run)
	case e.Approval == runs.ApprovalStatusPending:
		g.args = e.Args
	}
	g.status = e.Approval
}

// checkPermission judges an effect by the approval that it goes by.
func (w *Work) checkPermission(e WorkEvent, g *approvalState) {
	switch {
	case e.Number == 0:
		w.fail(ApprovalOnce, "tool call %d.%d of run %s is done without an approval of its own, which its policy wants", e.Step, e.Index, e.Run)
	case g.status != runs.ApprovalStatusApproved:
		w.fail(ApprovalOnce, "tool call %d.%d of run %s is done, and its approval %d is %s", e.Step, e.Index, e.Run, e.Number, g.status)
	case g.args != e.Args:
		w.fail(ApprovalOnce, "tool call %d.%d of run %s is done with other arguments than were approved", e.Step, e.Index, e.Run)
	}
	g.performed = true
}

func (w *Work) fail(spec, format string, args ...any) {
	w.violation = &Violation{Spec: spec, Sentence: fmt.Sprintf(format, args...), Step: w.step}
}
