// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
)

// A client with the scope chat is a customer. It uses the routes of chatRoutes, and gets of an answer the
// members that stand there: a new route or member is hidden from it until somebody decides otherwise.

// shown are the members of a JSON object that a customer gets; nil means the whole value. The elements of
// an array have those of the array.
type shown map[string]shown

func members(names ...string) shown {
	s := shown{}
	for _, name := range names {
		s[name] = nil
	}
	return s
}

// with returns the members with one more, of which a part is shown.
func (s shown) with(name string, part shown) shown {
	s[name] = part
	return s
}

var (
	agentShown   = members("agent_id", "name", "doc", "status")
	sessionShown = members("session_id", "user_id", "title", "metadata", "created_at", "last_message_at", "updated_at").
			with("agents", members("agent_id", "messages", "open_runs"))
	messageShown  = members("message_id", "role", "content", "run_id", "created_at")
	approvalShown = members("approval_id", "status", "run_id", "session_id", "created_at", "expires_at", "decided_at", "may_decide", "tool_name", "args", "args_summary")
	problemShown  = members("type", "title", "status", "detail", "code", "field", "scope", "retry_after", "run_id")
)

// chatRoutes are the routes that a customer may use, by method and path.
var chatRoutes = map[string]shown{
	"GET /v1/agents":                members("next_cursor", "chat").with("agents", agentShown),
	"GET /v1/agents/{id}":           agentShown,
	"POST /v1/agents/{id}/messages": members("run_id", "agent_id", "session_id", "status", "content", "path", "repeated"),

	"GET /v1/sessions":               members("next_cursor").with("sessions", sessionShown),
	"POST /v1/sessions":              sessionShown,
	"GET /v1/sessions/{id}":          sessionShown,
	"DELETE /v1/sessions/{id}":       {},
	"GET /v1/sessions/{id}/messages": members("session_id", "agent_id", "total", "next_before").with("messages", messageShown).with("open", messageShown),

	"GET /v1/runs/{id}":               members("run_id", "agent_id", "session_id", "status", "text", "truncated", "outcome", "created_at", "ended_at").with("error", members("type", "code")),
	"POST /v1/runs/{id}:cancel":       members("run_id", "status"),
	"POST /v1/tool_calls/{id}:result": members("tool_call_id", "status"),
	"GET /v1/approvals/{id}":          approvalShown,
	"POST /v1/approvals/{id}:decide":  approvalShown,
}

// chats reports whether the caller is a customer.
func (c *caller) chats() bool { return c != nil && ingress.Chats(&c.Principal) }

// mayChat reports whether a customer may make requests that need a scope at all. It acts for no run.
func mayChat(h *fasthttp.RequestHeader, scope ingress.Scope) bool {
	return (scope == ingress.ScopeCall || scope == ingress.ScopeRead || scope == "") && len(h.PeekAll(runHeader)) == 0
}

// chatMayUse reports whether a customer may use a route.
func chatMayUse(r *route) bool {
	_, ok := chatRoutes[r.name()]
	return ok || r.scope == scopePublic
}

func lacksChat(r *route) *problem {
	if r.path == approvalsRoute { // of which a customer sees one at a time
		return newProblem(http.StatusForbidden, "forbidden_scope", "forbidden scope",
			"a client with the scope "+string(ingress.ScopeChat)+" lists no approvals: name the one of its own conversation by its whole ID, or use a key with the scope "+string(r.scope))
	}
	return lacksChatScope(neededScope(r.scope))
}

func lacksChatScope(scope ingress.Scope) *problem {
	return newProblem(http.StatusForbidden, "forbidden_scope", "forbidden scope",
		"a client with the scope "+string(ingress.ScopeChat)+" sends messages to its agents and reads its own conversations; this request needs the scope "+string(scope))
}

// showChat leaves of an answer what a customer may see.
func showChat(ctx *fasthttp.RequestCtx, c *caller, r *route) {
	body, what, detail := ctx.Response.Body(), chatRoutes[r.name()], ""
	if r.scope == scopePublic || len(body) == 0 {
		return
	}
	if status := ctx.Response.StatusCode(); status >= http.StatusBadRequest {
		what = problemShown
		var p struct {
			Run        string `json:"run_id"`
			Code       string `json:"code"`
			RetryAfter int64  `json:"retry_after"`
		}
		if json.Unmarshal(body, &p) == nil && p.Run != "" { // the detail of a failure may name models and tools
			what = members("type", "title", "status", "code", "retry_after", "run_id")
			if p.Code == actor.Budget.Info().Type && p.RetryAfter > 0 {
				detail = ingress.NoMessagesBefore(wallTime().Add(time.Duration(p.RetryAfter) * time.Second))
			}
		}
	} else if _, names := what["agent_id"]; names && !c.showsElement(body) { // of an agent that works for its own
		hidden := actor.SessionNotFound(pathParam(ctx, "id"))
		if strings.HasPrefix(r.path, runsRoute) {
			hidden = actor.RefuseNotFound(actor.WhatRun, "run %s not found", pathParam(ctx, "id"))
		}
		refusalProblem(hidden).write(ctx)
		return
	}
	body = c.show(bytes.Clone(body), what)
	if detail != "" {
		body = append(appendQuoted(append(body[:len(body)-1], `,"detail":`...), detail), '}')
	}
	ctx.Response.SetBodyRaw(body)
}

// show returns the part of a value that a customer may see.
func (c *caller) show(v jsontext.Value, what shown) jsontext.Value {
	if what == nil {
		return v
	}
	switch v.Kind() {
	case '{':
		var all map[string]jsontext.Value
		if json.Unmarshal(v, &all) != nil {
			return jsontext.Value("{}")
		}
		for name, member := range all {
			if part, ok := what[name]; ok {
				all[name] = c.show(member, part)
			} else {
				delete(all, name)
			}
		}
		return invariant.Must(json.Marshal(all, json.Deterministic(true)))
	case '[':
		var all []jsontext.Value
		if json.Unmarshal(v, &all) != nil {
			return jsontext.Value("[]")
		}
		all = slices.DeleteFunc(all, func(one jsontext.Value) bool { return !c.showsElement(one) })
		for i := range all {
			all[i] = c.show(all[i], what)
		}
		return invariant.Must(json.Marshal(all))
	}
	return v
}

// showsElement reports whether a customer may know of an object. It hides objects about agents that the customer
// does not find, and messages that neither the customer nor an agent has written to the other.
func (c *caller) showsElement(v jsontext.Value) bool {
	var of struct {
		Agent  string `json:"agent_id"`
		Role   string `json:"role"`
		Origin string `json:"origin"`
	}
	if v.Kind() != '{' || json.Unmarshal(v, &of) != nil {
		return true
	}
	switch {
	case of.Agent != "" && !c.finds(of.Agent):
		return false
	case of.Role != "" && of.Role != actor.RoleUser.String() && of.Role != actor.RoleAssistant.String():
		return false
	}
	return of.Origin != actor.FromDelivered.String()
}

// eventsShown are the members of the payload of an event that a customer gets. Of other events it gets
// the type, so that their numbers have no gaps.
var eventsShown = map[runs.Type]shown{
	runs.UserInput:        members("text", "truncated", "request_id"),
	runs.AgentStreamDelta: members("text"),
	runs.Attempt:          members("attempt", "discards_after"),
	runs.RunDone:          members("text", "truncated", "status"),
	runs.RunFailed:        members().with("error", members("type", "code", "retry_after_ms")),
	runs.RunCancelled:     members().with("error", members("type", "code")),
}

var payloadMember = []byte(`,"payload":`)

// showEvent returns the event with the part of its payload that a customer may see.
func (c *caller) showEvent(body []byte) []byte {
	head, payload, ok := bytes.Cut(body, payloadMember)
	if !ok {
		return []byte("{}")
	}
	what := eventsShown[runs.TypeOf(body)]
	if what == nil {
		what = shown{}
	}
	payload = c.show(bytes.Clone(payload[:len(payload)-1]), what)
	return slices.Concat(head, payloadMember, payload, []byte("}"))
}
