// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"net/http"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
)

// problem is what a client gets instead of an answer (RFC 9457).
type problem struct {
	Type       string   `json:"type"`
	Title      string   `json:"title"`
	Status     int      `json:"status"`
	Detail     string   `json:"detail"`
	Code       string   `json:"code"`
	Field      string   `json:"field,omitzero"`
	Scope      string   `json:"scope,omitzero"` // of agent_busy: whose limit it was
	Chain      []string `json:"chain,omitempty"`
	RetryAfter int64    `json:"retry_after,omitzero"` // seconds
	Run        string   `json:"run_id,omitzero"`
}

func newProblem(status int, code, title, detail string) *problem {
	return &problem{Type: "urn:troupe:problem:" + code, Title: title, Status: status, Detail: detail, Code: code}
}

// refusal is the problem that a refusal is.
func refusal(r *actor.Refusal) *problem {
	out := r.Reason.Outside()
	p := newProblem(r.HTTP(), out.Type, out.Error, r.Detail)
	p.Field, p.Scope = r.Field, r.Scope.String()
	if r.Field == ingress.IdempotencyKey {
		p.Status = http.StatusUnprocessableEntity
	}
	for _, id := range r.Chain {
		p.Chain = append(p.Chain, id.String())
	}
	if r.RetryAfter > 0 {
		p.RetryAfter = int64((r.RetryAfter + time.Second - 1) / time.Second)
	}
	return p
}

// invalid is a request that is at fault, in a field if one is named.
func invalid(status int, field, detail string) *problem {
	out := actor.Invalid.Outside()
	p := newProblem(status, out.Type, out.Error, detail)
	p.Field = field
	return p
}

// bad is a request that ingress refuses; nil if it does not.
func bad(r *actor.Refusal) *problem {
	if r == nil {
		return nil
	}
	return invalid(http.StatusBadRequest, r.Field, r.Detail)
}

func (p *problem) write(ctx *fasthttp.RequestCtx) {
	body, _ := json.Marshal(p)
	ctx.Response.ResetBody()
	ctx.SetStatusCode(p.Status)
	ctx.SetContentType("application/problem+json")
	if p.Status == http.StatusUnauthorized {
		ctx.Response.Header.Set(fasthttp.HeaderWWWAuthenticate, "Bearer")
	}
	if p.RetryAfter > 0 {
		ctx.Response.Header.Set(fasthttp.HeaderRetryAfter, strconv.FormatInt(p.RetryAfter, 10))
	}
	ctx.SetBody(body)
}
