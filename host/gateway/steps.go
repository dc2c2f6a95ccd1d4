// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"net/http"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
)

// stepRoute handles the requests for steps of a run.
type stepRoute struct{ server *Server }

// stepsDefault is the number of steps of a page without a limit.
const stepsDefault = 20

// list answers with steps of a run.
func (s stepRoute) list(ctx *fasthttp.RequestCtx) {
	id, p := pathRunID(ctx)
	q := command.StepsQuery{Run: id}
	var limit uint64
	if p == nil {
		q.After, p = queryUint(ctx, "after", 0, 1<<62)
	}
	if p == nil {
		limit, p = queryLimit(ctx, stepsDefault, command.StepsMax)
	}
	if p == nil {
		q.Prompts, p = queryFlag(ctx, "prompts")
	}
	by := callerOf(ctx)
	if p == nil && len(ctx.QueryArgs().Peek(userParam)) > 0 && !ingress.Allows(by.Principal, ingress.ScopeRead) { // as with every route that shows a run
		p = lacksScope(by.Key, ingress.ScopeRead)
	}
	if p != nil {
		p.write(ctx)
		return
	}
	q.Limit = int(limit)
	s.server.scan(ctx, func(reading context.Context) func() {
		page, err := clientOf(s.server, &by).Steps(reading, q)
		return func() {
			if err != nil {
				s.server.respondError(ctx, err)
				return
			}
			respondJSON(ctx, http.StatusOK, page)
		}
	})
}
