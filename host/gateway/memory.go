// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"net/http"

	"github.com/go-json-experiment/json"
	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/memory"
)

// memoryRoutes are the routes about what agents remember.
type memoryRoutes struct{ server *Server }

// memoryScope are the parameters that name a scope.
var memoryScope = []string{"scope", "session_id", "agent_id"}

// entitiesDefault is the number of entities of a page.
const entitiesDefault = 50

// create remembers a fact.
func (s memoryRoutes) create(ctx *fasthttp.RequestCtx) { s.change(ctx, memory.OpCreate) }

// forget forgets an entity.
func (s memoryRoutes) forget(ctx *fasthttp.RequestCtx) { s.change(ctx, memory.OpForget) }

func (s memoryRoutes) change(ctx *fasthttp.RequestCtx, operation string) {
	in, p := decodeBody(ctx, func(b []byte) (ingress.MemoryRequest, *actor.Refusal) {
		return ingress.DecodeMemory(b, operation == memory.OpForget)
	})
	r, keyed := requestOf(ctx, operation, headers(ctx, ingress.IdempotencyKey))
	if p == nil {
		p = keyed
	}
	if p != nil {
		p.write(ctx)
		return
	}
	by := callerOf(ctx)
	asking, cancel := context.WithTimeout(context.Background(), contextTimeout)
	defer cancel()
	answer, err := clientOf(s.server, &by).ChangeMemory(asking, operation, in.Scope, in.Key, in.Change, r)
	s.respond(ctx, answer, err)
}

func (s memoryRoutes) respond(ctx *fasthttp.RequestCtx, answer []byte, err error) {
	if err != nil {
		s.server.respondError(ctx, err)
		return
	}
	respond(ctx, http.StatusOK, answer)
}

// ask answers the question in a body, whose text is in a field.
func (s memoryRoutes) ask(ctx *fasthttp.RequestCtx, kind command.MemoryKind, field string, further ...string) {
	in, p := decodeBody(ctx, func(b []byte) (ingress.MemoryQuestion, *actor.Refusal) {
		return ingress.DecodeMemoryQuestion(b, field, further...)
	})
	if p != nil {
		p.write(ctx)
		return
	}
	answer, err := s.find(ctx, command.MemoryQuery{Kind: kind, Scope: string(in.Scope), Key: in.Key, Text: in.Text, Relation: in.Relation, Depth: in.Depth, Superseded: in.Superseded, Limit: in.Limit})
	s.respond(ctx, answer, err)
}

func (s memoryRoutes) find(ctx *fasthttp.RequestCtx, q command.MemoryQuery) ([]byte, error) {
	by := callerOf(ctx)
	asking, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	return clientOf(s.server, &by).FindMemory(asking, q)
}

// search answers with the facts that match words best.
func (s memoryRoutes) search(ctx *fasthttp.RequestCtx) {
	s.ask(ctx, command.MemorySearch, "query", "superseded", "limit")
}

// entity answers with one entity.
func (s memoryRoutes) entity(ctx *fasthttp.RequestCtx) { s.ask(ctx, command.MemoryEntity, "entity") }

// traverse answers with what relations of an entity lead to.
func (s memoryRoutes) traverse(ctx *fasthttp.RequestCtx) {
	s.ask(ctx, command.MemoryTraverse, "from", "relation", "depth")
}

// list answers with a page of entities in the order of their names.
func (s memoryRoutes) list(ctx *fasthttp.RequestCtx) {
	arg := func(name string) string { return string(ctx.QueryArgs().Peek(name)) }
	limit, p := queryLimit(ctx, entitiesDefault, memory.PageMax)
	scope, key, r := ingress.MemoryScope(arg("scope"), arg("session_id"), arg("agent_id"))
	if p == nil {
		p = badRequest(r)
	}
	by := callerOf(ctx)
	cursors, list := ingress.CursorKey(s.server.config.Secret), "memory "+by.Tenant+" "+string(scope)+" "+key
	q := command.MemoryQuery{Kind: command.MemoryPage, Scope: string(scope), Key: key, Limit: int(limit)}
	if cursor := arg("cursor"); p == nil && cursor != "" {
		q.Text, r = cursors.ParsePageCursor(list, cursor)
		p = badRequest(r)
	}
	if p != nil {
		p.write(ctx)
		return
	}
	answer, err := s.find(ctx, q)
	var page struct {
		memory.PageView `json:",inline"`
		Cursor          string `json:"next_cursor,omitzero"`
	}
	if err == nil {
		err = json.Unmarshal(answer, &page.PageView)
	}
	if err != nil {
		s.server.respondError(ctx, err)
		return
	}
	if page.Next != "" {
		page.Cursor, page.Next = cursors.PageCursor(list, page.Next), ""
	}
	respondJSON(ctx, http.StatusOK, page)
}
