// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
)

// Headers of the protocol by which browsers let pages of another origin read answers:
// fetch.spec.whatwg.org. Access-Control-Allow-Credentials is never sent, so a browser adds no
// cookies and no client certificates: a page sends its key itself.
const (
	requestMethodHeader = "Access-Control-Request-Method"
	allowOriginHeader   = "Access-Control-Allow-Origin"
	exposeHeader        = "Access-Control-Expose-Headers"

	// request headers that a page may send, in addition to those that need no permission
	pageHeaders = "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, Prefer, Traceparent, Tracestate, X-Device-Id, X-Session-Id, X-User-Id"
	// headers of answers that a page may read, likewise
	exposedHeaders = "Allow, Location, Preference-Applied, Retry-After, WWW-Authenticate, X-Request-Id, X-Run-Id, X-Session-Id, X-Should-Retry"
	// time in seconds for which a browser may remember the answer to a preflight request
	preflightMaxAge = "600"
)

// crossOrigin answers requests of pages of the configured origins.
type crossOrigin struct {
	origins []string
	table   routeTable
}

// listedOrigin returns the origin of a request if it is one of the list, else "".
func listedOrigin(origins []string, h *fasthttp.RequestHeader) string {
	if len(origins) == 0 {
		return ""
	}
	if origin := string(h.Peek(fasthttp.HeaderOrigin)); slices.Contains(origins, origin) {
		return origin
	}
	return ""
}

// allowOrigin lets the page of a listed origin read the answer.
func allowOrigin(ctx *fasthttp.RequestCtx, origins []string) {
	if len(origins) == 0 {
		return
	}
	h := &ctx.Response.Header
	h.Set(fasthttp.HeaderVary, fasthttp.HeaderOrigin) // also for others: a cache MUST NOT give one page the answer for another
	if origin := listedOrigin(origins, &ctx.Request.Header); origin != "" {
		h.Set(allowOriginHeader, origin)
		h.Set(exposeHeader, exposedHeaders)
	}
}

// appendAllowOrigin appends the lines of allowOrigin to the head of a stream.
func appendAllowOrigin(b []byte, origin string) []byte {
	if origin == "" {
		return b
	}
	return fmt.Appendf(b, "%s: %s\r\n%s: %s\r\n%s: %s\r\n", fasthttp.HeaderVary, fasthttp.HeaderOrigin, allowOriginHeader, origin, exposeHeader, exposedHeaders)
}

// handler answers preflight requests of listed origins and passes on the others. A preflight
// request has no key, changes nothing and reads nothing.
func (c crossOrigin) handler(next fasthttp.RequestHandler) fasthttp.RequestHandler {
	if len(c.origins) == 0 {
		return next
	}
	return func(ctx *fasthttp.RequestCtx) {
		h := &ctx.Request.Header
		if !ctx.IsOptions() || len(h.Peek(requestMethodHeader)) == 0 || listedOrigin(c.origins, h) == "" {
			next(ctx)
			return
		}
		methods := c.methods(ctx.Path())
		if len(methods) == 0 {
			next(ctx) // no such path
			return
		}
		r := &ctx.Response.Header
		r.Set("Access-Control-Allow-Methods", strings.Join(methods, ", "))
		r.Set("Access-Control-Allow-Headers", pageHeaders+stockHeaders(h))
		r.Set("Access-Control-Max-Age", preflightMaxAge)
		ctx.SetStatusCode(http.StatusNoContent)
	}
}

// stockHeaders returns the requested headers with which the stock clients of the OpenAI API
// describe themselves, each after a comma.
func stockHeaders(h *fasthttp.RequestHeader) string {
	var all strings.Builder
	for name := range strings.SplitSeq(string(h.Peek("Access-Control-Request-Headers")), ",") {
		if name = strings.ToLower(strings.TrimSpace(name)); strings.HasPrefix(name, "x-stainless-") && actor.CheckName(name) == nil {
			all.WriteString(", " + name)
		}
	}
	return all.String()
}

// methods returns the methods of a path in alphabetical order.
func (c crossOrigin) methods(path []byte) (all []string) {
	for _, method := range []string{http.MethodDelete, http.MethodGet, http.MethodPost, http.MethodPut} {
		if _, ok := c.table.scope([]byte(method), path); ok {
			all = append(all, method)
		}
	}
	return all
}
