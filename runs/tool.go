// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"fmt"
	"slices"
)

// ToolStatus is the state of a tool call. The zero ToolStatus is that of one not yet made.
type ToolStatus uint8

// The states of a tool call, under the names that clients see.
const (
	ToolStatusCreated         ToolStatus = iota + 1
	ToolStatusPolicyChecked              // allow, ask a person, or block: recorded before it is followed
	ToolStatusWaitingApproval            // its own time does not run yet
	ToolStatusDispatched                 // handed to the world; from here on its time runs
	ToolStatusRunning                    // a tool of the server's has begun
	ToolStatusWaitingClient              // a device of the user's has been asked
	ToolStatusBlocked
	ToolStatusSucceeded
	ToolStatusFailed // also refused by a person, cancelled with its run, or of unknown outcome
	ToolStatusTimeout
)

var toolNames = [...]string{
	ToolStatusCreated: "CREATED", ToolStatusPolicyChecked: "POLICY_CHECKED", ToolStatusWaitingApproval: "WAITING_APPROVAL",
	ToolStatusDispatched: "DISPATCHED", ToolStatusRunning: "RUNNING", ToolStatusWaitingClient: "WAITING_CLIENT",
	ToolStatusBlocked: "BLOCKED", ToolStatusSucceeded: "SUCCEEDED", ToolStatusFailed: "FAILED", ToolStatusTimeout: "TIMEOUT",
}

// toolTransitions lists what may follow each state. Whatever is open may fail, because
// its run may end; only what has begun can succeed.
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

// ToolStatuses lists the closed set in its order.
func ToolStatuses() []ToolStatus {
	return []ToolStatus{ToolStatusCreated, ToolStatusPolicyChecked, ToolStatusWaitingApproval, ToolStatusDispatched, ToolStatusRunning,
		ToolStatusWaitingClient, ToolStatusBlocked, ToolStatusSucceeded, ToolStatusFailed, ToolStatusTimeout}
}

// String is the state's name.
func (s ToolStatus) String() string { return nameOf(toolNames[:], int(s)) }

// ParseToolStatus reads what String writes.
func ParseToolStatus(text string) (ToolStatus, error) {
	if i := slices.Index(toolNames[:], text); i > 0 {
		return ToolStatus(i), nil
	}
	return 0, fmt.Errorf("tool call status %.40q: want one of %v", text, toolNames[1:])
}

// Ended tells whether nothing can follow.
func (s ToolStatus) Ended() bool { return s >= ToolStatusBlocked }

// Advances tells whether the run may go on from the tool call with a result.
// Any other end is a failure, which the agent handles or which ends the run.
func (s ToolStatus) Advances() bool { return s == ToolStatusSucceeded }

// ToolTransition says why a tool call may not go from one state to the other, or nil.
func ToolTransition(from, to ToolStatus) error {
	if int(from) < len(toolTransitions) && slices.Contains(toolTransitions[from], to) {
		return nil
	}
	return fmt.Errorf("a tool call cannot go from %s to %s", from, to)
}
