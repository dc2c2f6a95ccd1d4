// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"net/http"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
)

// promptRoute handles the requests for recorded prompts.
type promptRoute struct{ server *Server }

// promptsDefault is the number of prompts of a page without a limit.
const promptsDefault = 20

// list answers with recorded prompts of a run.
func (s promptRoute) list(ctx *fasthttp.RequestCtx) {
	id, p := pathRunID(ctx)
	var after, limit uint64
	if p == nil {
		after, p = queryUint(ctx, "after", 0, 1<<62)
	}
	if p == nil {
		limit, p = queryLimit(ctx, promptsDefault, command.PromptsMax)
	}
	by := callerOf(ctx)
	if p == nil && len(ctx.QueryArgs().Peek(userParam)) > 0 && !ingress.Allows(by.Principal, ingress.ScopeRead) { // as with every route that shows a run
		p = lacksScope(by.Key, ingress.ScopeRead)
	}
	if p != nil {
		p.write(ctx)
		return
	}
	s.server.scan(ctx, func(reading context.Context) func() {
		page, err := command.Find(reading, nodeOf(s.server, &by), by.Principal, command.PromptsQuery{Run: id, After: after, Limit: int(limit)})
		return func() {
			if err != nil {
				s.server.respondError(ctx, err)
				return
			}
			respond(ctx, http.StatusOK, page.AppendJSON(nil))
		}
	})
}
