// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
)

// Bounds of the lists in responses.
const (
	RunsMax       = command.RunsMax
	RunsDefault   = 20
	EventsMax     = command.EventsMax
	EventsDefault = 200
	NamesMax      = 1000 // agents or keys of a page
	NamesDefault  = 200
)

// ScansMax is the maximum number of requests that read lists, trees of runs, sessions and their
// events at the same time.
const (
	ScansMax      = 16
	scansEach     = 8
	scansReserved = 4
)

// scan performs a request that reads much. It refuses the request while there are
// too many others. The context ends when the client disconnects. The request is
// answered by the function that perform returns, unless its client has gone.
func (s *Server) scan(ctx *fasthttp.RequestCtx, perform func(context.Context) (respond func())) {
	by := callerOf(ctx)
	release, r := s.scans.acquire(&by)
	if r != nil {
		refusalProblem(r).write(ctx)
		return
	}
	defer release()
	waitCtx := s.newClientContext(ctx, readTimeout)
	waitCtx.Done() // starts to watch the client
	respond := perform(waitCtx)
	cause := waitCtx.cause()
	waitCtx.stop()
	if !respondAborted(ctx, cause) {
		respond()
	}
}

// listRuns answers with a page of the runs that the parameters select.
func (s *Server) listRuns(ctx *fasthttp.RequestCtx) {
	limit, p := queryLimit(ctx, RunsDefault, RunsMax)
	if p != nil {
		p.write(ctx)
		return
	}
	by := callerOf(ctx)
	list, r := ingress.ParseRunList(ingress.CursorKey(s.config.Secret), by.Tenant, func(name string) (string, bool) {
		return string(ctx.QueryArgs().Peek(name)), ctx.QueryArgs().Has(name)
	})
	if r != nil {
		badRequest(r).write(ctx)
		return
	}
	s.scan(ctx, func(reading context.Context) func() {
		page, from, err := readRuns(reading, nodeOf(s, &by), by, &list, int(limit))
		if err != nil {
			return func() { s.respondError(ctx, err) }
		}
		return func() { respond(ctx, http.StatusOK, list.AppendJSON(nil, &page, from)) }
	})
}

// readRuns returns a page of a list of runs. The list of all users continues in the
// namespace from.
func readRuns(ctx context.Context, n command.Node, by caller, list *ingress.RunList, limit int) (page runs.Page, from string, err error) {
	if list.Tenant != ingress.EveryUser {
		found, err := command.Find(ctx, n, by.Principal, command.RunsQuery{Filter: list.Filter, Before: list.Before, Limit: limit})
		return found.Page, "", err
	}
	by.Tenant = actor.DefaultTenant
	found, err := command.Find(ctx, n, by.Principal, command.EveryRunQuery{Filter: list.Filter, From: list.From, Before: list.Before, Limit: limit})
	return found.Page, found.From, err
}

// namesPage returns the page of a list that a request asks for, and the cursor of the
// next one, "" after the last. The items are sorted by their names.
func namesPage[T any](ctx *fasthttp.RequestCtx, key ingress.CursorKey, list string, all []T, name func(*T) string) (page []T, next string, p *problem) {
	limit, p := queryLimit(ctx, NamesDefault, NamesMax)
	if p != nil {
		return nil, "", p
	}
	list += " " + callerOf(ctx).Tenant
	if cursor := string(ctx.QueryArgs().Peek("cursor")); cursor != "" {
		after, r := key.ParsePageCursor(list, cursor)
		if r != nil {
			return nil, "", badRequest(r)
		}
		at, found := slices.BinarySearchFunc(all, after, func(v T, after string) int { return strings.Compare(name(&v), after) })
		if found {
			at++
		}
		all = all[at:]
	}
	if len(all) > int(limit) {
		all = all[:limit]
		next = key.PageCursor(list, name(&all[limit-1]))
	}
	return all, next, nil
}
