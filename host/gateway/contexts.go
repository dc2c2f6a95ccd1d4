// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
)

// contextTimeout is the maximum time of a change of a context.
const contextTimeout = 30 * time.Second

// contextRoutes are the routes about contexts.
type contextRoutes struct{ *Server }

// createContext stores a new context in a session: that of the run that the request acts
// for, or the one that it names.
func (s contextRoutes) createContext(ctx *fasthttp.RequestCtx) {
	in, p := decodeBody(ctx, func(b []byte) (ingress.ContextRequest, *actor.Refusal) {
		return ingress.DecodeContext(b, true, agents.ContextBytesMax)
	})
	by := callerOf(ctx)
	if p == nil {
		switch own := by.Actor.Key; {
		case by.Run.IsZero() && in.Session == "":
			p = invalid(http.StatusBadRequest, "session_id", "session_id: is missing: want the session that the context belongs to and is deleted with")
		case !by.Run.IsZero() && in.Session != "" && in.Session != own:
			p = sessionNotFound(in.Session)
		case in.Session == "":
			in.Session = own
		}
	}
	if p != nil {
		p.write(ctx)
		return
	}
	if in.OwnerType == "session" && in.OwnerID != "" && in.OwnerID != in.Session {
		invalid(http.StatusBadRequest, "owner_id", fmt.Sprintf("owner_id: %.80q: a context with owner_type session belongs to its session, %s: omit owner_id", in.OwnerID, in.Session)).write(ctx)
		return
	}
	if in.OwnerID == "" {
		in.OwnerID = map[string]string{"session": in.Session, "agent": by.Actor.Agent, "user": by.User}[in.OwnerType]
	}
	id := s.node.NewCallID()
	c := agents.ContextCommand{ID: id.String(), OwnerType: in.OwnerType, OwnerID: in.OwnerID, Create: true}
	s.changeContext(ctx, agents.OpContextPut, in.Session, c, in.Value, http.StatusCreated)
}

// putContext stores the next version of a context.
func (s contextRoutes) putContext(ctx *fasthttp.RequestCtx) {
	c, session, p := s.contextCommand(ctx)
	var in ingress.ContextRequest
	if p == nil {
		in, p = decodeBody(ctx, func(b []byte) (ingress.ContextRequest, *actor.Refusal) {
			return ingress.DecodeContext(b, false, agents.ContextBytesMax)
		})
		c.Version = in.Version
	}
	if p != nil {
		p.write(ctx)
		return
	}
	s.changeContext(ctx, agents.OpContextPut, session, c, in.Value, http.StatusOK)
}

// deleteContext deletes a context with all of its versions.
func (s contextRoutes) deleteContext(ctx *fasthttp.RequestCtx) {
	c, session, p := s.contextCommand(ctx)
	if p == nil {
		p = requireEmptyBody(ctx)
	}
	if p != nil {
		p.write(ctx)
		return
	}
	s.changeContext(ctx, agents.OpContextDelete, session, c, nil, http.StatusNoContent)
}

// contextCommand returns a command for the context in the path. A request that acts for a
// run reaches the contexts of the session of that run only.
func (s contextRoutes) contextCommand(ctx *fasthttp.RequestCtx) (c agents.ContextCommand, session string, p *problem) {
	by := callerOf(ctx)
	id, session, ok := ingress.ParseContextKey(pathParam(ctx, "id"))
	if !ok || !by.Run.IsZero() && session != by.Actor.Key {
		return c, "", refusalProblem(agents.ContextNotFound())
	}
	return agents.ContextCommand{ID: id}, session, nil
}

// changeContext performs a change of a context and answers with its key and version.
func (s contextRoutes) changeContext(ctx *fasthttp.RequestCtx, operation, session string, c agents.ContextCommand, value []byte, status int) {
	by := callerOf(ctx)
	call := actor.Call{To: by.ID(actor.ContextAgent, session), Operation: operation, Left: contextTimeout}
	p := fillRequestContext(ctx, operation+" "+pathParam(ctx, "id"), &call)
	if p != nil {
		p.write(ctx)
		return
	}
	if !c.Create {
		if err := s.checkContext(by, session, c.ID, !call.Idempotency.IsZero()); err != nil {
			s.respondError(ctx, err)
			return
		}
	}
	call.ID = s.node.NewCallID()
	if c.Create && !call.Idempotency.IsZero() { // a repeat has the same body and key, but drew another ID
		c.ID = ingress.SessionOf(call.To, call.Idempotency, call.ID)
	}
	call.Parts = []actor.Part{{Media: actor.MediaJSON, Bytes: invariant.Must(json.Marshal(c))}}
	if value != nil {
		call.Parts = append(call.Parts, actor.Part{Media: agents.MediaContext, Bytes: value})
	}
	waitCtx := s.newClientContext(ctx, contextTimeout)
	answer, err := nodeOf(s.Server, &by).Invoke(waitCtx, command.Invoke{By: by.Principal, Call: call}, nil)
	cause := waitCtx.cause()
	waitCtx.stop()
	switch {
	case respondAborted(ctx, cause):
	case err != nil:
		s.respondError(ctx, err)
	case answer.Reply.Refusal != nil:
		refusalProblem(answer.Reply.Refusal).write(ctx)
	case status == http.StatusNoContent:
		ctx.SetStatusCode(status)
	default:
		out := struct {
			Key     string `json:"context_key"`
			Version uint64 `json:"version"`
		}{Key: c.ID + "." + session}
		if err := json.Unmarshal([]byte(actor.TextOf(answer.Reply.Parts)), &out); err != nil {
			s.respondError(ctx, err)
			return
		}
		respondJSON(ctx, status, out)
	}
}

// checkContext returns a NotFound refusal if there is no such context, so that the change, which
// would be refused, does not create the session. A repeated deletion finds none either: its answer
// is known to the session, if that exists.
func (s contextRoutes) checkContext(by caller, session, id string, repeatable bool) error {
	_, err := lookup(s.Server, by, command.ContextQuery{Session: session, ID: id})
	var r *actor.Refusal
	if !repeatable || !errors.As(err, &r) || r.Reason != actor.NotFound {
		return err
	}
	end, failed := lookup(s.Server, by, command.SessionEndQuery{Session: session})
	switch {
	case failed != nil:
		return failed
	case end.Exists:
		return nil
	}
	return err
}

// getContext answers with a version of a context, by default the newest.
func (s contextRoutes) getContext(ctx *fasthttp.RequestCtx) {
	c, session, p := s.contextCommand(ctx)
	var version uint64
	if args := ctx.QueryArgs(); p == nil && args.Has("version") {
		var r *actor.Refusal
		version, r = ingress.ParseContextVersion(string(args.Peek("version")))
		p = badRequest(r)
	}
	if p != nil {
		p.write(ctx)
		return
	}
	by := callerOf(ctx)
	defer s.turns.take(&by)() // a read has several copies of the value until it has answered
	found, err := lookup(s.Server, by, command.ContextQuery{Session: session, ID: c.ID, Version: version})
	if err != nil {
		s.respondError(ctx, err)
		return
	}
	ctx.Response.Header.Set(fasthttp.HeaderETag, strconv.Quote(strconv.FormatUint(found.Version, 10)))
	respondJSON(ctx, http.StatusOK, struct {
		Key       string         `json:"context_key"`
		OwnerType string         `json:"owner_type"`
		OwnerID   string         `json:"owner_id"`
		Version   uint64         `json:"version"`
		Created   string         `json:"created_at"`
		Data      jsontext.Value `json:"data"`
	}{c.ID + "." + session, found.OwnerType, found.OwnerID, found.Version, runs.FormatTime(found.At), found.Value})
}
