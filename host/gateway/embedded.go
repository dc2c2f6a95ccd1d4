// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"
)

// Handler returns the routes of s for an HTTP server of the embedding program. It
// validates requests as the server's own listeners do, as far as the head and the body of
// a parsed request show it. It knows neither the address of the other server nor the proxies
// before it, so every client needs an API key. Config.Hosts restricts the Host header.
func Handler(s *Server) fasthttp.RequestHandler {
	return observed(s, func(ctx *fasthttp.RequestCtx) {
		if p, hangUp := validateEmbedded(s, ctx); p != nil {
			p.write(ctx)
			if hangUp {
				ctx.SetConnectionClose()
			}
			return
		}
		s.handle(ctx)
	})
}

// validateEmbedded validates a request that another server has read: see validateHead.
func validateEmbedded(s *Server, ctx *fasthttp.RequestCtx) (p *problem, hangUp bool) {
	h := &ctx.Request.Header
	present, p := checkFraming(h.Method(), h.Protocol(), h.RawHeaders())
	if p != nil {
		return p, true
	}
	if hasTrailers(h) {
		return invalid(http.StatusBadRequest, "", "trailers are not supported"), true
	}
	name, port, ok := splitHost(string(h.Host()))
	switch {
	case !ok:
		return invalid(http.StatusBadRequest, "Host", "Host: want a name or an address, with an optional port"), false
	case len(s.config.Hosts) > 0 && !slices.ContainsFunc(s.config.Hosts, func(own string) bool { return strings.EqualFold(own, name) || strings.EqualFold(own, name+":"+port) }):
		return newProblem(http.StatusForbidden, "forbidden_host", "forbidden host", fmt.Sprintf("the Host header names %.80q, which is not a name of this server", h.Host())), false
	case len(ctx.Request.Body()) > bodyMax(&ctx.Request.Header):
		return invalid(http.StatusRequestEntityTooLarge, "", fmt.Sprintf("the body exceeds %d bytes", bodyMax(&ctx.Request.Header))), false
	}
	if p = checkTarget(h); p == nil && present&(1<<singletonOrigin|1<<singletonSite) != 0 {
		p = s.checkOrigin(h)
	}
	if p == nil {
		p = checkMediaType(h)
	}
	return p, false
}

// embeddedKeyRequired returns the reason why a request of Handler needs an API key, or "" if
// the connection is one of the server's own listeners.
func embeddedKeyRequired(conn net.Conn) string {
	if _, own := conn.(*connection); own || conn == nil {
		return ""
	}
	return "this request needs an API key: send the header Authorization: Bearer troupe_…"
}
