// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"net/http"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/client"
	"github.com/troupe-run/troupe/internal/command"
)

// clientOf returns the client of the node for which a request acts.
func clientOf(s *Server, by *caller) *client.Client {
	c := &client.Client{Node: nodeOf(s, by), By: by.Principal, Share: by.shareKey(), Key: by.Key, Keys: s.config.Keys, Agents: by.agents, NamesUsers: by.namesUsers || by.namedBy != "", DecisionScope: s.config.ApprovalScope, Stopping: s.stopping}
	if by.expires != 0 {
		c.Keys = expiringKeys{s.config.Keys, by.expires}
	}
	return c
}

// nodeOf returns the node as a caller sees it. Every command of a request goes to it, so that one place
// decides what a caller that is limited to agents sees and changes.
func nodeOf(s *Server, by *caller) command.Node { return client.Limit(s.node, by.agents) }

// requestOf returns a request without its content. The route is part of its idempotency key, and keys
// are the texts that a client has sent for it, in the header or elsewhere.
func requestOf(ctx *fasthttp.RequestCtx, route string, keys []string) (*client.Request, *problem) {
	by := callerOf(ctx)
	key, r := ingress.ParseIdempotency(by.User, route, keys, ctx.PostBody())
	return &client.Request{Key: key, Trace: ingress.Trace(headers(ctx, "traceparent"), headers(ctx, "tracestate")), Invocation: by.invocation}, badRequest(r)
}

// perform performs an operation of a request while its client is there. It answers the request and
// returns false if the operation fails, the client has gone or its key was revoked.
func perform(s *Server, ctx *fasthttp.RequestCtx, timeout time.Duration, operation func(context.Context) error) bool {
	waitCtx := s.newClientContext(ctx, timeout)
	err := operation(waitCtx)
	cause := waitCtx.cause()
	waitCtx.stop()
	if respondAborted(ctx, cause) {
		return false
	}
	if err != nil {
		s.respondError(ctx, err)
	}
	return err == nil
}

// forbiddenProblem returns the problem of a request that its client may not make.
func forbiddenProblem(f *client.Forbidden) *problem {
	if f.Scope != "" {
		return newProblem(http.StatusForbidden, "forbidden_scope", "forbidden scope", f.Detail)
	}
	return newProblem(http.StatusForbidden, "forbidden", "forbidden", f.Detail)
}

// ofRun returns the problem with the run that it is about.
func (p *problem) ofRun(run actor.CallID) *problem {
	p.Run = run.String()
	return p
}
