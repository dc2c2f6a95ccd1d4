// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/signals"
)

// Approval returns a tool call that waits, or waited, for a person.
func (c *Client) Approval(ctx context.Context, id runs.ToolCallID) (command.ToolCall, error) {
	found, err := find(ctx, c, command.ToolCallQuery{ID: id})
	if isNotFound(err) || err == nil && found.Call.Approval == nil {
		err = actor.ApprovalNotFound(id.Approval())
	}
	return found, err
}

// MayDecide refuses a client that may not decide about a waiting tool call. Operators may, unless the policy
// excludes the requester, the user who began the tree of the run. An agent is no substitute for its requester.
// If the policy names no approver, customers may not decide. A customer is not told which rule excludes it, nor
// what a key needs.
func (c *Client) MayDecide(ctx context.Context, found *command.ToolCall) error {
	err := c.mayDecide(ctx, found)
	if ingress.Chats(&c.By) && errors.As(err, new(*Forbidden)) {
		return &Forbidden{Detail: "a colleague of those who serve the chat decides about this, not its user"}
	}
	return err
}

func (c *Client) mayDecide(ctx context.Context, found *command.ToolCall) error {
	if c.Trusted {
		return nil
	}
	operator := ingress.Allows(c.By, ingress.ScopeOperator)
	requests := false
	if found.Approver == runs.ApproverRequester && !operator || found.Approver == runs.ApproverOther {
		root, err := find(ctx, c, command.RunQuery{Run: found.Owner.Root})
		if err != nil {
			return err
		}
		requests = c.By.User == root.Record.User || found.Approver == runs.ApproverOther && c.NamesUsers && !operator
	}
	switch {
	case found.Approver == command.ApproverUnknown:
		return actor.RefuseUnavailable(time.Second, "the node is still loading its open runs, and with them who decides")
	case found.Approver == runs.ApproverOther && requests:
		return &Forbidden{Detail: "somebody else than the user who asked decides about this tool call"}
	case found.Approver == runs.ApproverRequester && !operator && !requests:
		return &Forbidden{Detail: "the user who asked decides about this tool call, or an operator"}
	case found.Approver == runs.ApproverRequester:
	case found.Approver == runs.ApproverOperator && !operator:
		return lacksDecision(ingress.ScopeOperator, "an operator decides about this tool call")
	case ingress.Chats(&c.By):
		return &Forbidden{Detail: "a customer does not decide about this tool call"}
	case c.DecisionScope != "" && !ingress.Allows(c.By, c.DecisionScope):
		return lacksDecision(c.DecisionScope, "on this server a decision about a tool call needs the scope "+string(c.DecisionScope))
	}
	return c.checkRegistrar(ctx, found)
}

func lacksDecision(scope ingress.Scope, why string) *Forbidden {
	return &Forbidden{string(scope), fmt.Sprintf("%s; `troupe keys create --scope %s --data DIR` makes a key that has it", why, scope)}
}

// checkRegistrar refuses the decision of a client that registered the agent whose run made the tool
// call, or an agent above it. Those agents have chosen the call or its words, and an external one may
// hold the key of the client. A deleted agent counts as the client's. Clients without a key count as
// persons, and operators may decide about every call.
func (c *Client) checkRegistrar(ctx context.Context, found *command.ToolCall) error {
	if c.Share == actor.LocalUser || ingress.Allows(c.By, ingress.ScopeOperator) {
		return nil
	}
	all, err := find(ctx, c, command.AgentsQuery{})
	if err != nil {
		return err
	}
	agents := make(map[string]*command.Agent, len(all.All))
	for i := range all.All {
		agents[all.All[i].Name] = &all.All[i]
	}
	for _, id := range append(found.Chain[:len(found.Chain):len(found.Chain)], found.Owner.Actor) {
		a, exists := agents[id.Agent]
		if !exists {
			return cannotApprove(fmt.Sprintf("the agent %.80s was deleted, so it is not known who registered it", id.Agent))
		}
		for _, owner := range append([]string{a.Owner}, a.Former...) { // the call may be of a definition before the present one
			if owner != "" && (owner == c.By.User || owner == c.Share) {
				return cannotApprove(fmt.Sprintf("%.80s registered the agent %.80s and cannot approve its calls, nor those of agents that it calls", owner, id.Agent))
			}
		}
	}
	return nil
}

func cannotApprove(why string) error {
	return &Forbidden{Detail: fmt.Sprintf("%s: decide with the key of another principal, or with the scope %s", why, ingress.ScopeOperator)}
}

// Decide decides about a tool call that was found, and updates its approval. The first decision counts.
// A later decision, or one after the expiry, is refused with ApprovalDecided and the earlier decision.
func (c *Client) Decide(ctx context.Context, found *command.ToolCall, d signals.Decide, r *Request) error {
	if err := c.MayDecide(ctx, found); err != nil {
		return err
	}
	d.Approval = found.Call.ID.Approval()
	reply, err := c.signal(ctx, signals.New(found.Owner.Actor, found.Call.ID.Run, d), r)
	refusal := (*actor.Refusal)(nil)
	switch errors.As(err, &refusal); {
	case err == nil:
		decided, ok := signals.ReadDecided(reply.Parts)
		if a := found.Call.Approval; ok && a.Status == runs.ApprovalStatusPending && !found.Call.Budget { // the events say what was added to a budget
			a.Status, a.By, a.Reason, a.Decided = runs.ApprovalStatusRejected, r.by(c), d.Reason, decided.At
			if d.Approve {
				a.Status = runs.ApprovalStatusApproved
			}
			return nil
		}
		*found, err = c.Approval(ctx, found.Call.ID)
		return err
	case refusal == nil || refusal.Reason != actor.ApprovalDecided && refusal.Reason != actor.NotFound: // NotFound: the run has ended
		return err
	}
	for range 2 { // an earlier decision may not be readable yet; the request for the first waits for it
		if *found, err = c.Approval(ctx, found.Call.ID); err != nil {
			return err
		}
		if found.Call.Approval.Status.Ended() {
			return c.decidedRefusal(&found.Call)
		}
	}
	return refusal
}

// decidedRefusal returns the refusal of a decision that came too late. A customer learns no other principal from it.
func (c *Client) decidedRefusal(call *runs.ToolCall) *actor.Refusal {
	a := call.Approval
	text := fmt.Sprintf("the approval is %s since %s", a.Status, runs.FormatTime(a.Decided))
	if ingress.Chats(&c.By) {
		return actor.Refuse(actor.ApprovalDecided, "%s", text)
	}
	if a.By != "" {
		text += ", by " + a.By
	}
	if a.Reason != "" {
		text += ": " + a.Reason
	}
	if call.Budget && a.Status == runs.ApprovalStatusApproved {
		text += "; the budget was raised by " + call.Result
	}
	return actor.Refuse(actor.ApprovalDecided, "%s", text)
}
