// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/signals"
	"github.com/troupe-run/troupe/store"
)

// Approvals. A tool call that the policy does not simply allow waits for a person. Until the
// decision the clocks of its run and of the callers above are stopped. The decision arrives as a
// signal; the first one counts. An approved call is performed once its approval is durable.

// Approval is a tool call, or a request to a model beyond the budget of its run, that waits for a decision. In
// the result of ClientCalls it waits for a device.
type Approval struct {
	ID        runs.ToolCallID
	Actor     actor.ID
	Root      actor.CallID
	Chain     []actor.ID // callers of the run
	Tool      string
	OnDevice  bool   // a device of the user performs the tool
	Args      []byte // canonical JSON
	Summary   string
	Rule      string // of the policy
	Approver  string // one of runs.Approvers by the present policy, or ""
	Principal string // that the run acts for
	Created   actor.Time
	Until     actor.Time
	Raise     *actor.Purse // what an approval adds to the budget if it says nothing else; nil: it is no matter of a budget
}

// approvalOf returns the approval for which an ask of the last step waits.
func approvalOf(c *Cell, t *turn, i int) Approval {
	a, call := &t.run.Last()[i], &t.run.Call
	var raise *actor.Purse
	if a.AwaitsBudget() {
		raise = purses{c, t}.raise(a, nil)
	}
	summary := ""
	if a.Await != nil {
		summary = a.Await.Summary
	}
	return Approval{Raise: raise, Approver: approverOf(c, t, a), ID: t.toolCallID(i), Actor: t.act.id, Root: call.Root, Chain: call.Chain, Tool: a.ShownName(), OnDevice: a.OnDevice, Args: inlineBytes(a.Out().Parts),
		Summary: summary, Rule: a.Verdict.Rule, Principal: call.Principal, Created: a.Clock.Since, Until: a.Clock.Due()}
}

// approverOf returns who decides about a call of a tool. It is not recorded with the call: like the scopes
// of a key it is a matter of who may act now.
func approverOf(c *Cell, t *turn, a *store.Asked) string {
	tool, ok := c.tools.Tool(a.Out().Name)
	switch {
	case a.AwaitsBudget(): // those who are charged
		return runs.ApproverOperator
	case !ok:
		return ""
	}
	return c.tools.Policy().Decide(callerOf(c, t), &tool, inlineBytes(a.Out().Parts)).Approver
}

// PendingApproval returns the tool call of an actor with this ID if it waits for a decision.
func PendingApproval(c *Cell, of actor.ID, id runs.ToolCallID) (Approval, bool) {
	act := c.actors.find(of)
	if act == nil {
		return Approval{}, false
	}
	t := act.turn(id.Run)
	if t == nil || id.Step != t.step() || int(id.Index) >= len(t.run.Last()) || !t.run.Last()[id.Index].Waits() {
		return Approval{}, false
	}
	return approvalOf(c, t, int(id.Index)), true
}

// PendingApprovals returns the tool calls of a namespace, or with "" of all, that wait for a
// decision in this cell, in no order. It reports false while the cell is still loading its open runs.
func PendingApprovals(c *Cell, tenant string) (all []Approval, known bool) {
	return waitingAsks(c, tenant, (*store.Asked).Waits)
}

// ClientCalls returns the calls of client tools of a namespace, or with "" of all, that wait for a device in this
// cell, in no order. It reports false while the cell is still loading its open runs.
func ClientCalls(c *Cell, tenant string) (all []Approval, known bool) {
	return waitingAsks(c, tenant, func(a *store.Asked) bool { return a.OnDevice && a.Open() && !a.Waits() })
}

func waitingAsks(c *Cell, tenant string, waits func(*store.Asked) bool) (all []Approval, known bool) {
	for _, act := range c.actors.ordered() {
		if tenant != "" && act.id.Tenant != tenant {
			continue
		}
		for _, t := range act.turns {
			for i := range t.run.Last() {
				if waits(&t.run.Last()[i]) {
					all = append(all, approvalOf(c, t, i))
				}
			}
		}
	}
	return all, c.booted && c.recovery.done()
}

// decide decides about a tool call.
func (s received) decide() *actor.Refusal {
	d, i, refusal := s.findApproval()
	if refusal != nil {
		return refusal
	}
	c, t := s.cell, s.turn
	by := store.ShownAsk{Principal: s.call.Principal, Origin: s.call.Origin}
	given, budget := d.Raise.Purse(), t.run.Last()[i].AwaitsBudget()
	var changed *actor.Refusal
	switch {
	case budget:
		if refusal := (purses{c, t}).checkRaise(given); refusal != nil {
			return refusal
		}
	case given != nil:
		refusal := actor.Refuse(actor.Invalid, "raise: the approval is of a tool call, not of a budget")
		refusal.Field = "raise"
		return refusal
	default:
		changed = toolCalls{c, t}.recheck(i)
	}
	s.accept()
	switch {
	case d.Approve && budget:
		s.raise(i, &d, by)
	case d.Approve && changed != nil:
		toolCalls{c, t}.expire(i, changed.Detail)
		t.answerResult(c, i, actor.Answer{Refusal: changed})
		return actor.Refuse(actor.ApprovalDecided, "the approval has expired: %s", changed.Detail)
	case d.Approve:
		a := &t.run.Last()[i]
		left := min(t.run.Clock.Remaining(c.now), orDefault(a.Out().Timeout, c.limits.ToolTimeoutDefault))
		toolCalls{c, t}.resolve(i, runs.ApprovalStatusApproved, left, d.Reason, nil, by)
		t.perform(c, i)
	default:
		toolCalls{c, t}.resolve(i, runs.ApprovalStatusRejected, 0, d.Reason, nil, by)
		rejected := "a person rejected the call"
		if budget {
			rejected = "a person rejected a larger budget"
		}
		if d.Reason != "" {
			rejected += ": " + d.Reason
		}
		t.answerResult(c, i, actor.Answer{Refusal: actor.Refuse(actor.ApprovalRejected, "%s", rejected)})
	}
	s.done(signals.Decided{At: c.now}.Parts())
	return nil
}

// raise adds to the purse of the run, and sends the request that waits for it.
func (s received) raise(i int, d *signals.Decide, by store.ShownAsk) {
	c, t := s.cell, s.turn
	a := &t.run.Last()[i]
	left := min(t.run.Clock.Remaining(c.now), orDefault(a.Out().Timeout, c.limits.ModelTimeoutDefault))
	toolCalls{c, t}.resolve(i, runs.ApprovalStatusApproved, left, d.Reason, purses{c, t}.raise(a, d.Raise.Purse()), by)
	if t.agentTurn == nil { // the prompt is not persisted
		t.resumeEffect(c, i)
		return
	}
	t.perform(c, i)
}

// findApproval returns the decision in a signal and the index of the ask that waits for it.
func (s received) findApproval() (d signals.Decide, i int, refusal *actor.Refusal) {
	if d, refusal = signals.Decode[signals.Decide](s.call); refusal != nil {
		return d, 0, refusal
	}
	t := s.turn
	id, err := runs.ParseApprovalID(d.Approval)
	if err != nil || id.Run != t.run.Call.ID || id.Step > t.step() {
		return d, 0, actor.RefuseNotFound(actor.WhatApproval, "run %s has no approval %.80q", t.run.Call.ID, d.Approval)
	}
	asks := t.run.Steps[id.Step-1].Asks
	if int(id.Index) >= len(asks) || asks[id.Index].Await == nil {
		return d, 0, actor.RefuseNotFound(actor.WhatApproval, "run %s has no approval %.80q", t.run.Call.ID, d.Approval)
	}
	if a := &asks[id.Index]; !a.Waits() {
		return d, 0, actor.Refuse(actor.ApprovalDecided, "the approval is %s already", a.Await.Status)
	}
	return d, int(id.Index), nil
}

// expired ends a tool call without a decision in time.
func (s toolCalls) expired(i int) {
	c, t := s.cell, s.turn
	a := &t.run.Last()[i]
	c.emit(history.Event{Kind: history.Expire, Actor: t.act.id, Epoch: t.act.epoch, Parent: t.run.Call.ID, What: a.Out().Kind.String(), Step: t.step(), Index: uint16(i)})
	refusal := &actor.Refusal{Reason: actor.Deadline, Operation: "approve " + a.Out().Name, Timeout: a.Clock.Left,
		Detail: "nobody decided about the call of " + a.Out().Name + " in " + a.Clock.Left.String()}
	if a.AwaitsBudget() {
		refusal.Detail = "nobody decided about a larger budget for a request to model " + a.Out().Name + " in " + a.Clock.Left.String()
	}
	s.expire(i, "nobody decided in time")
	t.answerResult(c, i, actor.Answer{Refusal: refusal.Fit()})
}
