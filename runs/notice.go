// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"fmt"
	"slices"

	"github.com/troupe-run/troupe/actor"
)

// Notice is the kind of a message to those who operate a server. The set is closed.
type Notice uint8

// The kinds of notices.
const (
	NoticeApprovalRequired Notice = iota + 1 // a tool call waits for a person
	NoticeApprovalExpired                    // an approval ended without a decision
	NoticeRunFailed                          // a root run failed
	NoticeOutcomeUnknown                     // it is unknown whether a call was performed
	NoticeRunParked                          // a run waits until a person retries or cancels it
	NoticeMCPChanged                         // the changed tools of an MCP server wait for their acceptance
)

var noticeNames = [...]string{NoticeApprovalRequired: "approval_required", NoticeApprovalExpired: "approval_expired", NoticeRunFailed: "run_failed",
	NoticeOutcomeUnknown: "outcome_unknown", NoticeRunParked: "run_parked", NoticeMCPChanged: "mcp_changed"}

// NoticeNames returns the names of all kinds.
func NoticeNames() []string { return slices.Clone(noticeNames[1:]) }

// String returns the name of the kind.
func (n Notice) String() string {
	if n == 0 || int(n) >= len(noticeNames) {
		return fmt.Sprintf("unknown(%d)", n)
	}
	return noticeNames[n]
}

// ParseNotice parses the output of String.
func ParseNotice(name string) (Notice, bool) {
	i := slices.Index(noticeNames[1:], name)
	return Notice(i + 1), i >= 0
}

// Notices returns the kinds of the notices of an event, at most two. NoticeRunFailed is among them for any
// run that fails: an event does not show whether its run is a root run.
func (e *Event) Notices() []Notice {
	unknown := e.Refusal != nil && e.Refusal.Reason == actor.Unknown
	switch {
	case e.Type == ApprovalCreated:
		return []Notice{NoticeApprovalRequired}
	case e.Type == ApprovalExpired:
		return []Notice{NoticeApprovalExpired}
	case e.Type == RunFailed:
		return []Notice{NoticeRunFailed}
	case (e.Type == ToolResult || e.Type == AgentInvokeDone) && unknown:
		return []Notice{NoticeOutcomeUnknown}
	case e.Type == RunPaused && unknown:
		return []Notice{NoticeOutcomeUnknown, NoticeRunParked}
	case e.Type == RunPaused && e.Refusal != nil:
		return []Notice{NoticeRunParked}
	}
	return nil
}
