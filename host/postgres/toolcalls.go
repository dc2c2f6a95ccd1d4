// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// toolChange is what a batch changes of a tool call. Its zero values change nothing.
type toolChange struct {
	id         runs.ToolCallID
	create     *runs.Event
	args       *string
	status     string // the last, "" for none; dispatched and timedOut stand for one that depends on the kind and the status before
	dispatched actor.Time
	ended      actor.Time
	result     *string
	refusal    *actor.Refusal
	decision   string
	approval   *runs.Event // created
	decide     *runs.Event
}

// The states that depend on the stored call.
const (
	dispatchedStatus = "dispatched"
	timedOutStatus   = "timed out"
)

// serverTool is the kind of a tool call that a server performs, as answers of the API show it.
const serverTool = "server_tool"

// tool notes an event of a tool call.
func tool(calls map[runs.ToolCallID]*toolChange, order []*toolChange, e *store.Entry, ev *runs.Event) []*toolChange {
	switch ev.Type {
	case runs.ToolCallCreated, runs.PolicyDecision, runs.ApprovalCreated, runs.ApprovalDecision, runs.ApprovalExpired, runs.ToolDispatched, runs.ToolResult:
	default:
		return order
	}
	id := runs.ToolCallID{Run: ev.Run, Step: ev.Step, Index: ev.Index}
	c := calls[id]
	if c == nil {
		c = &toolChange{id: id}
		calls[id], order = c, append(order, c)
	}
	switch ev.Type {
	case runs.ToolCallCreated:
		c.create, c.status, c.args = ev, runs.ToolStatusCreated.String(), jsonOf(contentOf(store.AskedParts(e, ev.Step, ev.Index), ev.Text))
	case runs.PolicyDecision:
		c.decision, c.status = ev.Kind, runs.ToolStatusPolicyChecked.String()
		if ev.Kind == runs.Block.String() {
			c.status = runs.ToolStatusBlocked.String()
		}
	case runs.ApprovalCreated:
		c.approval, c.status = ev, runs.ToolStatusWaitingApproval.String()
	case runs.ApprovalDecision, runs.ApprovalExpired:
		c.decide = ev
	case runs.ToolDispatched:
		c.dispatched, c.status = ev.At, dispatchedStatus
	case runs.ToolResult:
		c.end(e, ev)
	}
	return order
}

func (c *toolChange) end(e *store.Entry, ev *runs.Event) {
	c.ended, c.refusal = ev.At, ev.Refusal
	if ev.Refusal == nil {
		c.result = jsonOf(contentOf(store.AnsweredParts(e, ev.Step, ev.Index), ev.Text))
	}
	switch {
	case c.status == runs.ToolStatusBlocked.String():
	case ev.Refusal == nil:
		c.status = runs.ToolStatusSucceeded.String()
	case ev.Refusal.Reason != actor.Deadline:
		c.status = runs.ToolStatusFailed.String()
	case c.status == dispatchedStatus || c.status == runs.ToolStatusWaitingApproval.String():
		c.status = runs.ToolStatusTimeout.String()
	case c.status == runs.ToolStatusCreated.String() || c.status == runs.ToolStatusPolicyChecked.String():
		c.status = runs.ToolStatusFailed.String()
	default:
		c.status = timedOutStatus
	}
}

// contentOf returns the whole content of a call or a result, or what its event shows of it.
func contentOf(parts []actor.Part, shown string) []byte {
	if len(parts) == 1 && parts[0].Blob.IsZero() {
		return parts[0].Bytes
	}
	return []byte(shown)
}

func (c *toolChange) addTo(t *tables) {
	status := c.status
	if c.create != nil {
		kind := c.create.Kind
		if kind == runs.KindTool {
			kind = serverTool
		}
		switch status {
		case dispatchedStatus:
			status = runs.ToolStatusRunning.String()
			if kind == runs.KindClient {
				status = runs.ToolStatusWaitingClient.String()
			}
		case timedOutStatus:
			status = runs.ToolStatusTimeout.String()
		}
		var approval *string
		if c.approval != nil {
			approval = text(c.approval.Approval)
		}
		t.created.add(text(c.id.String()), idOrNull(c.id.Run), text(c.create.Name), text(kind), text(status), c.args, c.result, refusalOrNull(c.refusal), approval,
			timeOf(c.create.At), timeOrNull(c.dispatched), timeOrNull(c.ended), textOrNull(c.decision), number(c.create.Seq))
	} else {
		var approval *string
		if c.approval != nil {
			approval = text(c.approval.Approval)
		}
		t.changed.add(text(c.id.String()), textOrNull(status), c.result, refusalOrNull(c.refusal), approval, timeOrNull(c.dispatched), timeOrNull(c.ended), textOrNull(c.decision))
	}
	if a := c.approval; a != nil {
		t.asked.add(text(a.Approval), idOrNull(c.id.Run), text(c.id.String()), timeOf(a.At), textOrNull(a.Text), timeOrNull(a.Until), number(a.Seq))
	}
	if d := c.decide; d != nil {
		status := d.Kind
		if d.Type == runs.ApprovalExpired {
			status = runs.ApprovalStatusExpired.String()
		}
		t.decided.add(text(d.Approval), text(status), timeOrNull(d.At), textOrNull(d.Principal), textOrNull(d.Text))
	}
}
