// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"net/http"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
)

// usageRoutes handles the requests for what runs used.
type usageRoutes struct{ server *Server }

const (
	usageRoute   = "/v1/usage"
	usageDefault = 200 // rows of a page without a limit
)

// report answers with a page of what runs used.
func (s usageRoutes) report(ctx *fasthttp.RequestCtx) {
	limit, p := queryLimit(ctx, usageDefault, command.UsageRowsMax)
	if p != nil {
		p.write(ctx)
		return
	}
	by := callerOf(ctx)
	list, r := ingress.ParseUsageList(ingress.CursorKey(s.server.config.Secret), by.Tenant, actor.Time(time.Now().UnixNano()), func(name string) (string, bool) {
		return string(ctx.QueryArgs().Peek(name)), ctx.QueryArgs().Has(name)
	})
	if r != nil {
		badRequest(r).write(ctx)
		return
	}
	q := UsageQuery(&list, int(limit))
	if q.EveryUser {
		by.Tenant = actor.DefaultTenant
	}
	s.server.scan(ctx, func(reading context.Context) func() {
		page, err := command.Find(reading, nodeOf(s.server, &by), by.Principal, q)
		return func() {
			if err != nil {
				s.server.respondError(ctx, err)
				return
			}
			respond(ctx, http.StatusOK, AppendUsage(nil, &list, &page))
		}
	})
}

// UsageQuery returns the query for a page of a report.
func UsageQuery(l *ingress.UsageList, limit int) command.UsageQuery {
	q := command.UsageQuery{From: l.From, To: l.To, By: l.By, EveryUser: l.Tenant == ingress.EveryUser, Limit: limit}
	if l.After != nil {
		q.Paged, q.After = true, *l.After
	}
	return q
}

// AppendUsage appends a page of a report as JSON.
func AppendUsage(b []byte, l *ingress.UsageList, page *command.Usage) []byte {
	next := ""
	if n := len(page.Rows); page.More && n > 0 {
		next = l.Next(&page.Rows[n-1].UsageKey)
	}
	return page.AppendJSON(b, next)
}
