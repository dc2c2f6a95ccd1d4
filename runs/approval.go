// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"fmt"
	"slices"
)

// ApprovalStatus is the state of an approval of one tool call with exactly the
// arguments shown to a person. The zero value means that the approval has not been
// requested.
type ApprovalStatus uint8

// The states of an approval. Clients see these names.
const (
	ApprovalStatusPending ApprovalStatus = iota + 1
	ApprovalStatusApproved
	ApprovalStatusRejected
	ApprovalStatusExpired // timed out, or its run ended, or its arguments were edited
)

var approvalNames = [...]string{
	ApprovalStatusPending: "PENDING", ApprovalStatusApproved: "APPROVED", ApprovalStatusRejected: "REJECTED", ApprovalStatusExpired: "EXPIRED",
}

// approvalTransitions lists the legal successors of each state. A decision is
// final: a different decision, or different arguments, require a new approval.
var approvalTransitions = [...][]ApprovalStatus{
	0:                      {ApprovalStatusPending},
	ApprovalStatusPending:  {ApprovalStatusApproved, ApprovalStatusRejected, ApprovalStatusExpired},
	ApprovalStatusApproved: {},
	ApprovalStatusRejected: {},
	ApprovalStatusExpired:  {},
}

// ApprovalStatuses returns all states in order.
func ApprovalStatuses() []ApprovalStatus {
	return []ApprovalStatus{ApprovalStatusPending, ApprovalStatusApproved, ApprovalStatusRejected, ApprovalStatusExpired}
}

// String returns the name of the state.
func (s ApprovalStatus) String() string { return nameOf(approvalNames[:], int(s)) }

// ParseApprovalStatus parses the output of String.
func ParseApprovalStatus(text string) (ApprovalStatus, error) {
	if i := slices.Index(approvalNames[:], text); i > 0 {
		return ApprovalStatus(i), nil
	}
	return 0, fmt.Errorf("approval status %.40q: want one of %v", text, approvalNames[1:])
}

// Ended reports whether the state has no successor.
func (s ApprovalStatus) Ended() bool { return s > ApprovalStatusPending }

// ApprovalKind returns the value of Kind in the events of an approval: of a budget, or of a tool call.
func ApprovalKind(budget bool) string {
	if budget {
		return KindBudget
	}
	return KindTool
}

// The approvers of a call that requires an approval. Without one of them, every principal with the right to
// decide on this server is an approver, but no customer.
const (
	ApproverRequester = "requester" // the user who began the tree of the run, and operators
	ApproverOperator  = "operator"  // operators
	ApproverOther     = "other"     // every principal with that right but the user who began the tree of the run
)

// Approvers are the values of the field approver of rules and tools.
var Approvers = []string{ApproverRequester, ApproverOperator, ApproverOther}

// ApprovalTransition returns an error unless an approval may change from one state
// to the other.
func ApprovalTransition(from, to ApprovalStatus) error {
	if int(from) < len(approvalTransitions) && slices.Contains(approvalTransitions[from], to) {
		return nil
	}
	return fmt.Errorf("an approval cannot go from %s to %s", from, to)
}
