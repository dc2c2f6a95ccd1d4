// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"net/http"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/signals"
)

// retryRoute is the route that resumes parked runs.
type retryRoute struct{ *Server }

// retryRun replays a parked run. A run that still diverges is refused with the place.
func (s retryRoute) retryRun(ctx *fasthttp.RequestCtx) {
	id, owner, ok := runToChange(s.Server, ctx)
	if !ok {
		return
	}
	by := callerOf(ctx).Principal
	call := signals.New(owner.Actor, id, signals.Retry{})
	call.ID, call.Left, call.Principal, call.Origin = s.node.NewCallID(), signalTimeout, by.User, actor.Human
	waitCtx := s.newClientContext(ctx, signalTimeout)
	answer, err := s.node.Signal(waitCtx, command.Signal{By: by, Call: call})
	cause := waitCtx.cause()
	waitCtx.stop()
	if respondAborted(ctx, cause) {
		return
	}
	var run command.Run
	if err == nil {
		run, err = lookup(s.Server, callerOf(ctx), command.RunQuery{Run: id})
	}
	if err != nil {
		s.respondError(ctx, err)
		return
	}
	record, r := run.Current(), answer.Reply.Refusal
	if r != nil && r.Reason == actor.NotFound { // the run has no open turn
		r = actor.Refuse(actor.Rejected, "run %s has the status %s and cannot be parked", id, record.Status)
	}
	if r != nil {
		p := refusalProblem(r)
		p.Run = id.String()
		p.write(ctx)
		return
	}
	respondJSON(ctx, http.StatusOK, struct {
		Run    string `json:"run_id"`
		Status string `json:"status"`
	}{id.String(), record.Status.String()})
}
