// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"fmt"
	"slices"
)

// Decision is the decision of a policy about one tool call. The zero value means that none
// was made.
type Decision uint8

// The decisions. Users write and see these names.
const (
	Allow           Decision = iota + 1
	RequireApproval          // a person decides
	Block                    // the call fails
)

var decisionNames = [...]string{Allow: "allow", RequireApproval: "require_approval", Block: "block"}

// String returns the name of the decision.
func (d Decision) String() string { return nameOf(decisionNames[:], int(d)) }

// ParseDecision parses the output of String.
func ParseDecision(text string) (Decision, error) {
	if i := slices.Index(decisionNames[:], text); i > 0 {
		return Decision(i), nil
	}
	return 0, fmt.Errorf("want one of allow, require_approval and block, got %.40q", text)
}
