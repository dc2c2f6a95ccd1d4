// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
)

// approvalRun returns the events of a run whose tool waits for a person, up to the given
// end of the approval and the result of the tool.
func approvalRun(end Type) []Event {
	id := ToolCallID{parent, 1, 0}
	all := []Event{
		{Type: UserInput, Actor: alice, Text: "pay"},
		{Type: RunStarted, Actor: alice, Kind: "waiting", Operation: actor.HandleMessageFull, Origin: "human", Root: parent},
		{Type: ToolCallCreated, Name: "pay", Kind: KindTool, Step: 1, Text: `{"amount":5}`},
		{Type: PolicyDecision, Name: "pay", Kind: "require_approval", Step: 1, Text: "rule 1"},
		{Type: ApprovalCreated, Name: "pay", Step: 1, Until: 9e9, Text: "pays 5", Approval: id.Approval()},
		{Type: ApprovalRequired, Name: "pay", Until: 9e9, Text: "pays 5", Approval: id.Approval()},
	}
	if end == ApprovalExpired {
		all = append(all, Event{Type: ApprovalExpired, Name: "pay", Step: 1, Text: "nobody decided in time", Approval: id.Approval()},
			Event{Type: ToolResult, Name: "pay", Step: 1, Status: actor.Failed, Refusal: &actor.Refusal{Reason: actor.Deadline}})
	} else {
		all = append(all, Event{Type: ApprovalDecision, Name: "pay", Step: 1, Kind: "APPROVED", Text: "fine", Principal: "anna", Origin: "human", Approval: id.Approval()},
			Event{Type: ToolDispatched, Name: "pay", Step: 1, Attempt: 1, Left: 5e9},
			Event{Type: ToolResult, Name: "pay", Step: 1, Status: actor.Succeeded, Text: "paid"})
	}
	for i := range all {
		all[i].Run, all[i].Seq, all[i].At = parent, uint64(i+1), actor.Time(i+1)
	}
	return all
}

// The states of a call and of its approval follow its events.
func TestFoldToolCall(t *testing.T) {
	id := ToolCallID{parent, 1, 0}
	for _, c := range []struct {
		events   []Event
		n        int
		status   ToolStatus
		approval ApprovalStatus
		run      Status
	}{
		{approvalRun(ApprovalDecision), 3, ToolStatusCreated, 0, PausedWaitingTool},
		{approvalRun(ApprovalDecision), 4, ToolStatusPolicyChecked, 0, PausedWaitingTool},
		{approvalRun(ApprovalDecision), 5, ToolStatusWaitingApproval, ApprovalStatusPending, PausedWaitingApproval},
		{approvalRun(ApprovalDecision), 8, ToolStatusRunning, ApprovalStatusApproved, PausedWaitingTool},
		{approvalRun(ApprovalDecision), 9, ToolStatusSucceeded, ApprovalStatusApproved, Running},
		{approvalRun(ApprovalExpired), 8, ToolStatusTimeout, ApprovalStatusExpired, Running},
	} {
		call, found, err := FoldToolCall(c.events[:c.n], id)
		if err != nil || !found || call.Status != c.status || c.approval != 0 && (call.Approval == nil || call.Approval.Status != c.approval) {
			t.Errorf("after %d events: got %+v, error %v; want %s, approval %s", c.n, call, err, c.status, c.approval)
		}
		if r, err := Fold(c.events[:c.n]); err != nil || r.Status != c.run {
			t.Errorf("after %d events: run %s, error %v; want %s", c.n, r.Status, err, c.run)
		}
	}
	if _, found, err := FoldToolCall(approvalRun(ApprovalDecision), ToolCallID{parent, 2, 0}); found || err != nil {
		t.Errorf("got a call at another place, error %v", err)
	}
}

// An illegal transition is an error.
func TestIllegalTransitionsOfToolCalls(t *testing.T) {
	for _, c := range []struct {
		change func(all []Event) []Event
		want   string
	}{
		{func(all []Event) []Event { return append(all[:6:6], all[7]) }, "its approval is PENDING"},
		{func(all []Event) []Event { return append(all[:3:3], all[7]) }, ""},
		{func(all []Event) []Event { return append(all[:4:4], all[6]) }, "needs no approval"},
		{func(all []Event) []Event { return append(all[:7:7], all[6]) }, "an approval cannot go from APPROVED to APPROVED"},
		{func(all []Event) []Event { return append(all[:6:6], all[8]) }, "a tool call cannot go from WAITING_APPROVAL to SUCCEEDED"},
	} {
		events := c.change(approvalRun(ApprovalDecision))
		events[len(events)-1].Seq = uint64(len(events))
		_, _, err := FoldToolCall(events, ToolCallID{parent, 1, 0})
		if _, foldErr := Fold(events); (err == nil) != (foldErr == nil) {
			t.Errorf("fold of the run: %v, of the call: %v", foldErr, err)
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}

func TestToolCallIDs(t *testing.T) {
	id := ToolCallID{parent, 7, 65535}
	if back, err := ParseToolCallID(id.String()); err != nil || back != id {
		t.Errorf("%s parses as %v, %v", id, back, err)
	}
	if back, err := ParseApprovalID(id.Approval()); err != nil || back != id {
		t.Errorf("%s parses as %v, %v", id.Approval(), back, err)
	}
	run := parent.String()
	for _, text := range []string{"", "tc_", id.Approval(), "tc_" + run, "tc_" + run + ".0.0", "tc_" + run + ".1.65536", "tc_" + run + ".01.0", "tc_" + run + ".1.0.0", "tc_x.1.0", "tc_" + strings.ToUpper(run) + ".1.0"} {
		if _, err := ParseToolCallID(text); err == nil {
			t.Errorf("%s is accepted", text)
		}
	}
}
