// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/client"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/internal/invariant"
)

// problem is an error response according to RFC 9457.
type problem struct {
	Type       string          `json:"type"`
	Title      string          `json:"title"`
	Status     int             `json:"status"`
	Detail     string          `json:"detail"`
	Code       string          `json:"code"`
	Field      string          `json:"field,omitzero"`
	Reported   string          `json:"reported_code,omitzero"` // of the agent, tool or model that has refused, if it has given one
	Scope      string          `json:"scope,omitzero"`         // owner of the exceeded limit, for agent_busy
	Chain      []string        `json:"chain,omitempty"`
	RetryAfter int64           `json:"retry_after,omitzero"` // seconds
	Run        string          `json:"run_id,omitzero"`
	FirstSeq   uint64          `json:"first_seq,omitzero"` // first event that is left, for events_dropped
	Partial    *client.Partial `json:"partial,omitzero"`   // what the run had produced, for timeout
	wrongKey   bool            // a presented key or run token is wrong
	openAI     []byte          // body for clients of the OpenAI API, as a model sent it; empty: made of the fields
}

func newProblem(status int, code, title, detail string) *problem {
	return &problem{Type: "urn:troupe:problem:" + code, Title: title, Status: status, Detail: detail, Code: code}
}

// refusalProblem converts a refusal to a problem.
func refusalProblem(r *actor.Refusal) *problem {
	out := r.Info()
	p := newProblem(r.HTTP(), out.Type, out.Error, r.Detail+remedyOf(r))
	p.Field, p.Scope, p.Reported = r.Field, r.Scope.String(), r.Code
	switch {
	case r.Reason == actor.Stopped:
		p.Title = "Cancelled" // its name in records is that of a failure
	case r.Field == ingress.IdempotencyKey:
		p.Status = http.StatusUnprocessableEntity
	}
	for _, id := range r.Chain {
		p.Chain = append(p.Chain, id.String())
	}
	p.RetryAfter = r.RetrySeconds()
	return p
}

// invalid returns the problem of an invalid request. The field is optional.
func invalid(status int, field, detail string) *problem {
	out := actor.Invalid.Info()
	p := newProblem(status, out.Type, out.Error, detail)
	p.Field = field
	return p
}

// badRequest converts a refusal of package ingress to a problem. It returns nil
// for nil.
func badRequest(r *actor.Refusal) *problem {
	if r == nil {
		return nil
	}
	return invalid(http.StatusBadRequest, r.Field, r.Detail)
}

// eventsDropped returns the problem of a request for events that were deleted.
func eventsDropped(e command.EventsDropped) *problem {
	p := newProblem(http.StatusGone, "events_dropped", "EventsDropped", fmt.Sprintf("the log was cut: read the events of this run from event %d on", e.First))
	p.Run, p.FirstSeq = e.Run.String(), e.First
	return p
}

// remedyOf returns how a client finds what exists, if a refusal says that something does not.
func remedyOf(r *actor.Refusal) string {
	if r.Reason != actor.NotFound {
		return ""
	}
	switch r.What {
	case actor.WhatAgent:
		return "; GET /v1/agents lists those that are"
	case actor.WhatRun:
		return "; GET /v1/runs lists the newest runs"
	case actor.WhatSession:
		return "; GET /v1/sessions lists yours"
	case actor.WhatApproval:
		return "; GET /v1/approvals lists those that wait"
	case actor.WhatTool:
		return "; see GET /v1/tools"
	case actor.WhatKey:
		return "; see `troupe keys list`"
	}
	return ""
}

// append appends the problem as JSON. It avoids reflection, because a refusal
// must not cost more than an answer.
func (p *problem) append(b []byte) []byte {
	b = appendQuoted(append(b, `{"type":`...), p.Type)
	b = appendQuoted(append(b, `,"title":`...), p.Title)
	b = strconv.AppendInt(append(b, `,"status":`...), int64(p.Status), 10)
	b = appendQuoted(append(b, `,"detail":`...), strings.ToValidUTF8(p.Detail, "\uFFFD"))
	b = appendQuoted(append(b, `,"code":`...), p.Code)
	if p.Field != "" {
		b = appendQuoted(append(b, `,"field":`...), strings.ToValidUTF8(p.Field, "\uFFFD"))
	}
	if p.Reported != "" {
		b = appendQuoted(append(b, `,"reported_code":`...), strings.ToValidUTF8(p.Reported, "\uFFFD"))
	}
	if p.Scope != "" {
		b = appendQuoted(append(b, `,"scope":`...), p.Scope)
	}
	for i, id := range p.Chain {
		b = appendQuoted(append(b, [...]string{`,"chain":[`, ","}[min(i, 1)]...), id)
	}
	if len(p.Chain) > 0 {
		b = append(b, ']')
	}
	if p.RetryAfter != 0 {
		b = strconv.AppendInt(append(b, `,"retry_after":`...), p.RetryAfter, 10)
	}
	if p.Run != "" {
		b = appendQuoted(append(b, `,"run_id":`...), p.Run)
	}
	if p.FirstSeq != 0 {
		b = strconv.AppendUint(append(b, `,"first_seq":`...), p.FirstSeq, 10)
	}
	if p.Partial != nil {
		b = append(append(b, `,"partial":`...), invariant.Must(json.Marshal(p.Partial, jsontext.AllowInvalidUTF8(true)))...)
	}
	return append(b, '}')
}

// loggedProblem is the key under which the problem of a request is kept for its log
// line.
const loggedProblem = "problem"

func (p *problem) write(ctx *fasthttp.RequestCtx) {
	buf := bufferPool.Get().(*[]byte)
	defer bufferPool.Put(buf)
	ctx.SetUserValue(loggedProblem, p)
	ctx.SetStatusCode(p.Status)
	if isOpenAI(ctx.Path()) {
		if p.Status >= 500 && p.RetryAfter == 0 {
			ctx.Response.Header.Set("X-Should-Retry", "false") // stock clients repeat every 5xx otherwise
		}
		*buf = p.appendOpenAI((*buf)[:0])
		ctx.SetContentType("application/json")
	} else {
		*buf = p.append((*buf)[:0])
		ctx.SetContentType("application/problem+json")
	}
	keepFromCaches(ctx)
	if p.Run != "" {
		ctx.Response.Header.Set(runHeader, p.Run)
	}
	if p.Status == http.StatusUnauthorized {
		ctx.Response.Header.Set(fasthttp.HeaderWWWAuthenticate, "Bearer")
	}
	if p.RetryAfter > 0 {
		ctx.Response.Header.Set(fasthttp.HeaderRetryAfter, strconv.FormatInt(p.RetryAfter, 10))
	}
	ctx.Response.ResetBody()
	ctx.SetBody(*buf)
}
