// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/store"
)

// toolCommands performs the queries about tools.
type toolCommands struct{ *Commands }

// ToolCallOf returns the call that the handler of a tool performs, by its context.
func ToolCallOf(ctx context.Context) (engine.ToolCall, bool) { return engine.ToolCallOf(ctx) }

// approvals lists tool calls that wait for a person, or for a device. It waits until the requests for them
// are durable.
func (c toolCommands) approvals(ctx context.Context, by *actor.Principal, q command.ApprovalsQuery) (out command.Approvals, err error) {
	tenant := by.Tenant
	if q.EveryUser {
		if !ingress.Allows(*by, ingress.ScopeOperator) {
			return out, actor.Refuse(actor.Rejected, "the tool calls of all users that wait need the scope %s", ingress.ScopeOperator)
		}
		tenant = ""
	}
	list := c.engine.Approvals
	if q.Clients {
		list = c.engine.ClientCalls
	}
	pending, err := list(ctx, tenant)
	if err == nil {
		err = c.engine.Read(ctx, func(store.Reader) error { return nil })
	}
	if err != nil {
		return out, errorOf(err)
	}
	for _, a := range pending {
		one := command.Approval{ID: a.ID, Actor: a.Actor, Root: a.Root, Tool: a.Tool, Args: a.Args, Summary: a.Summary,
			Principal: a.Principal, Created: a.Created, Until: a.Until, Approver: a.Approver}
		if a.Raise != nil {
			one.Budget, one.Raise = true, *a.Raise
		}
		out.All = append(out.All, one)
	}
	return pageOf(out.All, q), nil
}

// takeTurns gives each approval its turn within its namespace, the oldest first. So in a list of all namespaces, a
// namespace with many approvals does not push the approvals of others to later pages.
func takeTurns(all []command.Approval) {
	slices.SortFunc(all, func(a, b command.Approval) int { return a.Position().Compare(b.Position()) })
	turns := map[string]int{}
	for i := range all {
		all[i].Turn = turns[all[i].Actor.Tenant]
		turns[all[i].Actor.Tenant]++
	}
}

// pageOf returns the approvals that a query asks for.
func pageOf(all []command.Approval, q command.ApprovalsQuery) (out command.Approvals) {
	if q.EveryUser {
		takeTurns(all)
	}
	out.All = slices.DeleteFunc(all, func(a command.Approval) bool {
		return !q.Root.IsZero() && a.Root != q.Root || a.Position().Compare(q.After) <= 0
	})
	slices.SortFunc(out.All, func(a, b command.Approval) int { return a.Position().Compare(b.Position()) })
	limit := command.ApprovalsMax
	if q.Limit > 0 {
		limit = min(limit, q.Limit)
	}
	if out.More = len(out.All) > limit; out.More {
		out.All = out.All[:limit]
	}
	return out
}

// list returns the declared tools. The definition of one without its own time limit has that of the node.
func (c toolCommands) list() (out command.Tools) {
	if c.tools == nil {
		return out
	}
	for _, d := range c.tools() {
		hash := d.Hash()
		d.TimeoutMS = cmp.Or(d.TimeoutMS, c.toolTimeout.Milliseconds())
		out.All = append(out.All, command.Tool{Name: d.Name, Hash: hash, Owner: d.Owner, Definition: d.Encode()})
	}
	return out
}

// call returns the state of a tool call. One that waits for a decision is known to its cell, so
// deciding costs the same for a run of any length.
func (c toolCommands) call(ctx context.Context, by *actor.Principal, id runs.ToolCallID) (command.Result, error) {
	var owner command.Owner
	found, err := read(ctx, c.Commands, by, func(v View) (_ command.Owner, err error) {
		owner, err = v.Owner(id.Run)
		return owner, err
	})
	if err != nil {
		return found, err
	}
	a, err := c.engine.Approval(ctx, owner.Actor, id)
	switch {
	case err != nil:
		return nil, errorOf(err)
	case a == nil:
		waits := func(found *command.ToolCall) bool {
			a := found.Call.Approval
			return a != nil && !a.Status.Ended()
		}
		get := func(v View) (command.ToolCall, error) { return v.ToolCall(id) }
		found, err := read(ctx, c.Commands, by, get)
		if call, ok := found.(command.ToolCall); err != nil || ok && !waits(&call) {
			return found, err
		}
		// Either the cell has decided the call, and its entry is durable after that read, or the cell is still loading the run.
		return read(ctx, c.Commands, by, func(v View) (command.ToolCall, error) {
			found, err := get(v)
			if waits(&found) {
				found.Approver = command.ApproverUnknown
			}
			return found, err
		})
	}
	return read(ctx, c.Commands, by, func(View) (command.ToolCall, error) { return waitingCall(owner, a), nil }) // once the request is durable
}

// waitingCall returns the state of a tool call that waits for a decision.
func waitingCall(owner command.Owner, a *runtime.Approval) command.ToolCall {
	var raise actor.Purse
	if a.Raise != nil {
		raise = *a.Raise
	}
	return command.ToolCall{Raise: raise, Owner: owner, Chain: a.Chain, Principal: a.Principal, Approver: a.Approver, Call: runs.ToolCall{
		ID: a.ID, Name: a.Tool, OnDevice: a.OnDevice, Budget: a.Raise != nil, Status: runs.ToolStatusWaitingApproval, Decision: runs.RequireApproval.String(), Rule: a.Rule,
		Approval: &runs.Approval{Status: runs.ApprovalStatusPending, Summary: a.Summary, Created: a.Created, Until: a.Until},
		Args:     string(a.Args), Created: a.Created,
	}}
}

// ToolCall returns the state of a tool call by the events of its run.
func (v View) ToolCall(id runs.ToolCallID) (out command.ToolCall, err error) {
	notFound := actor.ToolCallNotFound(id.String())
	if out.Owner, err = v.Owner(id.Run); err != nil {
		return out, err
	}
	var events []runs.Event
	answered := uint64(0) // number of the event with the result
	cut := false          // the arguments are truncated
	for after := uint64(0); ; {
		page, err := v.Log.Events(v.Tenant, id.Run, after, command.EventsMax)
		if err != nil {
			return out, err
		}
		for _, raw := range page {
			e, err := runs.Decode(raw.Body)
			if err != nil {
				return out, fmt.Errorf("run %s: event %d: %w", id.Run, raw.Seq, err)
			}
			switch e.Type {
			case runs.UserInput:
				out.Principal = e.Principal
			case runs.RunStarted:
				out.Principal, out.Chain = e.Principal, e.Chain
			}
			if e.Step == id.Step && e.Index == id.Index || e.Type.Ends() {
				events = append(events, e)
				switch e.Type {
				case runs.ToolCallCreated:
					cut = e.Truncated
				case runs.ToolResult:
					answered = e.Seq
				}
			}
			after = e.Seq
		}
		if len(page) < command.EventsMax {
			break
		}
	}
	call, found, err := runs.FoldToolCall(events, id)
	out.Call = call
	out.Call.Truncated = cut // the result is read as a whole
	switch {
	case err != nil:
	case !found:
		err = notFound
	case answered > 0:
		out.Result, err = v.Log.Result(v.Tenant, id.Run, answered)
	}
	if err == nil && cut {
		out.Call.Args, out.Call.Truncated, err = v.toolArgs(&out)
	}
	return out, err
}

// toolArgs returns the arguments of a tool call, of which its event shows the beginning. Those
// of a run that has ended remain truncated.
func (v View) toolArgs(call *command.ToolCall) (args string, truncated bool, err error) {
	id := call.Call.ID
	j, err := v.journal(call.Owner.Actor)
	if errors.As(err, new(store.Gone)) { // its session was deleted after the events were read
		return call.Call.Args, true, nil
	}
	run := j.Run(id.Run)
	if err != nil || run == nil || int(id.Step) > len(run.Steps) || int(id.Index) >= len(run.Steps[id.Step-1].Asks) {
		return call.Call.Args, true, err
	}
	var shown runs.Event
	shown.SetText(run.Steps[id.Step-1].Asks[id.Index].Out().Parts)
	return shown.Text, false, nil
}
