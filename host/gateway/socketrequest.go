// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/client"
	"github.com/troupe-run/troupe/internal/command"
)

// socketHead has the properties of later requests that follow from the head of the handshake.
type socketHead struct {
	trace   string
	claimed actor.CallID
	agent   bool     // the client may be an agent: it decides about nothing and gives no results
	own     *problem // this server has sent it: it begins no run
}

func newSocketHead(secret []byte, h *fasthttp.RequestHeader) socketHead {
	return socketHead{trace: ingress.Trace(headersOf(h, "traceparent"), headersOf(h, "tracestate")), claimed: claimedRun(h),
		agent: len(h.PeekAll(runHeader)) > 0 || len(h.PeekAll(egressHeader)) > 0, own: checkNotOwn(secret, h)}
}

// performRequest performs a request of the client.
func (d *socketDriver) performRequest(r *ingress.SocketRequest) {
	in := performedWith("internal", "the request could not be performed: the log of the server has the reason", 0)
	defer func() {
		d.recovered("panic while performing a request of a socket", recover())
		d.pass(in)
	}()
	in = d.request(r)
}

// request performs a request of the client, with the rules of the HTTP API.
func (d *socketDriver) request(r *ingress.SocketRequest) (in ingress.Performed) {
	p := d.checkRequest(r)
	if p == nil {
		switch r.Type {
		case ingress.SocketInvoke:
			in, p = d.invoke(r)
		case ingress.SocketDecision:
			in, p = d.decide(r)
		case ingress.SocketToolResult:
			in, p = d.giveResult(r)
		default:
			in, p = d.cancelRun(r)
		}
	}
	if p != nil {
		return performedWith(p.Code, p.Detail, p.RetryAfter)
	}
	return in
}

func performedWith(code, detail string, retryAfter int64) ingress.Performed {
	if code == "" {
		code = "internal"
	}
	return ingress.Performed{Code: code, Detail: detail, RetryAfter: retryAfter}
}

// checkRequest checks that the client may make a request now.
func (d *socketDriver) checkRequest(r *ingress.SocketRequest) *problem {
	decides := r.Type == ingress.SocketDecision || r.Type == ingress.SocketToolResult
	switch {
	case d.by.lost(d.server.config.Keys):
		return invalidKey()
	case !ingress.Allows(d.by.Principal, ingress.ScopeCall) && !d.by.chats():
		return lacksScope(d.by.Key, ingress.ScopeCall)
	case decides && d.shook.agent:
		return actsForRun()
	case r.Type == ingress.SocketInvoke:
		return d.shook.own
	}
	return nil
}

// timeout returns a context for a request, which ends with the socket.
func (d *socketDriver) timeout(t time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(d.ctx, t)
}

// meta returns a request without its content. The route is that of the same request over HTTP, so that
// a client may repeat it there.
func (d *socketDriver) meta(r *ingress.SocketRequest, route string) *client.Request {
	out := &client.Request{Trace: d.shook.trace}
	if r.ID != "" {
		out.Key = actor.Idempotency{Principal: d.by.User, Route: route, Key: r.ID, Body: actor.HashOf(r.Body)}
	}
	return out
}

// decide decides about a tool call.
func (d *socketDriver) decide(r *ingress.SocketRequest) (in ingress.Performed, p *problem) {
	ctx, cancel := d.timeout(client.Timeout)
	defer cancel()
	decider := clientOf(d.server, &d.by)
	found, err := decider.Approval(ctx, r.Call)
	if err == nil {
		if p := checkRoot(r, &found.Owner); p != nil {
			return in, p
		}
		err = decider.Decide(ctx, &found, r.Decision, d.meta(r, "POST /v1/approvals/{id}:decide "+r.Call.Approval()))
	}
	if err != nil {
		return in, problemOf(d.server, r.Type, err)
	}
	return ingress.Performed{Run: r.Call.Run, Session: found.Owner.Actor.Key, Agent: found.Owner.Actor.Agent}, nil
}

// giveResult takes the result of a client tool.
func (d *socketDriver) giveResult(r *ingress.SocketRequest) (in ingress.Performed, p *problem) {
	ctx, cancel := d.timeout(client.Timeout)
	defer cancel()
	_, found, err := findToolCall(d.server, d.by, r.Call)
	if err == nil {
		if p := checkRoot(r, &found.Owner); p != nil {
			return in, p
		}
		err = clientOf(d.server, &d.by).GiveResult(ctx, &found, d.device, r.Result, d.meta(r, "POST /v1/tool_calls/{id}:result "+r.Call.String()))
	}
	if err != nil {
		return in, problemOf(d.server, r.Type, err)
	}
	return ingress.Performed{Run: r.Call.Run}, nil
}

// checkRoot checks that a decision or a result names the root run of its tool call, or the run
// itself, if it names one.
func checkRoot(r *ingress.SocketRequest, owner *command.Owner) *problem {
	if r.Run.IsZero() || r.Run == owner.Run || r.Run == owner.Root {
		return nil
	}
	return invalid(http.StatusBadRequest, "run_id", fmt.Sprintf("run_id: want %s, the run of the call, or no value", owner.Root))
}

// cancelRun cancels a run.
func (d *socketDriver) cancelRun(r *ingress.SocketRequest) (in ingress.Performed, p *problem) {
	ctx, cancel := d.timeout(cancelTimeout)
	defer cancel()
	owner, err := clientOf(d.server, &d.by).RunToChange(ctx, r.Run)
	if err == nil {
		_, err = clientOf(d.server, &d.by).CancelAndWait(ctx, owner)
	}
	if err != nil {
		return in, problemOf(d.server, r.Type, err)
	}
	return ingress.Performed{Run: r.Run}, nil
}

// invoke sends a message to an agent, and returns once its run can be read.
func (d *socketDriver) invoke(r *ingress.SocketRequest) (in ingress.Performed, p *problem) {
	message, refusal := ingress.ClientMessage(d.by.Principal, r.Agent, r.Body)
	if refusal != nil {
		return in, badRequest(refusal)
	}
	all, err := lookup(d.server, d.by, command.AgentsQuery{})
	if err != nil {
		return in, problemOf(d.server, r.Type, err)
	}
	agent, p := agentNamed(d.server, &d.by, all.All, r.Agent)
	switch {
	case p != nil:
		return in, p
	case agent.Durability == actor.Volatile:
		return in, noEvents(agent.Name)
	}
	call, meta := message.Call, d.meta(r, "POST /v1/agents/{id}/messages")
	call.To.Agent, call.Principal, call.Trace, call.Idempotency = agent.Name, d.by.User, meta.Trace, meta.Key
	c := clientOf(d.server, &d.by)
	c.Address(&call, &agent, message.Named)
	call.SetDevice(d.device)
	call.Claimed = d.shook.claimed
	ctx, cancel := d.timeout(AnswerTimeout)
	defer cancel()
	b, err := c.Begin(ctx, call)
	switch {
	case ctx.Err() != nil:
		p = refusalProblem(noAnswerYet())
	case err != nil:
		p = problemOf(d.server, r.Type, err)
	case !b.Visible && b.Answer.Reply.Refusal != nil:
		p = refusalProblem(b.Answer.Reply.Refusal)
	}
	if b == nil {
		return in, p
	}
	b.Release()
	return ingress.Performed{Run: b.Run, Session: call.To.Key, Agent: call.To.Agent, Repeated: b.Repeated}, p
}
