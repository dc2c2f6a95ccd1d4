// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"regexp"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

var original, edited = actor.HashOf([]byte("seen")), actor.HashOf([]byte("edited"))

func toolStates(to ...runs.ToolStatus) []WorkEvent {
	var all []WorkEvent
	for _, s := range to {
		all = append(all, WorkEvent{Kind: WorkTool, Run: root, Step: 1, Tool: s})
	}
	return all
}

func approvalTo(n uint32, s runs.ApprovalStatus, args actor.Hash) WorkEvent {
	return WorkEvent{Kind: WorkApproval, Run: root, Step: 1, Number: n, Approval: s, Args: args}
}

func reported(n uint32, s runs.ApprovalStatus) WorkEvent {
	return WorkEvent{Kind: WorkReported, Run: root, Step: 1, Number: n, Approval: s}
}

func performed(n uint32, args actor.Hash) WorkEvent {
	return WorkEvent{Kind: WorkPerformed, Run: root, Step: 1, Number: n, Args: args}
}

func advanced(result bool) WorkEvent {
	return WorkEvent{Kind: WorkAdvanced, Run: root, Step: 1, Result: result}
}

const (
	pending, approved, rejected, expired = runs.ApprovalStatusPending, runs.ApprovalStatusApproved, runs.ApprovalStatusRejected, runs.ApprovalStatusExpired
	created, checked, waiting            = runs.ToolStatusCreated, runs.ToolStatusPolicyChecked, runs.ToolStatusWaitingApproval
	dispatched, running, succeeded       = runs.ToolStatusDispatched, runs.ToolStatusRunning, runs.ToolStatusSucceeded
	failed, timedOut, blocked            = runs.ToolStatusFailed, runs.ToolStatusTimeout, runs.ToolStatusBlocked
)

func checkWork(parts ...any) *Violation {
	w := NewWork()
	for _, part := range parts {
		switch p := part.(type) {
		case WorkEvent:
			w.Observe(p)
		case []WorkEvent:
			for _, e := range p {
				w.Observe(e)
			}
		}
	}
	return w.violation
}

func TestValidWorkPasses(t *testing.T) {
	for name, parts := range map[string][]any{
		"allowed":  {toolStates(created, checked, dispatched), performed(0, original), toolStates(running, succeeded), advanced(true)},
		"approved": {toolStates(created, checked, waiting), approvalTo(1, pending, original), approvalTo(1, approved, original), reported(1, approved), reported(1, approved), toolStates(dispatched), performed(1, original), toolStates(running, succeeded), advanced(true)},
		"edited":   {toolStates(created, checked, waiting), approvalTo(1, pending, original), approvalTo(1, expired, original), approvalTo(2, pending, edited), reported(1, expired), approvalTo(2, approved, edited), toolStates(dispatched), performed(2, edited)},
		"again":    {toolStates(created, checked, waiting), approvalTo(1, pending, original), approvalTo(1, approved, original), toolStates(dispatched), performed(1, original), WorkEvent{Kind: WorkRolledBack, Run: root, Step: 1, Number: 1, Approval: approved}, performed(1, original)},
		"forgot":   {toolStates(created, checked, waiting), approvalTo(1, pending, original), approvalTo(1, approved, original), WorkEvent{Kind: WorkRolledBack, Run: root, Step: 1, Number: 1, Approval: pending}, approvalTo(1, rejected, original), reported(1, rejected)},
		"failed":   {toolStates(created, checked, dispatched), performed(0, original), toolStates(running, failed), advanced(false)},
	} {
		if v := checkWork(parts...); v != nil {
			t.Errorf("%s: %s", name, v)
		}
	}
}

// Each defect of module Work for these two properties has a history here that the Go spec must
// reject. It is a short form of the counterexample found by TLC.
func TestWorkDetectsModelDefects(t *testing.T) {
	waitingForApproval := []any{toolStates(created, checked, waiting), approvalTo(1, pending, original)}
	mutants := map[string][]any{
		"advancefailed":  {toolStates(created, checked, dispatched), performed(0, original), toolStates(running, failed), advanced(true)},
		"advancelate":    {toolStates(created, checked, dispatched), performed(0, original), toolStates(running, timedOut), advanced(true)},
		"advanceblocked": {toolStates(created, checked, blocked), advanced(true)},
		"advancedenied":  append(waitingForApproval[:2:2], approvalTo(1, rejected, original), toolStates(failed), advanced(true)),
		"flip":           append(waitingForApproval[:2:2], approvalTo(1, approved, original), reported(1, approved), approvalTo(1, rejected, original)),
		"memgrant":       append(waitingForApproval[:2:2], approvalTo(1, approved, original), reported(1, approved), WorkEvent{Kind: WorkRolledBack, Run: root, Step: 1, Number: 1, Approval: pending}),
		"reuse":          append(waitingForApproval[:2:2], approvalTo(1, approved, original), performed(1, original), WorkEvent{Kind: WorkPerformed, Run: root, Step: 2, NeedsApproval: true, Args: original}),
		"swap":           append(waitingForApproval[:2:2], approvalTo(1, approved, original), toolStates(dispatched), performed(1, edited)),
		"anyid":          append(waitingForApproval[:2:2], approvalTo(1, expired, original), approvalTo(2, pending, edited), approvalTo(2, approved, edited), reported(1, approved)),
		"lateclick":      append(waitingForApproval[:2:2], WorkEvent{Kind: WorkExpired, Run: root, Step: 1, Number: 1}, approvalTo(1, approved, original)),
	}
	defects := map[string]bool{}
	row := regexp.MustCompile(`(?m)^Work_(` + OnlySucceededAdvances + "|" + ApprovalOnce + `)_\w+ +\w+ +Bug=(\w+)$`)
	for _, m := range row.FindAllStringSubmatch(readFile(t, "../tla/derived.txt"), -1) {
		spec, bug := m[1], m[2]
		defects[bug] = true
		if v := checkWork(mutants[bug]...); v == nil || v.Spec != spec {
			t.Errorf("%s: %v, want %s", bug, v, spec)
		}
	}
	for bug := range mutants {
		if !defects[bug] {
			t.Errorf("%s is not a defect of module Work", bug)
		}
	}
}

// A tool call must have no effect before its approval or after a rejection. A transition that the
// tables of package runs reject must not yield a result.
func TestUnapprovedEffectIsRejected(t *testing.T) {
	for _, test := range []struct {
		parts        []any
		spec, detail string
	}{
		{[]any{toolStates(created, checked, waiting), approvalTo(1, pending, original), performed(1, original)}, ApprovalOnce, "its approval 1 is PENDING"},
		{[]any{toolStates(created, checked, waiting), approvalTo(1, pending, original), approvalTo(1, rejected, original), performed(1, original)}, ApprovalOnce, "is REJECTED"},
		{[]any{toolStates(created, checked, dispatched, running, timedOut, succeeded), advanced(true)}, OnlySucceededAdvances, "its state is TIMEOUT"},
		{[]any{approvalTo(1, approved, original)}, ApprovalOnce, "cannot go from"},
		{[]any{toolStates(created, checked, waiting), approvalTo(1, pending, original), approvalTo(1, approved, original), performed(1, original), WorkEvent{Kind: WorkRolledBack, Run: root, Step: 1, Number: 1}}, ApprovalOnce, "reported or used"},
	} {
		if v := checkWork(test.parts...); v == nil || v.Spec != test.spec || !strings.Contains(v.String(), test.detail) {
			t.Errorf("%v, want %s with %q", v, test.spec, test.detail)
		}
	}
}
