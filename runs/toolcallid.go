// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/troupe-run/troupe/actor"
)

// ToolCallID identifies a tool call by its place in a run: the action of the turn, from 1,
// and the ask within the action, from 0.
type ToolCallID struct {
	Run   actor.CallID
	Step  uint32
	Index uint16
}

// Prefixes of the IDs that clients see. An approval has the place of its tool call.
const (
	toolCallPrefix = "tc_"
	approvalPrefix = "ap_"
)

// String returns the ID of the tool call, such as tc_0193….2.0 with the ID of the run.
func (id ToolCallID) String() string { return toolCallPrefix + id.place() }

// Approval returns the ID of the approval of the tool call.
func (id ToolCallID) Approval() string { return approvalPrefix + id.place() }

func (id ToolCallID) place() string {
	return id.Run.String() + "." + strconv.FormatUint(uint64(id.Step), 10) + "." + strconv.FormatUint(uint64(id.Index), 10)
}

// ParseToolCallID parses the output of String.
func ParseToolCallID(text string) (ToolCallID, error) {
	return parsePlace("tool call", toolCallPrefix, text)
}

// ParseApprovalID parses the output of Approval and returns the tool call.
func ParseApprovalID(text string) (ToolCallID, error) {
	return parsePlace("approval", approvalPrefix, text)
}

func parsePlace(what, prefix, text string) (id ToolCallID, err error) {
	bad := fmt.Errorf("ID %.80q of a %s: want %s<run_id>.<step>.<index>", text, what, prefix)
	place, ok := strings.CutPrefix(text, prefix)
	parts := strings.Split(place, ".")
	if !ok || len(parts) != 3 {
		return id, bad
	}
	run, err := actor.ParseCallID(parts[0])
	step, errStep := strconv.ParseUint(parts[1], 10, 32)
	index, errIndex := strconv.ParseUint(parts[2], 10, 16)
	id = ToolCallID{run, uint32(step), uint16(index)}
	if err != nil || errStep != nil || errIndex != nil || step == 0 || id.place() != place {
		return ToolCallID{}, bad
	}
	return id, nil
}
