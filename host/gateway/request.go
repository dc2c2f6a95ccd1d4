// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"net/http"
	"strconv"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
)

// BodyBytesMax is how long the body of a request may be.
const BodyBytesMax = 1 << 20

// What is read of a request is copied: fasthttp uses its bytes again.

// decodeBody takes a body in as something that a client may ask for. That it is JSON by
// its own account the guard has seen to.
func decodeBody[T any](ctx *fasthttp.RequestCtx, as func([]byte) (T, *actor.Refusal)) (T, *problem) {
	out, r := as(append([]byte(nil), ctx.PostBody()...))
	return out, badRequest(r)
}

// requireEmptyBody refuses a body that says something where the path says it all.
func requireEmptyBody(ctx *fasthttp.RequestCtx) *problem {
	_, p := decodeBody(ctx, func(b []byte) (struct{}, *actor.Refusal) { return struct{}{}, ingress.CheckEmpty(b) })
	return p
}

// pathParam is a part of the path. The router has copied it.
func pathParam(ctx *fasthttp.RequestCtx, name string) string {
	text, _ := ctx.UserValue(name).(string)
	return text
}

func header(ctx *fasthttp.RequestCtx, name string) string {
	return string(ctx.Request.Header.Peek(name))
}

func headers(ctx *fasthttp.RequestCtx, name string) (all []string) {
	for _, h := range ctx.Request.Header.PeekAll(name) {
		all = append(all, string(h))
	}
	return all
}

// queryUint reads a number of the query; absent is the default, more than most is most.
func queryUint(ctx *fasthttp.RequestCtx, name string, or, most uint64) (uint64, *problem) {
	if !ctx.QueryArgs().Has(name) {
		return or, nil
	}
	n, err := strconv.ParseUint(string(ctx.QueryArgs().Peek(name)), 10, 63)
	if err != nil {
		return 0, invalid(http.StatusBadRequest, name, name+": want a number from 0 on")
	}
	return min(n, most), nil
}

// queryFlag reads a yes or no of the query: 1 or 0.
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

// fillRequestContext fills in what a client may say of a call besides what it is.
func fillRequestContext(ctx *fasthttp.RequestCtx, route string, call *actor.Call) *problem {
	var r *actor.Refusal
	call.Principal = callerOf(ctx).Principal
	call.Trace = ingress.Trace(headers(ctx, "traceparent"))
	call.Idempotency, r = ingress.ParseIdempotency(call.Principal, route, headers(ctx, ingress.IdempotencyKey), ctx.PostBody())
	return badRequest(r)
}
