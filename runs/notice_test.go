// SPDX-License-Identifier: Apache-2.0

package runs_test

import (
	"slices"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

func TestNoticesOfEvents(t *testing.T) {
	unknown, refused := &actor.Refusal{Reason: actor.Unknown}, &actor.Refusal{Reason: actor.Rejected}
	for _, c := range []struct {
		event runs.Event
		want  []string
	}{
		{runs.Event{Type: runs.ApprovalCreated}, []string{"approval_required"}},
		{runs.Event{Type: runs.ApprovalRequired}, nil}, // the same approval, in the root run
		{runs.Event{Type: runs.ApprovalExpired}, []string{"approval_expired"}},
		{runs.Event{Type: runs.ApprovalDecision}, nil},
		{runs.Event{Type: runs.RunFailed, Refusal: refused}, []string{"run_failed"}},
		{runs.Event{Type: runs.RunCancelled, Refusal: refused}, nil},
		{runs.Event{Type: runs.ToolResult, Refusal: refused}, nil},
		{runs.Event{Type: runs.ToolResult, Refusal: unknown}, []string{"outcome_unknown"}},
		{runs.Event{Type: runs.AgentInvokeDone, Refusal: unknown}, []string{"outcome_unknown"}},
		{runs.Event{Type: runs.RunPaused, Name: "held"}, nil},
		{runs.Event{Type: runs.RunPaused, Refusal: refused}, []string{"run_parked"}},
		{runs.Event{Type: runs.RunPaused, Refusal: unknown}, []string{"outcome_unknown", "run_parked"}},
	} {
		var got []string
		for _, n := range c.event.Notices() {
			got = append(got, n.String())
			if again, ok := runs.ParseNotice(n.String()); !ok || again != n {
				t.Errorf("%s does not survive its text", n)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.event.Type, got, c.want)
		}
	}
}
