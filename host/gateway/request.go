// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
)

// Maximum length of a request body in bytes: of a request with a whole conversation, and of any
// other.
const (
	ChatBytesMax = 8 << 20
	BodyBytesMax = 1 << 20
)

// bodyMax returns the maximum length of the body of a request.
func bodyMax(h *fasthttp.RequestHeader) int {
	switch path, _, _ := bytes.Cut(h.RequestURI(), questionMark); string(path) {
	case "/v1/chat/completions", agentChatRoute:
		return ChatBytesMax
	default:
		return BodyBytesMax
	}
}

// All values taken from a request are copied, because fasthttp reuses its
// buffers.

// decodeBody decodes the body with the given function of package ingress.
// validateHead has already checked the content type.
func decodeBody[T any](ctx *fasthttp.RequestCtx, decode func([]byte) (T, *actor.Refusal)) (T, *problem) {
	out, r := decode(append([]byte(nil), ctx.PostBody()...))
	return out, badRequest(r)
}

// requireEmptyBody rejects a body on a route that takes no parameters.
func requireEmptyBody(ctx *fasthttp.RequestCtx) *problem {
	_, p := decodeBody(ctx, func(b []byte) (struct{}, *actor.Refusal) { return struct{}{}, ingress.CheckEmpty(b) })
	return p
}

// pathParam returns a parameter of the path. The router has copied it.
func pathParam(ctx *fasthttp.RequestCtx, name string) string {
	text, _ := ctx.UserValue(name).(string)
	return text
}

func header(ctx *fasthttp.RequestCtx, name string) string {
	return string(ctx.Request.Header.Peek(name))
}

func headers(ctx *fasthttp.RequestCtx, name string) []string {
	return headersOf(&ctx.Request.Header, name)
}

func headersOf(head *fasthttp.RequestHeader, name string) (all []string) {
	for _, h := range head.PeekAll(name) {
		all = append(all, string(h))
	}
	return all
}

// checkQuery rejects parameters that the route does not have, and duplicates: a
// misspelt parameter would be ignored without notice.
func checkQuery(ctx *fasthttp.RequestCtx, known []string) *problem {
	if len(ctx.URI().QueryString()) == 0 {
		return nil
	}
	seen := map[string]bool{}
	for key := range ctx.QueryArgs().All() {
		name := string(key)
		switch {
		case !slices.Contains(known, name):
			return invalid(http.StatusBadRequest, name, fmt.Sprintf("the query parameter %.80s %s", name, ingress.Unknown(name, known)))
		case seen[name]:
			return invalid(http.StatusBadRequest, name, "the query parameter "+name+" is a duplicate")
		}
		seen[name] = true
	}
	return nil
}

// queryUint parses a number of the query. A missing number yields the default.
func queryUint(ctx *fasthttp.RequestCtx, name string, defaultValue, maxValue uint64) (uint64, *problem) {
	if !ctx.QueryArgs().Has(name) {
		return defaultValue, nil
	}
	n, err := strconv.ParseUint(string(ctx.QueryArgs().Peek(name)), 10, 63)
	if err != nil {
		return 0, invalid(http.StatusBadRequest, name, name+": want a non-negative number")
	}
	if n > maxValue {
		return 0, invalid(http.StatusBadRequest, name, fmt.Sprintf("%s: want at most %d, got %d", name, maxValue, n))
	}
	return n, nil
}

// queryLimit parses the maximum number of items of a page, at least 1: an empty page
// would not advance.
func queryLimit(ctx *fasthttp.RequestCtx, defaultValue, maxValue uint64) (uint64, *problem) {
	n, p := queryUint(ctx, "limit", defaultValue, maxValue)
	if p == nil && n == 0 {
		p = invalid(http.StatusBadRequest, "limit", fmt.Sprintf("limit: want 1 to %d", maxValue))
	}
	return n, p
}

// queryFlag parses a boolean of the query: 1 or 0. A missing flag is false.
func queryFlag(ctx *fasthttp.RequestCtx, name string) (bool, *problem) {
	switch text := string(ctx.QueryArgs().Peek(name)); {
	case text == "0" || !ctx.QueryArgs().Has(name):
		return false, nil
	case text == "1":
		return true, nil
	}
	return false, invalid(http.StatusBadRequest, name, name+": want 1 or 0")
}

func pathRunID(ctx *fasthttp.RequestCtx) (actor.CallID, *problem) {
	id, err := actor.ParseCallID(pathParam(ctx, "id"))
	if err != nil {
		return id, invalid(http.StatusBadRequest, "id", err.Error())
	}
	return id, nil
}

// fillRequestContext sets the principal, trace and idempotency of a call from the
// headers of its request.
func fillRequestContext(ctx *fasthttp.RequestCtx, route string, call *actor.Call) *problem {
	return fillKeyedContext(ctx, route, headers(ctx, ingress.IdempotencyKey), call)
}

// fillKeyedContext is fillRequestContext with the idempotency keys of the request.
func fillKeyedContext(ctx *fasthttp.RequestCtx, route string, keys []string, call *actor.Call) *problem {
	var r *actor.Refusal
	by := callerOf(ctx)
	call.Principal, call.Extensions = by.User, call.Extensions.WithInvocation(by.invocation)
	call.Trace = ingress.Trace(headers(ctx, "traceparent"), headers(ctx, "tracestate"))
	call.Idempotency, r = ingress.ParseIdempotency(call.Principal, route, keys, ctx.PostBody())
	return badRequest(r)
}
