// SPDX-License-Identifier: Apache-2.0

package client

import (
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/runs"
)

// A customer whose decision comes too late learns that, and neither who has decided nor why.
func TestCustomerSeesNoDecider(t *testing.T) {
	call := &runs.ToolCall{Budget: true, Result: `{"tokens":70}`, Approval: &runs.Approval{Status: runs.ApprovalStatusApproved, By: "boss", Reason: "good buyer", Decided: 1_796_000_000_000_000_000}}
	for _, scope := range []ingress.Scope{ingress.ScopeChat, ingress.ScopeCall} {
		c := &Client{By: actor.Principal{User: "alice", Scopes: []string{string(scope)}}}
		detail := c.decidedRefusal(call).Detail
		for _, part := range []string{"boss", "good buyer", "70"} {
			if strings.Contains(detail, part) != (scope != ingress.ScopeChat) {
				t.Errorf("%s: %s, part %s", scope, detail, part)
			}
		}
		if !strings.HasPrefix(detail, "the approval is APPROVED since 2026-") {
			t.Errorf("%s: %s", scope, detail)
		}
	}
}
