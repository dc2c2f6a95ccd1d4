// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"fmt"
	"slices"
)

// ToolStatus is the state of a tool call. The zero value means that the call has
// not been made.
type ToolStatus uint8

// The states of a tool call. Clients see these names.
const (
	ToolStatusCreated         ToolStatus = iota + 1
	ToolStatusPolicyChecked              // decided: allow, ask a person, or block; the decision is recorded before it takes effect
	ToolStatusWaitingApproval            // the timeout of the tool is not running yet
	ToolStatusDispatched                 // handed to the host; the timeout is running
	ToolStatusRunning                    // a tool of the server has started
	ToolStatusWaitingClient              // a device of the user has been asked
	ToolStatusBlocked
	ToolStatusSucceeded
	ToolStatusFailed // also rejected by a person, cancelled with its run, or of unknown outcome
	ToolStatusTimeout
)

var toolNames = [...]string{
	ToolStatusCreated: "CREATED", ToolStatusPolicyChecked: "POLICY_CHECKED", ToolStatusWaitingApproval: "WAITING_APPROVAL",
	ToolStatusDispatched: "DISPATCHED", ToolStatusRunning: "RUNNING", ToolStatusWaitingClient: "WAITING_CLIENT",
	ToolStatusBlocked: "BLOCKED", ToolStatusSucceeded: "SUCCEEDED", ToolStatusFailed: "FAILED", ToolStatusTimeout: "TIMEOUT",
}

// toolTransitions lists the legal successors of each state. Any open call may
// fail, because its run may end. Only a call that has started can succeed.
var toolTransitions = [...][]ToolStatus{
	0:                         {ToolStatusCreated},
	ToolStatusCreated:         {ToolStatusPolicyChecked, ToolStatusFailed},
	ToolStatusPolicyChecked:   {ToolStatusWaitingApproval, ToolStatusDispatched, ToolStatusBlocked, ToolStatusFailed},
	ToolStatusWaitingApproval: {ToolStatusDispatched, ToolStatusFailed, ToolStatusTimeout},
	ToolStatusDispatched:      {ToolStatusRunning, ToolStatusWaitingClient, ToolStatusFailed, ToolStatusTimeout},
	ToolStatusRunning:         {ToolStatusSucceeded, ToolStatusFailed, ToolStatusTimeout},
	ToolStatusWaitingClient:   {ToolStatusSucceeded, ToolStatusFailed, ToolStatusTimeout},
	ToolStatusBlocked:         {},
	ToolStatusSucceeded:       {},
	ToolStatusFailed:          {},
	ToolStatusTimeout:         {},
}

// ToolStatuses returns all states in order.
func ToolStatuses() []ToolStatus {
	return []ToolStatus{ToolStatusCreated, ToolStatusPolicyChecked, ToolStatusWaitingApproval, ToolStatusDispatched, ToolStatusRunning,
		ToolStatusWaitingClient, ToolStatusBlocked, ToolStatusSucceeded, ToolStatusFailed, ToolStatusTimeout}
}

// String returns the name of the state.
func (s ToolStatus) String() string { return nameOf(toolNames[:], int(s)) }

// ParseToolStatus parses the output of String.
func ParseToolStatus(text string) (ToolStatus, error) {
	if i := slices.Index(toolNames[:], text); i > 0 {
		return ToolStatus(i), nil
	}
	return 0, fmt.Errorf("tool call status %.40q: want one of %v", text, toolNames[1:])
}

// Ended reports whether the state has no successor.
func (s ToolStatus) Ended() bool { return s >= ToolStatusBlocked }

// Advances reports whether the run may continue with a result of the tool call.
// Any other end is a failure, which the agent handles or which ends the run.
func (s ToolStatus) Advances() bool { return s == ToolStatusSucceeded }

// ToolTransition returns an error unless a tool call may change from one state to
// the other.
func ToolTransition(from, to ToolStatus) error {
	if int(from) < len(toolTransitions) && slices.Contains(toolTransitions[from], to) {
		return nil
	}
	return fmt.Errorf("a tool call cannot go from %s to %s", from, to)
}
