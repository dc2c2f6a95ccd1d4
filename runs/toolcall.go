// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"fmt"

	"github.com/troupe-run/troupe/actor"
)

// ToolCall is the state of a tool call, derived from the events of its run.
type ToolCall struct {
	ID         ToolCallID
	Name       string
	OnDevice   bool // a device of the user performs the tool
	Budget     bool // it is a larger budget for a request to the model with this name
	Status     ToolStatus
	Decision   string // of the policy; empty for tools of this program
	Rule       string // that led to the decision
	Approval   *Approval
	Args       string // content as text, see Event.SetText
	Result     string
	Truncated  bool // Args or Result is cut
	Refusal    *actor.Refusal
	Attempt    uint32 // of the last dispatch
	Created    actor.Time
	Dispatched actor.Time // first dispatch; 0 before
	Ended      actor.Time // 0 before
}

// Approval is the decision of a person about a tool call.
type Approval struct {
	Status  ApprovalStatus
	Summary string // of the arguments
	By      string // principal that decided
	Reason  string // that it gave, or the cause of the expiry
	Created actor.Time
	Until   actor.Time // expiry without a decision
	Decided actor.Time // 0 while pending
}

// newToolCall returns the tool call that an event of type ToolCallCreated begins.
func newToolCall(e *Event) (ToolCall, error) {
	c := ToolCall{ID: ToolCallID{e.Run, e.Step, e.Index}, Name: e.Name, OnDevice: e.Kind == KindClient, Budget: e.Kind == KindBudget, Args: e.Text, Truncated: e.Truncated, Created: e.At}
	return c, c.enter(ToolStatusCreated)
}

// FoldToolCall derives the state of a tool call from events of its run, in order. It
// returns false if they do not begin the call.
func FoldToolCall(events []Event, id ToolCallID) (c ToolCall, found bool, err error) {
	for i := range events {
		e := &events[i]
		switch {
		case e.Type == RunDone || e.Type == RunFailed || e.Type == RunCancelled:
			if found && !c.Status.Ended() {
				c.endWithRun(e)
			}
		case e.Run != id.Run || e.Step != id.Step || e.Index != id.Index:
		case e.Type == ToolCallCreated:
			c, err = newToolCall(e)
			found = true
		case found:
			err = c.apply(e)
		}
		if err != nil {
			return c, found, applyError(e, err)
		}
	}
	return c, found, nil
}

// enter changes the status. It returns an error for an illegal transition.
func (c *ToolCall) enter(to ToolStatus) error {
	if err := ToolTransition(c.Status, to); err != nil {
		return err
	}
	c.Status = to
	return nil
}

// decide changes the status of the approval. It returns an error for an illegal transition.
func (c *ToolCall) decide(to ApprovalStatus, e *Event) error {
	if c.Approval == nil {
		return fmt.Errorf("%s, but tool call %s needs no approval", e.Type, c.ID)
	}
	if err := ApprovalTransition(c.Approval.Status, to); err != nil {
		return err
	}
	a := *c.Approval // an earlier state may refer to it
	a.Status, a.By, a.Reason, a.Decided = to, e.Principal, e.Text, e.At
	c.Approval = &a
	return nil
}

// apply adds a later event of the call. Calls of other tools than declared ones have no events of
// the policy and of the start. They pass through the states between without them.
func (c *ToolCall) apply(e *Event) error {
	switch e.Type {
	case PolicyDecision:
		c.Decision, c.Rule = e.Kind, e.Text
		if err := c.enter(ToolStatusPolicyChecked); err != nil || e.Kind != Block.String() {
			return err
		}
		return c.enter(ToolStatusBlocked)
	case ApprovalCreated:
		c.Approval = &Approval{Status: ApprovalStatusPending, Summary: e.Text, Created: e.At, Until: e.Until}
		if c.Budget { // no policy decides about it
			if err := c.enter(ToolStatusPolicyChecked); err != nil {
				return err
			}
		}
		return c.enter(ToolStatusWaitingApproval)
	case ApprovalDecision:
		status, err := ParseApprovalStatus(e.Kind)
		if err != nil {
			return err
		}
		return c.decide(status, e)
	case ApprovalExpired:
		return c.decide(ApprovalStatusExpired, e)
	case ToolDispatched:
		return c.dispatch(e)
	case Attempt:
		c.Attempt = max(c.Attempt, e.Attempt)
	case ToolResult:
		return c.end(e)
	}
	return nil
}

func (c *ToolCall) dispatch(e *Event) error {
	if c.Approval != nil && c.Approval.Status != ApprovalStatusApproved {
		return fmt.Errorf("tool call %s dispatched, but its approval is %s", c.ID, c.Approval.Status)
	}
	if c.Status == ToolStatusCreated { // a tool of this program
		if err := c.enter(ToolStatusPolicyChecked); err != nil {
			return err
		}
	}
	c.Attempt = max(c.Attempt, e.Attempt)
	c.Dispatched = e.At
	if err := c.enter(ToolStatusDispatched); err != nil {
		return err
	}
	if c.OnDevice {
		return c.enter(ToolStatusWaitingClient)
	}
	return c.enter(ToolStatusRunning)
}

func (c *ToolCall) end(e *Event) error {
	c.Result, c.Refusal, c.Ended = e.Text, e.Refusal, e.At
	c.Truncated = c.Truncated || e.Truncated
	to := ToolStatusSucceeded
	switch {
	case c.Status == ToolStatusBlocked:
		return nil
	case e.Refusal != nil && (e.Refusal.Reason == actor.Deadline) && c.Status != ToolStatusCreated && c.Status != ToolStatusPolicyChecked:
		to = ToolStatusTimeout
	case e.Refusal != nil:
		to = ToolStatusFailed
	}
	if to != ToolStatusFailed && c.Status == ToolStatusCreated { // a tool of this program that answered at once
		for _, s := range [...]ToolStatus{ToolStatusPolicyChecked, ToolStatusDispatched, ToolStatusRunning} {
			if err := c.enter(s); err != nil {
				return err
			}
		}
	}
	return c.enter(to)
}

// endWithRun ends an open call because its run has ended: its approval expires.
func (c *ToolCall) endWithRun(e *Event) {
	why := "the run has ended"
	if c.Status == ToolStatusRunning || c.Status == ToolStatusWaitingClient {
		why += ", and the call may have been performed"
	}
	c.Status, c.Ended, c.Refusal = ToolStatusFailed, e.At, actor.Refuse(actor.Stopped, "%s", why)
	if c.Approval != nil && !c.Approval.Status.Ended() {
		a := *c.Approval
		a.Status, a.Reason, a.Decided = ApprovalStatusExpired, "the run has ended", e.At
		c.Approval = &a
	}
}
