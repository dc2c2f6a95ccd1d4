// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"fmt"
	"slices"
)

// ApprovalStatus is the state of an approval: of one tool call, with the very
// arguments that a person was shown. The zero ApprovalStatus is that of one not
// yet asked for.
type ApprovalStatus uint8

// The states of an approval, under the names that clients see.
const (
	ApprovalStatusPending ApprovalStatus = iota + 1
	ApprovalStatusApproved
	ApprovalStatusRejected
	ApprovalStatusExpired // its time is over, its run has ended, or its arguments were edited
)

var approvalNames = [...]string{
	ApprovalStatusPending: "PENDING", ApprovalStatusApproved: "APPROVED", ApprovalStatusRejected: "REJECTED", ApprovalStatusExpired: "EXPIRED",
}

// approvalTransitions lists what may follow each state. A decision is never changed:
// whoever wants another, or other arguments, needs another approval.
var approvalTransitions = [...][]ApprovalStatus{
	0:                      {ApprovalStatusPending},
	ApprovalStatusPending:  {ApprovalStatusApproved, ApprovalStatusRejected, ApprovalStatusExpired},
	ApprovalStatusApproved: {},
	ApprovalStatusRejected: {},
	ApprovalStatusExpired:  {},
}

// ApprovalStatuses lists the closed set in its order.
func ApprovalStatuses() []ApprovalStatus {
	return []ApprovalStatus{ApprovalStatusPending, ApprovalStatusApproved, ApprovalStatusRejected, ApprovalStatusExpired}
}

// String is the state's name.
func (s ApprovalStatus) String() string { return nameOf(approvalNames[:], int(s)) }

// ParseApprovalStatus reads what String writes.
func ParseApprovalStatus(text string) (ApprovalStatus, error) {
	if i := slices.Index(approvalNames[:], text); i > 0 {
		return ApprovalStatus(i), nil
	}
	return 0, fmt.Errorf("approval status %.40q: want one of %v", text, approvalNames[1:])
}

// Ended tells whether nothing can follow.
func (s ApprovalStatus) Ended() bool { return s > ApprovalStatusPending }

// ApprovalTransition says why an approval may not go from one state to the other, or nil.
func ApprovalTransition(from, to ApprovalStatus) error {
	if int(from) < len(approvalTransitions) && slices.Contains(approvalTransitions[from], to) {
		return nil
	}
	return fmt.Errorf("an approval cannot go from %s to %s", from, to)
}
