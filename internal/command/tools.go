// SPDX-License-Identifier: Apache-2.0

package command

import (
	"cmp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// ApprovalsMax is the maximum number of approvals of a list.
const ApprovalsMax = 1000

type (
	// ToolsQuery asks for the declared tools.
	ToolsQuery struct{}
	// ToolCallQuery asks for a tool call and its approval, if it needs one.
	ToolCallQuery struct{ ID runs.ToolCallID }
	// ApprovalsQuery asks for the tool calls of the principal's namespace that wait for a
	// person, the oldest first. Those of all namespaces are in turns of them: the oldest of each, then the
	// second of each. It is refused while the node is loading its open runs.
	ApprovalsQuery struct {
		Root      actor.CallID // only those in the tree of this root run; zero for all
		After     ApprovalPosition
		Limit     int  // at most ApprovalsMax, which is the default
		EveryUser bool // of all namespaces, which needs the scope operator
		Clients   bool // instead of them the calls of client tools that wait for a device
	}
)

// ApprovalPosition is the place of an approval in a list. The zero value is its start.
type ApprovalPosition struct {
	Turn    int // in a list of all namespaces: how many of its own precede it
	Created actor.Time
	ID      runs.ToolCallID
}

// Compare compares two positions.
func (p ApprovalPosition) Compare(q ApprovalPosition) int {
	return cmp.Or(cmp.Compare(p.Turn, q.Turn), cmp.Compare(p.Created, q.Created), p.ID.Run.Compare(q.ID.Run), cmp.Compare(p.ID.Step, q.ID.Step), cmp.Compare(p.ID.Index, q.ID.Index))
}

// Position returns the place of an approval in a list.
func (a *Approval) Position() ApprovalPosition { return ApprovalPosition{a.Turn, a.Created, a.ID} }

func (ToolsQuery) query()     {}
func (ToolCallQuery) query()  {}
func (ApprovalsQuery) query() {}

func (ToolsQuery) returns(Tools)         {}
func (ToolCallQuery) returns(ToolCall)   {}
func (ApprovalsQuery) returns(Approvals) {}

func (Tools) result()     {}
func (ToolCall) result()  {}
func (Approvals) result() {}

// Tools lists the declared tools of a node, sorted by name.
type Tools struct{ All []Tool }

// Tool is a declared tool.
type Tool struct {
	Name       string
	Hash       actor.Hash // of the definition
	Owner      string     // principal that declared it
	Definition []byte     // JSON of tools.Declared
}

// ToolCall is the state of a tool call.
type ToolCall struct {
	Owner     Owner      // of its run
	Chain     []actor.ID // callers of its run
	Principal string     // that its run acts for
	Call      runs.ToolCall
	Result    []actor.Part // the whole result; nil if there is none
	Approver  string       // who decides, while it waits: one of runs.Approvers, "" or ApproverUnknown
	Raise     actor.Purse  // what the approval of a budget adds while it waits; see Approval
}

// ApproverUnknown is the approver of a call that waits, while its cell is still loading its open runs.
const ApproverUnknown = "unknown"

// Approvals lists tool calls that wait for a person.
type Approvals struct {
	All  []Approval
	More bool // others follow the last one
}

// Approval is a tool call that waits for a person.
type Approval struct {
	ID        runs.ToolCallID
	Actor     actor.ID     // of the run that made the call
	Root      actor.CallID // root run of the tree
	Tool      string
	Args      []byte // canonical JSON
	Summary   string // of the arguments
	Principal string // that the run acts for
	Created   actor.Time
	Until     actor.Time  // it expires then
	Turn      int         // see ApprovalPosition
	Approver  string      // one of runs.Approvers, or ""
	Budget    bool        // it is a larger budget for a request to the model Tool
	Raise     actor.Purse // what its approval adds to that if it says nothing else
}
