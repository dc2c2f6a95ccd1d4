// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"errors"

	"net/http"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/client"
	"github.com/troupe-run/troupe/internal/command"
)

// Bounds of lists about sessions.
const (
	SessionsMax     = command.SessionsMax
	SessionsDefault = 50
	MessagesMax     = command.MessagesMax
	MessagesDefault = 50
)

// Time limits of changes of a session.
const (
	describeTimeout = 30 * time.Second
	deleteTimeout   = time.Minute
)

// sessionRoutes are the routes about sessions and their transcripts.
type sessionRoutes struct{ *Server }

// listSessions answers with a page of the caller's sessions.
func (s sessionRoutes) listSessions(ctx *fasthttp.RequestCtx) {
	limit, p := queryLimit(ctx, SessionsDefault, SessionsMax)
	list := "sessions " + callerOf(ctx).Tenant
	q := command.SessionsQuery{Limit: int(limit)}
	if cursor := string(ctx.QueryArgs().Peek("cursor")); p == nil && cursor != "" {
		var r *actor.Refusal
		q.Before, r = ingress.CursorKey(s.config.Secret).ParsePageCursor(list, cursor)
		p = badRequest(r)
	}
	if p != nil {
		p.write(ctx)
		return
	}
	by := callerOf(ctx)
	user := userShown(ctx, &by)
	s.scan(ctx, func(reading context.Context) func() {
		found, err := command.Find(reading, nodeOf(s.Server, &by), by.Principal, q)
		if err != nil {
			return func() { s.respondError(ctx, err) }
		}
		out := struct {
			Sessions []jsontext.Value `json:"sessions"`
			Next     string           `json:"next_cursor,omitzero"`
		}{Sessions: []jsontext.Value{}}
		for i := range found.All {
			out.Sessions = append(out.Sessions, found.All[i].AppendJSON(nil, user))
		}
		if found.Next != "" {
			out.Next = ingress.CursorKey(s.config.Secret).PageCursor(list, found.Next)
		}
		return func() { respondJSON(ctx, http.StatusOK, out) }
	})
}

// getSession answers with one session.
func (s sessionRoutes) getSession(ctx *fasthttp.RequestCtx) {
	name, p := pathSession(ctx)
	if p != nil {
		p.write(ctx)
		return
	}
	by := callerOf(ctx)
	user := userShown(ctx, &by)
	s.scan(ctx, func(reading context.Context) func() {
		found, err := command.Find(reading, nodeOf(s.Server, &by), by.Principal, command.SessionQuery{Session: name})
		if err != nil {
			return func() { s.respondError(ctx, err) }
		}
		return func() { respond(ctx, http.StatusOK, found.AppendJSON(nil, user)) }
	})
}

// pathSession returns the session in the path.
func pathSession(ctx *fasthttp.RequestCtx) (string, *problem) {
	name, r := ingress.CheckSession(pathParam(ctx, "id"))
	return name, badRequest(r)
}

// createSession creates a session with a title and metadata, or changes them. The first
// message of a session creates it too.
func (s sessionRoutes) createSession(ctx *fasthttp.RequestCtx) {
	in, p := decodeBody(ctx, ingress.DecodeSession)
	by := callerOf(ctx)
	call := actor.Call{To: by.ID(actor.SessionAgent, in.Session), Operation: agents.OpDescribe, Left: describeTimeout,
		Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: in.Description}}}
	if p == nil {
		p = fillRequestContext(ctx, "POST /v1/sessions", &call)
	}
	if p != nil {
		p.write(ctx)
		return
	}
	call.ID = s.node.NewCallID()
	if in.Session == "" {
		call.To.Key = ingress.SessionOf(call.To, call.Idempotency, call.ID)
	}
	waitCtx := s.newClientContext(ctx, describeTimeout)
	answer, err := nodeOf(s.Server, &by).Invoke(waitCtx, command.Invoke{By: by.Principal, Call: call}, nil)
	cause := waitCtx.cause()
	waitCtx.stop()
	switch {
	case respondAborted(ctx, cause):
		return
	case err != nil:
		s.respondError(ctx, err)
		return
	case answer.Reply.Refusal != nil:
		refusalProblem(answer.Reply.Refusal).write(ctx)
		return
	}
	found, err := lookup(s.Server, by, command.SessionQuery{Session: call.To.Key})
	if err != nil {
		s.respondError(ctx, err)
		return
	}
	ctx.Response.Header.Set(fasthttp.HeaderLocation, "/v1/sessions/"+call.To.Key)
	respond(ctx, http.StatusCreated, found.AppendJSON(nil, by.User))
}

// deleteSession deletes a session with its transcripts, runs and events. A session with
// open runs is refused, unless the parameter cancel asks to cancel them first.
func (s sessionRoutes) deleteSession(ctx *fasthttp.RequestCtx) {
	name, p := pathSession(ctx)
	cancel := false
	if p == nil {
		cancel, p = queryFlag(ctx, "cancel")
	}
	if p == nil {
		p = requireEmptyBody(ctx)
	}
	if p != nil {
		p.write(ctx)
		return
	}
	waitCtx := s.newClientContext(ctx, deleteTimeout)
	waitCtx.Done() // starts to watch the client
	open := (*client.OpenRunError)(nil)
	by := callerOf(ctx)
	err := clientOf(s.Server, &by).ForgetSession(waitCtx, name, cancel)
	cause := waitCtx.cause()
	waitCtx.stop()
	switch {
	case respondAborted(ctx, cause):
	case errors.As(err, &open):
		r := actor.Refuse(actor.Rejected, "session %s has the open run %s: wait for its end, or delete with ?cancel=1 (troupe sessions delete --cancel)", name, open.Run)
		r.Field = actor.BusyField
		p := refusalProblem(r)
		p.Field = "" // which names that of a message
		p.write(ctx)
	case err != nil && !errors.Is(err, context.Canceled):
		p := s.errorProblem(ctx, err)
		if p.Code == "session_busy" { // the refusal of a message names its field
			p.Field = ""
		}
		p.write(ctx)
	case err != nil:
		s.respondError(ctx, err)
	default:
		ctx.SetStatusCode(http.StatusNoContent)
	}
}

// getMessages answers with the latest messages of a transcript, oldest first, or those
// before a message. An external agent that asks during its run gets the transcript of the
// agent that the user talks to.
func (s sessionRoutes) getMessages(ctx *fasthttp.RequestCtx) {
	by := callerOf(ctx)
	q := command.MessagesQuery{Session: pathParam(ctx, "id")}
	limit, p := queryLimit(ctx, MessagesDefault, MessagesMax)
	q.Limit = int(limit)
	if p == nil && actor.CheckName(q.Session) != nil {
		p = invalid(http.StatusBadRequest, "", actor.CheckName(q.Session).Error())
	}
	var unknown *problem // for an agent without messages
	if p == nil {
		if q.Agent, p = queryAgent(ctx); q.Agent != "" {
			var d command.Agent
			if d, unknown = s.findAgent(ctx, q.Agent); unknown == nil {
				q.Agent = d.Name
			} else if len(by.agents) > 0 { // it may exist, for others
				p = unknown
			}
		} else if len(by.agents) == 1 {
			q.Agent = by.agents[0]
		}
	}
	if before := string(ctx.QueryArgs().Peek("before")); p == nil && before != "" {
		var err error
		if q.Before, err = actor.ParseMessageID(before); err != nil {
			p = invalid(http.StatusBadRequest, "before", err.Error())
		}
	}
	if p == nil && !by.Run.IsZero() {
		p = s.setRootAgent(ctx, by, &q)
	}
	if p != nil {
		p.write(ctx)
		return
	}
	s.scan(ctx, func(reading context.Context) func() {
		found, err := command.Find(reading, nodeOf(s.Server, &by), by.Principal, q)
		if err != nil {
			return func() { s.respondError(ctx, err) }
		}
		if unknown != nil && found.Total == 0 && len(found.Open) == 0 {
			return func() { unknown.write(ctx) }
		}
		return func() { respond(ctx, http.StatusOK, found.AppendJSON(nil)) }
	})
}

// queryAgent returns the agent in the query of a list of messages.
func queryAgent(ctx *fasthttp.RequestCtx) (string, *problem) {
	param := func(name string) *string {
		if !ctx.QueryArgs().Has(name) {
			return nil
		}
		text := string(ctx.QueryArgs().Peek(name))
		return &text
	}
	agent, r := ingress.TranscriptAgent(param("agent_id"), param("agent"))
	return agent, badRequest(r)
}

// setRootAgent directs a query of an external agent to the root of its run.
func (s sessionRoutes) setRootAgent(ctx *fasthttp.RequestCtx, by caller, q *command.MessagesQuery) *problem {
	owner, err := s.runOwner(by, by.Run)
	if err == nil && owner.Root != owner.Run {
		owner, err = s.runOwner(by, owner.Root)
	}
	if err != nil {
		return s.errorProblem(ctx, err)
	}
	if q.Session != owner.Actor.Key {
		return sessionNotFound(q.Session)
	}
	switch q.Agent {
	case "":
		q.Agent = owner.Actor.Agent
	case owner.Actor.Agent, by.Actor.Agent:
	default: // a conversation that its run is no part of
		return refusalProblem(actor.AgentNotFound(q.Agent))
	}
	return nil
}

func sessionNotFound(name string) *problem { return refusalProblem(actor.SessionNotFound(name)) }

// appendMessage adds a message to a transcript and starts no run.
func (s sessionRoutes) appendMessage(ctx *fasthttp.RequestCtx) {
	name, p := pathSession(ctx)
	var message ingress.AppendedMessage
	var agent command.Agent
	var r *client.Request
	if p == nil {
		message, p = decodeBody(ctx, ingress.DecodeAppend)
	}
	by := callerOf(ctx)
	if p == nil && message.Agent == "" {
		message.Agent, p = s.onlyAgent(ctx, by, name)
	}
	if p == nil {
		agent, p = s.findAgent(ctx, message.Agent)
	}
	if p == nil {
		r, p = requestOf(ctx, "POST /v1/sessions/{id}/messages", headers(ctx, ingress.IdempotencyKey))
	}
	if p != nil {
		p.write(ctx)
		return
	}
	var id actor.MessageID
	if perform(s.Server, ctx, client.Timeout, func(ctx context.Context) (err error) {
		id, err = clientOf(s.Server, &by).Append(ctx, by.ID(agent.Name, name), client.Message{Role: message.Role, Text: message.Text}, r)
		return err
	}) {
		respondJSON(ctx, http.StatusCreated, struct {
			Session string `json:"session_id"`
			Agent   string `json:"agent_id"`
			Message string `json:"message_id"`
		}{name, agent.Name, id.String()})
	}
}

// onlyAgent returns the agent of a session that has one.
func (s sessionRoutes) onlyAgent(ctx *fasthttp.RequestCtx, by caller, session string) (string, *problem) {
	found, err := lookup(s.Server, by, command.MessagesQuery{Session: session, Limit: 1})
	switch {
	case err != nil:
		return "", s.errorProblem(ctx, err)
	case found.Agent == "":
		return "", invalid(http.StatusBadRequest, "agent_id", "agent_id: is missing: no agent has a transcript in session "+session+" yet")
	}
	return found.Agent, nil
}
