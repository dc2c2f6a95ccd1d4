// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/client"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/signals"
)

// approvalRoutes are the routes about approvals: tool calls that wait, or waited, for a
// person.
type approvalRoutes struct{ *Server }

// approvalView is the JSON form of an approval.
type approvalView struct {
	ID      string         `json:"approval_id"`
	Status  string         `json:"status"`
	Call    string         `json:"tool_call_id"`
	Tool    string         `json:"tool_name"`
	Args    jsontext.Value `json:"args,omitzero"`
	Summary string         `json:"args_summary"`
	pendingView
	Decided string `json:"decided_at,omitzero"`
	By      string `json:"decided_by,omitzero"`
	Reason  string `json:"reason,omitzero"`

	Approver string     `json:"approver,omitzero"`
	Kind     string     `json:"kind"` // runs.KindTool or runs.KindBudget
	Raise    *raiseView `json:"raise,omitzero"`
	May      *bool      `json:"may_decide,omitzero"` // of one approval
}

// pendingView is the JSON form of a tool call that waits, without the call: its run, its actor and its times.
type pendingView struct {
	Run       string `json:"run_id"`
	Root      string `json:"root_run_id"`
	Actor     string `json:"actor"` // with its namespace
	Agent     string `json:"agent_id"`
	Session   string `json:"session_id"`
	Principal string `json:"principal,omitzero"`
	Created   string `json:"created_at"`
	Expires   string `json:"expires_at"`
}

func newPendingView(run, root actor.CallID, of actor.ID, principal string, created, until actor.Time) pendingView {
	return pendingView{run.String(), root.String(), of.String(), of.Agent, of.Key, principal, runs.FormatTime(created), runs.FormatTime(until)}
}

// raiseView is the JSON form of an addition to a budget.
type raiseView struct {
	Tokens int64   `json:"tokens,omitzero"`
	Money  float64 `json:"money,omitzero"` // in units of the currency
}

// newRaiseView returns the JSON form of an amount, nil for none.
func newRaiseView(p *actor.Purse) *raiseView {
	if *p == (actor.Purse{}) {
		return nil
	}
	return &raiseView{p.Tokens, float64(p.Micros) / actor.Micro}
}

// raiseOf returns the amount that an approval adds to a budget. While it waits, this is the amount that is asked for.
// Afterwards it is the amount of the decision, which is the result of the call.
func raiseOf(found *command.ToolCall) *raiseView {
	c := &found.Call
	if c.Approval.Status == runs.ApprovalStatusPending {
		return newRaiseView(&found.Raise)
	}
	var added raiseView
	if !c.Budget || c.Approval.Status != runs.ApprovalStatusApproved || json.Unmarshal([]byte(c.Result), &added) != nil || added == (raiseView{}) {
		return nil
	}
	return &added
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
	if p := checkPending(ctx); p != nil {
		p.write(ctx)
		return
	}
	listWaiting(s.Server, ctx, "approvals", command.ApprovalsQuery{}, respondApprovals)
}

// listWaiting answers with a page of tool calls that wait, the oldest first. The cursors of a list have its name.
func listWaiting(s *Server, ctx *fasthttp.RequestCtx, list string, q command.ApprovalsQuery, answer func(ctx *fasthttp.RequestCtx, found command.Approvals, next string)) {
	limit, p := queryLimit(ctx, NamesDefault, command.ApprovalsMax)
	by := callerOf(ctx)
	list += " " + by.Tenant
	q.Limit = int(limit)
	if q.EveryUser = by.Tenant == ingress.EveryUser; q.EveryUser {
		by.Tenant = actor.DefaultTenant
	}
	key := ingress.CursorKey(s.config.Secret)
	if cursor := string(ctx.QueryArgs().Peek("cursor")); cursor != "" && p == nil {
		q.After, p = parseApprovalCursor(key, list, cursor)
	}
	if p != nil {
		p.write(ctx)
		return
	}
	s.scan(ctx, func(reading context.Context) func() {
		found, err := command.Find(reading, nodeOf(s, &by), by.Principal, q)
		if err != nil {
			return func() { s.respondError(ctx, err) }
		}
		next := ""
		if found.More {
			next = approvalCursor(key, list, found.All[len(found.All)-1].Position())
		}
		return func() { answer(ctx, found, next) }
	})
}

// respondApprovals answers with a page of a list of approvals.
func respondApprovals(ctx *fasthttp.RequestCtx, found command.Approvals, next string) {
	out := struct {
		Approvals []approvalView `json:"approvals"`
		Next      string         `json:"next_cursor,omitzero"`
	}{[]approvalView{}, next}
	for i := range found.All {
		a := &found.All[i]
		out.Approvals = append(out.Approvals, approvalView{ID: a.ID.Approval(), Status: runs.ApprovalStatusPending.String(), Call: a.ID.String(), Tool: a.Tool, Args: ingress.ToolValue(string(a.Args)), Summary: a.Summary,
			pendingView: newPendingView(a.ID.Run, a.Root, a.Actor, a.Principal, a.Created, a.Until), Approver: a.Approver, Kind: runs.ApprovalKind(a.Budget), Raise: newRaiseView(&a.Raise)})
	}
	respondJSON(ctx, http.StatusOK, out)
}

// approvalCursor returns the cursor that continues a list after an approval.
func approvalCursor(key ingress.CursorKey, list string, at command.ApprovalPosition) string {
	return key.PageCursor(list, fmt.Sprintf("%d %d %s", at.Turn, at.Created, at.ID.Approval()))
}

// parseApprovalCursor returns the place at which a list continues.
func parseApprovalCursor(key ingress.CursorKey, list, cursor string) (at command.ApprovalPosition, p *problem) {
	after, r := key.ParsePageCursor(list, cursor)
	if r != nil {
		return at, badRequest(r)
	}
	id := ""
	_, err := fmt.Sscanf(after, "%d %d %s", &at.Turn, &at.Created, &id)
	if err == nil {
		at.ID, err = runs.ParseApprovalID(id)
	}
	if err != nil { // a client has computed it
		return at, invalid(http.StatusBadRequest, "cursor", "cursor: "+err.Error())
	}
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
// exist, unless the caller is in the namespaces of all: then it is put in that of the approval.
func (s approvalRoutes) find(ctx *fasthttp.RequestCtx, by *caller) (found command.ToolCall, p *problem) {
	text := pathParam(ctx, "id")
	id, err := runs.ParseApprovalID(text)
	if err != nil {
		return found, approvalNotFound(text)
	}
	if by.Tenant == ingress.EveryUser {
		by.Tenant = actor.DefaultTenant
		owner, err := lookup(s.Server, *by, command.OwnerQuery{Run: id.Run, EveryUser: true})
		if r := (*actor.Refusal)(nil); errors.As(err, &r) && r.Reason == actor.NotFound {
			return found, approvalNotFound(text)
		}
		if err != nil {
			return found, s.errorProblem(ctx, err)
		}
		by.Tenant = owner.Actor.Tenant
	}
	reading := s.newTimeout(readTimeout)
	defer reading.stop()
	if found, err = clientOf(s.Server, by).Approval(reading, id); err != nil {
		return found, s.errorProblem(ctx, err)
	}
	return found, nil
}

// respondApproval answers with an approval. It says whether the caller may decide, and what about if shown. To a
// customer it is one of the run that the customer began, whatever run below it makes the call.
func respondApproval(ctx *fasthttp.RequestCtx, by *caller, found *command.ToolCall, may, shown bool) {
	c, a := &found.Call, found.Call.Approval
	v := approvalView{ID: c.ID.Approval(), Status: a.Status.String(), Call: c.ID.String(), Tool: c.Name, Args: ingress.ToolValue(c.Args), Summary: a.Summary,
		pendingView: newPendingView(c.ID.Run, found.Owner.Root, found.Owner.Actor, found.Principal, a.Created, a.Until),
		Decided:     formatOptional(a.Decided), By: a.By, Reason: a.Reason, Approver: found.Approver, Kind: runs.ApprovalKind(c.Budget), Raise: raiseOf(found), May: &may}
	if !shown {
		v.Tool, v.Args, v.Summary = "", nil, ""
	}
	if by.chats() {
		v.Run = v.Root
	}
	respondJSON(ctx, http.StatusOK, v)
}

// getApproval answers with one approval.
func (s approvalRoutes) getApproval(ctx *fasthttp.RequestCtx) {
	by := callerOf(ctx)
	found, p := s.find(ctx, &by)
	if p != nil {
		p.write(ctx)
		return
	}
	may := false
	if found.Call.Approval.Status == runs.ApprovalStatusPending {
		reading := s.newTimeout(readTimeout)
		defer reading.stop()
		err := clientOf(s.Server, &by).MayDecide(reading, &found)
		var r *actor.Refusal
		if may = err == nil; err != nil && !errors.As(err, new(*client.Forbidden)) && !errors.As(err, &r) { // a refusal: it is not known yet
			s.respondError(ctx, err)
			return
		}
	}
	respondApproval(ctx, &by, &found, may, may || !by.chats())
}

// decideApproval approves or rejects a tool call that waits. The first decision counts.
func (s approvalRoutes) decideApproval(ctx *fasthttp.RequestCtx) {
	if ingress.RunNamed(ctx.PostBody()) != "" {
		actsForRun().write(ctx)
		return
	}
	by := callerOf(ctx)
	decider := clientOf(s.Server, &by)
	found, p := s.find(ctx, &by)
	var decision signals.Decide
	var r *client.Request
	if p == nil {
		decision, p = decodeBody(ctx, ingress.DecodeDecision)
	}
	if p == nil {
		r, p = requestOf(ctx, "POST /v1/approvals/{id}:decide "+pathParam(ctx, "id"), headers(ctx, ingress.IdempotencyKey))
	}
	if p != nil {
		p.write(ctx)
		return
	}
	if perform(s.Server, ctx, client.Timeout, func(ctx context.Context) error { return decider.Decide(ctx, &found, decision, r) }) {
		respondApproval(ctx, &by, &found, false, true)
	}
}

// waitingApproval is the JSON form of an approval in the answer to a message.
type waitingApproval struct {
	ID      string `json:"approval_id"`
	Tool    string `json:"tool_name"`
	Summary string `json:"args_summary"`
	Expires string `json:"expires_at"`
	Kind    string `json:"kind"` // as in approvalView
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
		all = append(all, waitingApproval{a.ID.Approval(), a.Tool, a.Summary, runs.FormatTime(a.Until), runs.ApprovalKind(a.Budget)})
	}
	return all
}
