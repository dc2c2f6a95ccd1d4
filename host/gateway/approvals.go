// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
)

// approvalRoutes are the routes about approvals: tool calls that wait, or waited, for a
// person.
type approvalRoutes struct{ *Server }

// approvalView is the JSON form of an approval.
type approvalView struct {
	ID        string         `json:"approval_id"`
	Status    string         `json:"status"`
	Call      string         `json:"tool_call_id"`
	Tool      string         `json:"tool_name"`
	Args      jsontext.Value `json:"args"`
	Summary   string         `json:"args_summary"`
	Run       string         `json:"run_id"`
	Root      string         `json:"root_run_id"`
	Actor     string         `json:"actor"` // with its namespace
	Agent     string         `json:"agent_id"`
	Session   string         `json:"session_id"`
	Principal string         `json:"principal,omitzero"`
	Created   string         `json:"created_at"`
	Expires   string         `json:"expires_at"`
	Decided   string         `json:"decided_at,omitzero"`
	By        string         `json:"decided_by,omitzero"`
	Reason    string         `json:"reason,omitzero"`
}

func newApprovalView(id runs.ToolCallID, of actor.ID) approvalView {
	return approvalView{ID: id.Approval(), Status: runs.ApprovalStatusPending.String(), Call: id.String(), Run: id.Run.String(), Actor: of.String(), Agent: of.Agent, Session: of.Key}
}

// actsForRun returns the problem of a decision by a request that acts for a run, or that a
// server has sent.
func actsForRun() *problem {
	return newProblem(http.StatusForbidden, "forbidden", "forbidden",
		"an agent cannot approve its own calls: decide with the credentials of a person, without "+RunToken+", "+runHeader+", "+runField+" and "+egressHeader)
}

func approvalNotFound(id string) *problem { return refusalProblem(actor.ApprovalNotFound(id)) }

// listApprovals answers with a page of the approvals that wait for a decision, the oldest
// first.
func (s approvalRoutes) listApprovals(ctx *fasthttp.RequestCtx) {
	limit, p := queryLimit(ctx, NamesDefault, command.ApprovalsMax)
	if p == nil {
		p = checkPending(ctx)
	}
	by := callerOf(ctx)
	list := "approvals " + by.Tenant
	q := command.ApprovalsQuery{Limit: int(limit)}
	if q.EveryUser = by.Tenant == ingress.EveryUser; q.EveryUser {
		by.Tenant = actor.DefaultTenant
	}
	if cursor := string(ctx.QueryArgs().Peek("cursor")); cursor != "" && p == nil {
		q.After, p = parseApprovalCursor(ingress.CursorKey(s.config.Secret), list, cursor)
	}
	if p != nil {
		p.write(ctx)
		return
	}
	s.scan(ctx, func(reading context.Context) func() {
		found, err := command.Find(reading, s.node, by.Principal, q)
		if err != nil {
			return func() { s.respondError(ctx, err) }
		}
		return func() { respondApprovals(ctx, ingress.CursorKey(s.config.Secret), list, found) }
	})
}

// respondApprovals answers with a page of a list of approvals.
func respondApprovals(ctx *fasthttp.RequestCtx, key ingress.CursorKey, list string, found command.Approvals) {
	out := struct {
		Approvals []approvalView `json:"approvals"`
		Next      string         `json:"next_cursor,omitzero"`
	}{Approvals: []approvalView{}}
	if found.More {
		out.Next = approvalCursor(key, list, found.All[len(found.All)-1].Position())
	}
	for i := range found.All {
		a := &found.All[i]
		v := newApprovalView(a.ID, a.Actor)
		v.Tool, v.Args, v.Summary, v.Root, v.Principal = a.Tool, ingress.ToolValue(string(a.Args)), a.Summary, a.Root.String(), a.Principal
		v.Created, v.Expires = runs.FormatTime(a.Created), runs.FormatTime(a.Until)
		out.Approvals = append(out.Approvals, v)
	}
	respondJSON(ctx, http.StatusOK, out)
}

// approvalCursor returns the cursor that continues a list after an approval.
func approvalCursor(key ingress.CursorKey, list string, at command.ApprovalPosition) string {
	return key.PageCursor(list, strconv.FormatInt(int64(at.Created), 10)+" "+at.ID.Approval())
}

// parseApprovalCursor returns the place at which a list continues.
func parseApprovalCursor(key ingress.CursorKey, list, cursor string) (at command.ApprovalPosition, p *problem) {
	after, r := key.ParsePageCursor(list, cursor)
	if r != nil {
		return at, badRequest(r)
	}
	created, id, _ := strings.Cut(after, " ")
	n, err := strconv.ParseInt(created, 10, 64)
	if err == nil {
		at.ID, err = runs.ParseApprovalID(id)
	}
	if err != nil { // a client has computed it
		return at, invalid(http.StatusBadRequest, "cursor", "cursor: "+err.Error())
	}
	at.Created = actor.Time(n)
	return at, nil
}

// checkPending checks that a list asks for pending approvals. No index has those that were
// decided.
func checkPending(ctx *fasthttp.RequestCtx) *problem {
	if !ctx.QueryArgs().Has("status") {
		return nil
	}
	status, err := runs.ParseApprovalStatus(string(ctx.QueryArgs().Peek("status")))
	switch {
	case err != nil:
		return invalid(http.StatusBadRequest, "status", "status: "+err.Error())
	case status != runs.ApprovalStatusPending:
		return invalid(http.StatusBadRequest, "status", fmt.Sprintf("status: only %s approvals are listed; read a decided one by its ID at /v1/approvals/{id}, or in the events of its run",
			runs.ApprovalStatusPending))
	}
	return nil
}

// find returns the tool call of the approval in the path. Those of another user do not
// exist.
func (s approvalRoutes) find(ctx *fasthttp.RequestCtx) (found command.ToolCall, p *problem) {
	text := pathParam(ctx, "id")
	id, err := runs.ParseApprovalID(text)
	if err != nil {
		return found, approvalNotFound(text)
	}
	found, err = lookup(s.Server, callerOf(ctx), command.ToolCallQuery{ID: id})
	r := (*actor.Refusal)(nil)
	switch {
	case errors.As(err, &r) && r.Reason == actor.NotFound, err == nil && found.Call.Approval == nil:
		return found, approvalNotFound(text)
	case err != nil:
		return found, s.errorProblem(ctx, err)
	}
	return found, nil
}

// respond answers with an approval.
func (s approvalRoutes) respond(ctx *fasthttp.RequestCtx, found *command.ToolCall) {
	run, err := lookup(s.Server, callerOf(ctx), command.RunQuery{Run: found.Call.ID.Run})
	if err != nil {
		s.respondError(ctx, err)
		return
	}
	c, a := &found.Call, found.Call.Approval
	v := newApprovalView(c.ID, found.Owner.Actor)
	v.Status, v.Tool, v.Args, v.Summary = a.Status.String(), c.Name, ingress.ToolValue(c.Args), a.Summary
	v.Root, v.Principal = found.Owner.Root.String(), run.Record.User
	v.Created, v.Expires, v.Decided, v.By, v.Reason = runs.FormatTime(a.Created), runs.FormatTime(a.Until), formatOptional(a.Decided), a.By, a.Reason
	respondJSON(ctx, http.StatusOK, v)
}

// getApproval answers with one approval.
func (s approvalRoutes) getApproval(ctx *fasthttp.RequestCtx) {
	found, p := s.find(ctx)
	if p != nil {
		p.write(ctx)
		return
	}
	s.respond(ctx, &found)
}

// decideApproval approves or rejects a tool call that waits. The first decision counts.
func (s approvalRoutes) decideApproval(ctx *fasthttp.RequestCtx) {
	var call actor.Call
	p := s.checkDecider(ctx)
	if p == nil {
		var found command.ToolCall
		if found, p = s.find(ctx); p == nil {
			p = s.checkRegistrar(ctx, found.Call.ID.Run)
		}
		if p == nil {
			call, p = decodeBody(ctx, func(b []byte) (actor.Call, *actor.Refusal) { return ingress.DecideApproval(found.Call.ID, b) })
			call.To = found.Owner.Actor
		}
	}
	if p == nil {
		p = fillRequestContext(ctx, "POST /v1/approvals/{id}:decide "+pathParam(ctx, "id"), &call)
	}
	if p != nil {
		p.write(ctx)
		return
	}
	call.ID, call.Left = s.node.NewCallID(), signalTimeout
	waitCtx := s.newClientContext(ctx, signalTimeout)
	answer, err := s.node.Signal(waitCtx, command.Signal{By: callerOf(ctx).Principal, Call: call})
	cause := waitCtx.cause()
	waitCtx.stop()
	if respondAborted(ctx, cause) {
		return
	}
	if err != nil {
		s.respondError(ctx, err)
		return
	}
	r := answer.Reply.Refusal
	if r != nil && r.Reason != actor.ApprovalDecided && r.Reason != actor.NotFound { // NotFound: the run has ended
		refusalProblem(r).write(ctx)
		return
	}
	found, p := s.find(ctx)
	if r != nil && p == nil && !found.Call.Approval.Status.Ended() { // an earlier decision was not readable yet; that request has waited for it
		found, p = s.find(ctx)
	}
	switch {
	case p != nil:
		p.write(ctx)
	case r != nil && found.Call.Approval.Status.Ended():
		decidedProblem(found.Call.Approval).write(ctx)
	case r != nil:
		refusalProblem(r).write(ctx)
	default:
		s.respond(ctx, &found)
	}
}

// checkDecider checks that a person may decide about tool calls.
func (s approvalRoutes) checkDecider(ctx *fasthttp.RequestCtx) *problem {
	scope := s.config.ApprovalScope
	switch {
	case ingress.RunNamed(ctx.PostBody()) != "":
		return actsForRun()
	case scope != "" && !ingress.Allows(callerOf(ctx).Principal, scope):
		return newProblem(http.StatusForbidden, "forbidden_scope", "forbidden scope",
			fmt.Sprintf("on this server a decision about a tool call needs the scope %s; `troupe keys create --scope %[1]s --data DIR` makes a key that has it", scope))
	}
	return nil
}

// checkRegistrar checks that the caller registered neither the agent whose run made a tool call
// nor an agent above it, which has chosen the call or its words: an external one may have the
// caller's key. A deleted agent may have been the caller's. The principal of clients without a key
// is not told apart from persons, and operators may decide about every call.
func (s approvalRoutes) checkRegistrar(ctx *fasthttp.RequestCtx, run actor.CallID) *problem {
	by := callerOf(ctx)
	if by.shareKey() == actor.LocalUser || ingress.Allows(by.Principal, ingress.ScopeOperator) {
		return nil
	}
	found, err := lookup(s.Server, by, command.RunQuery{Run: run})
	if err != nil {
		return s.errorProblem(ctx, err)
	}
	all, err := lookup(s.Server, by, command.AgentsQuery{})
	if err != nil {
		return s.errorProblem(ctx, err)
	}
	owners := make(map[string]string, len(all.All))
	for i := range all.All {
		owners[all.All[i].Name] = all.All[i].Owner
	}
	for _, id := range append(found.Record.Chain[:len(found.Record.Chain):len(found.Record.Chain)], found.Owner.Actor) {
		switch owner, exists := owners[id.Agent]; {
		case !exists:
			return cannotApprove(fmt.Sprintf("the agent %.80s was deleted, so it is not known who registered it", id.Agent))
		case owner != "" && (owner == by.User || owner == by.shareKey()):
			return cannotApprove(fmt.Sprintf("%.80s registered the agent %.80s and cannot approve its calls, nor those of agents that it calls", owner, id.Agent))
		}
	}
	return nil
}

func cannotApprove(why string) *problem {
	return newProblem(http.StatusForbidden, "forbidden", "forbidden", fmt.Sprintf("%s: decide with the key of another principal, or with the scope %s", why, ingress.ScopeOperator))
}

// decidedProblem returns the problem of a decision that came too late.
func decidedProblem(a *runs.Approval) *problem {
	text := fmt.Sprintf("the approval is %s since %s", a.Status, runs.FormatTime(a.Decided))
	if a.By != "" {
		text += ", by " + a.By
	}
	if a.Reason != "" {
		text += ": " + a.Reason
	}
	return refusalProblem(actor.Refuse(actor.ApprovalDecided, "%s", text))
}

// waitingApproval is the JSON form of an approval in the answer to a message.
type waitingApproval struct {
	ID      string `json:"approval_id"`
	Tool    string `json:"tool_name"`
	Summary string `json:"args_summary"`
	Expires string `json:"expires_at"`
}

// below returns the approvals that wait in the tree of a root run. It returns none if they
// cannot be read: the answer to a message does not depend on them.
func (s approvalRoutes) below(by caller, root actor.CallID) (all []waitingApproval) {
	found, err := lookup(s.Server, by, command.ApprovalsQuery{Root: root})
	if err != nil {
		return nil
	}
	for i := range found.All {
		a := &found.All[i]
		all = append(all, waitingApproval{a.ID.Approval(), a.Tool, a.Summary, runs.FormatTime(a.Until)})
	}
	return all
}
