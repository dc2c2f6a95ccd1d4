// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"errors"
	"net/http"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/client"
)

// retryRoute is the route that resumes parked runs.
type retryRoute struct{ *Server }

// retryRun replays a parked run. A run that still diverges is refused with the place.
func (s retryRoute) retryRun(ctx *fasthttp.RequestCtx) {
	id, owner, ok := runToChange(s.Server, ctx)
	if !ok {
		return
	}
	by := callerOf(ctx)
	waitCtx := s.newClientContext(ctx, client.Timeout)
	record, err := clientOf(s.Server, &by).Retry(waitCtx, owner, &client.Request{Origin: actor.Human})
	cause := waitCtx.cause()
	waitCtx.stop()
	switch r := (*actor.Refusal)(nil); {
	case respondAborted(ctx, cause):
	case errors.As(err, &r):
		refusalProblem(r).ofRun(id).write(ctx)
	case err != nil:
		s.respondError(ctx, err)
	default:
		respondJSON(ctx, http.StatusOK, struct {
			Run    string `json:"run_id"`
			Status string `json:"status"`
		}{id.String(), record.Status.String()})
	}
}
