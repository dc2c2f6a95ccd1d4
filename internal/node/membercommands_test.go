// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
)

// The page of all members is the beginning of their pages in one order, and says whether more follows.
func TestApprovalsOfMembersAreOnePage(t *testing.T) {
	page := func(more bool, created ...actor.Time) (p command.Approvals) {
		for _, at := range created {
			p.All = append(p.All, command.Approval{ID: runs.ToolCallID{Run: actor.CallID{byte(at)}, Step: 1}, Created: at})
		}
		p.More = more
		return p
	}
	for _, test := range []struct {
		pages []command.Approvals
		limit int
		want  string
	}{
		{nil, 0, "[] false"},
		{[]command.Approvals{page(false, 3, 5), page(false), page(false, 1, 4)}, 0, "[1 3 4 5] false"},
		{[]command.Approvals{page(false, 3, 5), page(false, 1, 4)}, 3, "[1 3 4] true"},
		{[]command.Approvals{page(true, 3, 5), page(false, 1)}, 9, "[1 3 5] true"},
	} {
		got := joinApprovals(test.pages, test.limit)
		created := []actor.Time{}
		for _, a := range got.All {
			created = append(created, a.Created)
		}
		if text := fmt.Sprint(created, got.More); text != test.want {
			t.Errorf("got %s, want %s", text, test.want)
		}
	}
	long := make([]command.Approval, command.ApprovalsMax)
	if got := joinApprovals([]command.Approvals{{All: long}, {All: long[:1]}}, 0); len(got.All) != command.ApprovalsMax || !got.More {
		t.Errorf("a page has %d approvals, more: %v", len(got.All), got.More)
	}
}

func TestTasksOfMembersAreOneList(t *testing.T) {
	tasks := func(calls ...byte) (p command.Tasks) {
		for _, n := range calls {
			p.All = append(p.All, command.Task{Call: actor.CallID{n}})
		}
		return p
	}
	got := joinTasks([]command.Tasks{tasks(2, 9), tasks(1, 5)})
	order := []byte{}
	for _, task := range got.All {
		order = append(order, task.Call[0])
	}
	if fmt.Sprint(order) != "[1 2 5 9]" || got.More {
		t.Errorf("got %v, more: %v", order, got.More)
	}
	many := command.Tasks{All: make([]command.Task, command.TasksMax)}
	if got := joinTasks([]command.Tasks{many, tasks(1)}); len(got.All) != command.TasksMax || !got.More {
		t.Errorf("a list has %d tasks, more: %v", len(got.All), got.More)
	}
}

// A member that was gone before its answer may have performed the command. Other errors stay what they are.
func TestErrorOfCommandThatWasPassedOn(t *testing.T) {
	busy := actor.RefuseBusy(actor.ScopeNode, 1, "busy")
	for _, test := range []struct{ err, want error }{{nil, nil}, {busy, busy}, {command.ErrClosed, actor.RefuseReplyClosed()}, {&command.ConnError{Err: errors.New("cut")}, actor.RefuseReplyClosed()}} {
		if got := passedError(test.err); fmt.Sprint(got) != fmt.Sprint(test.want) {
			t.Errorf("%v: got %v, want %v", test.err, got, test.want)
		}
	}
}
