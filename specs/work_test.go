// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

var seen, edited = actor.HashOf([]byte("seen")), actor.HashOf([]byte("edited"))

func toolGoes(to ...runs.ToolStatus) []WorkEvent {
	var all []WorkEvent
	for _, s := range to {
		all = append(all, WorkEvent{Kind: WorkTool, Run: root, Step: 1, Tool: s})
	}
	return all
}

func approvalGoes(n uint32, s runs.ApprovalStatus, args actor.Hash) WorkEvent {
	return WorkEvent{Kind: WorkApproval, Run: root, Step: 1, Number: n, Approval: s, Args: args}
}

func told(n uint32, s runs.ApprovalStatus) WorkEvent {
	return WorkEvent{Kind: WorkTold, Run: root, Step: 1, Number: n, Approval: s}
}

func done(n uint32, args actor.Hash) WorkEvent {
	return WorkEvent{Kind: WorkDone, Run: root, Step: 1, Number: n, Args: args}
}

func taken(result bool) WorkEvent {
	return WorkEvent{Kind: WorkTaken, Run: root, Step: 1, Result: result}
}

const (
	pending, approved, rejected, expired = runs.ApprovalStatusPending, runs.ApprovalStatusApproved, runs.ApprovalStatusRejected, runs.ApprovalStatusExpired
	created, checked, toAsk              = runs.ToolStatusCreated, runs.ToolStatusPolicyChecked, runs.ToolStatusWaitingApproval
	sent, running, succeeded             = runs.ToolStatusDispatched, runs.ToolStatusRunning, runs.ToolStatusSucceeded
	failed, late1, blocked               = runs.ToolStatusFailed, runs.ToolStatusTimeout, runs.ToolStatusBlocked
)

func judgeWork(parts ...any) *Violation {
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
	return w.broken
}

func TestHealthyWorkPasses(t *testing.T) {
	for name, parts := range map[string][]any{
		"allowed":  {toolGoes(created, checked, sent), done(0, seen), toolGoes(running, succeeded), taken(true)},
		"approved": {toolGoes(created, checked, toAsk), approvalGoes(1, pending, seen), approvalGoes(1, approved, seen), told(1, approved), told(1, approved), toolGoes(sent), done(1, seen), toolGoes(running, succeeded), taken(true)},
		"edited":   {toolGoes(created, checked, toAsk), approvalGoes(1, pending, seen), approvalGoes(1, expired, seen), approvalGoes(2, pending, edited), told(1, expired), approvalGoes(2, approved, edited), toolGoes(sent), done(2, edited)},
		"again":    {toolGoes(created, checked, toAsk), approvalGoes(1, pending, seen), approvalGoes(1, approved, seen), toolGoes(sent), done(1, seen), WorkEvent{Kind: WorkForgot, Run: root, Step: 1, Number: 1, Approval: approved}, done(1, seen)},
		"forgot":   {toolGoes(created, checked, toAsk), approvalGoes(1, pending, seen), approvalGoes(1, approved, seen), WorkEvent{Kind: WorkForgot, Run: root, Step: 1, Number: 1, Approval: pending}, approvalGoes(1, rejected, seen), told(1, rejected)},
		"failed":   {toolGoes(created, checked, sent), done(0, seen), toolGoes(running, failed), taken(false)},
	} {
		if v := judgeWork(parts...); v != nil {
			t.Errorf("%s: %s", name, v)
		}
	}
}

// Each defect that module Work has for these two properties has a history here
// that the twin catches: the one that TLC finds, in a few words.
func TestWorkCatchesTheDefectsOfTheModel(t *testing.T) {
	asked := []any{toolGoes(created, checked, toAsk), approvalGoes(1, pending, seen)}
	mutants := map[string][]any{
		"advancefailed":  {toolGoes(created, checked, sent), done(0, seen), toolGoes(running, failed), taken(true)},
		"advancelate":    {toolGoes(created, checked, sent), done(0, seen), toolGoes(running, late1), taken(true)},
		"advanceblocked": {toolGoes(created, checked, blocked), taken(true)},
		"advancedenied":  append(asked[:2:2], approvalGoes(1, rejected, seen), toolGoes(failed), taken(true)),
		"flip":           append(asked[:2:2], approvalGoes(1, approved, seen), told(1, approved), approvalGoes(1, rejected, seen)),
		"memgrant":       append(asked[:2:2], approvalGoes(1, approved, seen), told(1, approved), WorkEvent{Kind: WorkForgot, Run: root, Step: 1, Number: 1, Approval: pending}),
		"reuse":          append(asked[:2:2], approvalGoes(1, approved, seen), done(1, seen), WorkEvent{Kind: WorkDone, Run: root, Step: 2, Asked: true, Args: seen}),
		"swap":           append(asked[:2:2], approvalGoes(1, approved, seen), toolGoes(sent), done(1, edited)),
		"anyid":          append(asked[:2:2], approvalGoes(1, expired, seen), approvalGoes(2, pending, edited), approvalGoes(2, approved, edited), told(1, approved)),
		"lateclick":      append(asked[:2:2], WorkEvent{Kind: WorkOverdue, Run: root, Step: 1, Number: 1}, approvalGoes(1, approved, seen)),
	}
	found := map[string]bool{}
	for _, spec := range []string{OnlySucceededAdvances, ApprovalOnce} {
		configs, err := filepath.Glob("../tla/broken/Work_" + spec + "*_broken.cfg")
		if err != nil || len(configs) == 0 {
			t.Fatal(configs, err)
		}
		for _, path := range configs {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			bug := regexp.MustCompile(`Bug = "(\w+)"`).FindStringSubmatch(string(text))[1]
			found[bug] = true
			if v := judgeWork(mutants[bug]...); v == nil || v.Spec != spec {
				t.Errorf("%s (%s): %v, want %s", bug, filepath.Base(path), v, spec)
			}
		}
	}
	for bug := range mutants {
		if !found[bug] {
			t.Errorf("%s is no defect of module Work", bug)
		}
	}
}

// A tool call that is not approved yet, or was denied, does nothing; and what the
// tables of package runs refuse gives nobody a result.
func TestWorkWithoutALicence(t *testing.T) {
	for _, test := range []struct {
		parts      []any
		spec, says string
	}{
		{[]any{toolGoes(created, checked, toAsk), approvalGoes(1, pending, seen), done(1, seen)}, ApprovalOnce, "its approval 1 is PENDING"},
		{[]any{toolGoes(created, checked, toAsk), approvalGoes(1, pending, seen), approvalGoes(1, rejected, seen), done(1, seen)}, ApprovalOnce, "is REJECTED"},
		{[]any{toolGoes(created, checked, sent, running, late1, succeeded), taken(true)}, OnlySucceededAdvances, "that is TIMEOUT"},
		{[]any{approvalGoes(1, approved, seen)}, ApprovalOnce, "cannot go from"},
		{[]any{toolGoes(created, checked, toAsk), approvalGoes(1, pending, seen), approvalGoes(1, approved, seen), done(1, seen), WorkEvent{Kind: WorkForgot, Run: root, Step: 1, Number: 1}}, ApprovalOnce, "somebody relies on it"},
	} {
		if v := judgeWork(test.parts...); v == nil || v.Spec != test.spec || !strings.Contains(v.String(), test.says) {
			t.Errorf("%v, want %s with %q", v, test.spec, test.says)
		}
	}
	if !slices.ContainsFunc(All(), func(s Spec) bool { return s.Name == ApprovalOnce }) {
		t.Error("ApprovalOnce is no spec")
	}
}
