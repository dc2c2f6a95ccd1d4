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
	Until     actor.Time // it expires then
	Turn      int        // see ApprovalPosition
	Approver  string     // one of runs.Approvers, or ""
}

func (e *encoder) toolCallID(id runs.ToolCallID) {
	e.CallID(id.Run)
	e.Uint(uint64(id.Step))
	e.Uint(uint64(id.Index))
}

func (d *decoder) toolCallID() runs.ToolCallID {
	return runs.ToolCallID{Run: d.CallID(), Step: uint32(d.UintMax(1<<32-1, "step")), Index: uint16(d.UintMax(1<<16-1, "index"))}
}

func (e *encoder) tool(t *Tool) {
	e.String(t.Name)
	e.Hash(t.Hash)
	e.String(t.Owner)
	e.Bytes(t.Definition)
}

func (d *decoder) tool() Tool { return Tool{d.text(), d.Hash(), d.text(), d.Bytes(bytesMax)} }

func (e *encoder) toolCall(t *ToolCall) {
	c := &t.Call
	e.owner(t.Owner)
	e.IDs(t.Chain)
	e.String(t.Principal)
	e.toolCallID(c.ID)
	e.String(c.Name)
	e.Uint(uint64(c.Status))
	e.String(c.Decision)
	e.String(c.Rule)
	e.Bool(c.Approval != nil)
	if a := c.Approval; a != nil {
		e.Uint(uint64(a.Status))
		e.String(a.Summary)
		e.String(a.By)
		e.String(a.Reason)
		e.Int(int64(a.Created))
		e.Int(int64(a.Until))
		e.Int(int64(a.Decided))
	}
	e.String(c.Args)
	e.String(c.Result)
	e.Bool(c.Truncated)
	e.Bool(c.OnDevice)
	e.Refusal(c.Refusal)
	e.Uint(uint64(c.Attempt))
	e.Int(int64(c.Created))
	e.Int(int64(c.Dispatched))
	e.Int(int64(c.Ended))
	e.Parts(t.Result)
	e.String(t.Approver)
}

func (d *decoder) toolCall() ToolCall {
	t := ToolCall{Owner: d.owner(), Chain: d.IDs(), Principal: d.text()}
	c := &t.Call
	c.ID, c.Name = d.toolCallID(), d.text()
	c.Status = runs.ToolStatus(d.UintMax(uint64(runs.ToolStatusTimeout), "status of a tool call"))
	c.Decision, c.Rule = d.text(), d.text()
	if d.Bool() {
		c.Approval = &runs.Approval{Status: runs.ApprovalStatus(d.UintMax(uint64(runs.ApprovalStatusExpired), "status of an approval")),
			Summary: d.text(), By: d.text(), Reason: d.text(), Created: d.time(), Until: d.time(), Decided: d.time()}
	}
	c.Args, c.Result, c.Truncated, c.OnDevice, c.Refusal = d.text(), d.text(), d.Bool(), d.Bool(), d.Refusal()
	c.Attempt = uint32(d.UintMax(1<<32-1, "attempt"))
	c.Created, c.Dispatched, c.Ended = d.time(), d.time(), d.time()
	t.Result, t.Approver = d.Parts(), d.text()
	return t
}

func (e *encoder) approval(a *Approval) {
	e.toolCallID(a.ID)
	e.ID(a.Actor)
	e.CallID(a.Root)
	e.String(a.Tool)
	e.Bytes(a.Args)
	e.String(a.Summary)
	e.String(a.Principal)
	e.Int(int64(a.Created))
	e.Int(int64(a.Until))
	e.Int(int64(a.Turn))
	e.String(a.Approver)
}

func (d *decoder) approval() Approval {
	return Approval{d.toolCallID(), d.ID(), d.CallID(), d.text(), d.Bytes(bytesMax), d.text(), d.text(), d.time(), d.time(), int(d.Int()), d.text()}
}
