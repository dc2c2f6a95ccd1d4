// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"errors"
	"fmt"
	"slices"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
)

// forwardedRuns authorizes requests that a service makes during a run without the token of
// the run. Such a service knows the printed protocol only: it names the run in x-run-id.
type forwardedRuns struct{ *Server }

// authorize returns the external agent that works on the run in x-run-id or in the field
// run_id, if the request has the credentials of the principal that registered this agent. An
// ended run and a run of another agent get the same answer. A request that names no run needs a
// run token.
func (s forwardedRuns) authorize(ctx *fasthttp.RequestCtx) (*caller, *problem) {
	h, conn := &ctx.Request.Header, ctx.Conn()
	text, field, p := runNamed(ctx)
	if text == "" && p == nil && isEnvelope(ctx) {
		return s.Server.authorize(h, ingress.ScopeCall, conn)
	}
	if text == "" && p == nil {
		if r := ingress.CheckObject(ctx.PostBody()); r != nil { // it may be meant as a request of the contract
			by, refused := s.Server.authorize(h, ingress.ScopeCall, conn)
			if refused == nil {
				refused = badRequest(r)
			}
			return by, refused
		}
		return s.authorizeRun("")
	}
	by, refused := s.Server.authorize(h, ingress.ScopeCall, conn)
	if refused != nil {
		return nil, refused
	}
	if p != nil {
		return nil, p
	}
	return agentOf(s, h, by, text, field)
}

// authorizeSession returns the external agent that works on the run in x-run-id, for a request about the session of
// that run. The request MUST have the scope of the route, and the credentials of the principal that registered the agent.
func authorizeSession(s *Server, ctx *fasthttp.RequestCtx, scope ingress.Scope) (*caller, *problem) {
	h := &ctx.Request.Header
	by, p := s.authorize(h, scope, ctx.Conn())
	if p != nil {
		return nil, p
	}
	named := h.PeekAll(runHeader)
	if len(named) > 1 {
		return nil, invalid(fasthttp.StatusBadRequest, runHeader, "the header "+runHeader+" is a duplicate")
	}
	return agentOf(forwardedRuns{s}, h, by, string(named[0]), runHeader)
}

// agentOf returns the external agent that works on the run that a header or field names.
func agentOf(s forwardedRuns, h *fasthttp.RequestHeader, by *caller, text, field string) (*caller, *problem) {
	run, err := actor.ParseCallID(text)
	if err != nil {
		return nil, invalid(fasthttp.StatusBadRequest, field, field+": "+err.Error())
	}
	c, p := s.workingOn(by, run)
	if p == nil {
		if user, ok := userNamed(h); ok && !actor.InNamespace(user, c.Tenant) {
			return nil, runNotOpen(run)
		}
	}
	return c, p
}

// runNotOpen returns the problem of a request that names a run which it may not act for.
func runNotOpen(run actor.CallID) *problem {
	return refusalProblem(actor.RefuseNotFound(actor.WhatOpenRun, "run %s is not open, or its agent was registered by another principal, or it is a run of another user", run))
}

// workingOn returns the external agent that works on an open run of any namespace, if by is the
// principal that registered this agent.
func (s forwardedRuns) workingOn(by *caller, run actor.CallID) (*caller, *problem) {
	owner, err := lookup(s.Server, *by, command.OpenRunQuery{Run: run})
	var r *actor.Refusal
	switch {
	case errors.As(err, &r) && r.Reason == actor.NotFound:
		return nil, runNotOpen(run)
	case err != nil:
		s.log.Error("cannot look up a run", "run", run.String(), "error", err.Error())
		return nil, internalProblem()
	}
	principal, ok, err := s.owner(*by, owner.Actor.Agent)
	switch {
	case err != nil:
		s.log.Error("cannot look up an agent", "error", err.Error())
		return nil, internalProblem()
	case !ok || by.chats() || principal != by.User && !by.isAdmin():
		return nil, runNotOpen(run)
	}
	return by.workingOn(&owner, principal), nil
}

// workingOn returns the external agent that works on a run, with the credentials of by.
func (c *caller) workingOn(run *command.Owner, principal string) *caller {
	return &caller{Principal: actor.Principal{Tenant: run.Actor.Tenant, User: fmt.Sprintf("run:%s", run.Run), Key: c.Key}, Run: run.Run, Actor: run.Actor, registrar: registrar(principal)}
}

// onlyRun returns the caller itself or, if its external agents work on exactly one run, the agent that works on it. A
// service whose client of the OpenAI API knows nothing but a base URL and a key cannot name a run. The caller itself is
// returned for a request in the name of a user, because no agent sends it, and for a run that keeps no events, because
// such a run cannot record the request.
func onlyRun(s *Server, by *caller) (*caller, error) {
	if !by.Run.IsZero() || by.namedBy != "" || by.chats() {
		return by, nil
	}
	names := slices.DeleteFunc(s.owners.agents(s.node, by.User, by.isAdmin()), func(name string) bool { return !by.finds(name) })
	if len(names) == 0 {
		return by, nil
	}
	working, err := lookup(s, *by, command.WorkingQuery{Agents: names})
	if err != nil || len(working.All) != 1 {
		return by, err
	}
	run := &working.All[0]
	all, err := lookup(s, *by, command.AgentsQuery{})
	i := slices.IndexFunc(all.All, func(a command.Agent) bool { return a.Name == run.Actor.Agent })
	if err != nil || i < 0 || all.All[i].Durability == actor.Volatile {
		return by, err
	}
	return by.workingOn(run, all.All[i].Owner), nil
}

// authorizeHead authorizes a request before its body, which may name a run. A key without the
// scope to name one needs a run token, unless the head names a run.
func (s forwardedRuns) authorizeHead(h *fasthttp.RequestHeader) (*caller, *problem) {
	by, p := s.Server.authorize(h, ingress.ScopeCall, nil)
	if p != nil && p.Status == fasthttp.StatusForbidden && len(h.PeekAll(runHeader)) == 0 {
		return s.authorizeRun("")
	}
	return by, p
}

// runNamed returns the run that a request names, and the header or field that names it.
func runNamed(ctx *fasthttp.RequestCtx) (run, field string, p *problem) {
	named := ctx.Request.Header.PeekAll(runHeader)
	inBody := ingress.RunNamed(ctx.PostBody())
	switch {
	case len(named) > 1:
		return "", "", invalid(fasthttp.StatusBadRequest, runHeader, "the header "+runHeader+" is a duplicate")
	case len(named) == 0:
		return inBody, runField, nil
	case inBody != "" && inBody != string(named[0]):
		p := newProblem(fasthttp.StatusForbidden, "forbidden_run", "forbidden run", runField+": differs from the header "+runHeader+": want one run")
		p.Field = runField
		return "", "", p
	}
	return string(named[0]), runHeader, nil
}

// owner returns the principal that registered an external agent; false if there is no such
// agent.
func (s forwardedRuns) owner(by caller, agent string) (principal string, ok bool, err error) {
	found, err := lookup(s.Server, by, command.AgentsQuery{})
	for i := range found.All {
		if a := &found.All[i]; a.Name == agent {
			return a.Owner, a.Kind == actor.External, err
		}
	}
	return "", false, err
}

// Names of the run that an external agent works on, in the head and the body of a request.
const (
	runHeader = "x-run-id"
	runField  = "run_id"
)
