// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/runs"
)

// performRequest performs a request of the client.
func (d *socketDriver) performRequest(r *ingress.SocketRequest) {
	in := performedWith("internal", "the request could not be performed: the log of the server has the reason", 0)
	defer func() {
		d.recovered("panic while performing a request of a socket", recover())
		d.pass(in)
	}()
	in = d.request(r)
}

// request performs a request of the client as one of the HTTP API.
func (d *socketDriver) request(r *ingress.SocketRequest) ingress.Performed {
	if p := d.checkRun(r); p != nil {
		return performedWith(p.Code, p.Detail, p.RetryAfter)
	}
	ctx := &fasthttp.RequestCtx{}
	ctx.Init2(d.from, httpLog{d.server.log}, true)
	d.head.CopyTo(&ctx.Request.Header)
	h := &ctx.Request.Header
	for _, name := range []string{"Upgrade", "Connection", "Sec-Websocket-Key", "Sec-Websocket-Version", "Sec-Websocket-Extensions", fasthttp.HeaderAccept, ingress.IdempotencyKey} {
		h.Del(name)
	}
	h.SetMethod(r.Method)
	h.SetContentType("application/json")
	ctx.Request.SetRequestURI(r.Path)
	ctx.Request.SetBody(r.Body)
	if r.ID != "" {
		h.Set(ingress.IdempotencyKey, r.ID)
	}
	if r.Type == ingress.SocketInvoke {
		h.Set(preferHeader, respondAsync)
	}
	d.server.handle(ctx)
	var out struct {
		Code       string `json:"code"`
		Detail     string `json:"detail"`
		RetryAfter int64  `json:"retry_after"`
		Run        string `json:"run_id"`
		Session    string `json:"session_id"`
		Agent      string `json:"agent_id"`
		Repeated   bool   `json:"repeated"`
	}
	if err := json.Unmarshal(ctx.Response.Body(), &out); err != nil && len(ctx.Response.Body()) > 0 {
		d.server.log.Error("cannot decode an answer", "request", r.String(), "error", err.Error())
	}
	if ctx.Response.StatusCode() >= http.StatusBadRequest {
		return performedWith(out.Code, out.Detail, out.RetryAfter)
	}
	in := ingress.Performed{Session: out.Session, Agent: out.Agent, Repeated: out.Repeated}
	in.Run, _ = actor.ParseCallID(out.Run)
	return in
}

func performedWith(code, detail string, retryAfter int64) ingress.Performed {
	if code == "" {
		code = "internal"
	}
	return ingress.Performed{Code: code, Detail: detail, RetryAfter: retryAfter}
}

// checkRun checks that a decision or a result names the root run of its tool call, or the run
// itself, if it names one.
func (d *socketDriver) checkRun(r *ingress.SocketRequest) *problem {
	id, err := runs.ToolCallID{}, error(nil)
	switch {
	case r.Run.IsZero():
		return nil
	case r.Type == ingress.SocketDecision:
		id, err = runs.ParseApprovalID(strings.TrimSuffix(strings.TrimPrefix(r.Path, "/v1/approvals/"), ":decide"))
	case r.Type == ingress.SocketToolResult:
		id, err = runs.ParseToolCallID(strings.TrimSuffix(strings.TrimPrefix(r.Path, "/v1/tool_calls/"), ":result"))
	default:
		return nil
	}
	if err != nil || id.Run == r.Run {
		return nil
	}
	owner, err := d.server.runOwner(d.by, id.Run)
	if err == nil && owner.Root != r.Run {
		return invalid(http.StatusBadRequest, "run_id", fmt.Sprintf("run_id: want %s, the run of the call, or no value", owner.Root))
	}
	return nil // the request itself refuses a run that does not exist
}
