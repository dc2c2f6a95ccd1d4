// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"net/http"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/ingress"
)

// begins reports whether a request of a client begins a run, or an open one again.
func (r *route) begins() bool {
	return r.path == messagesRoute || r.path == skillRoute || r.path == agentChatRoute || strings.HasSuffix(r.path, ":retry")
}

// checkNotOwn refuses a request that this server has sent for a tool, a model or an agent, and
// that would begin a run. Such a run would have neither the chain nor the depth nor the budget of
// the run that caused it, so one message could become any number of them. A request with a run
// token is a call of that run.
func checkNotOwn(secret []byte, h *fasthttp.RequestHeader) *problem {
	for _, mark := range h.PeekAll(egressHeader) {
		if string(mark) == ingress.ServerMark(secret) {
			return newProblem(http.StatusForbidden, "forbidden", "forbidden",
				"this server has sent this request itself, for a tool, a model or an agent: it begins no run, because the limits of its own run would not apply. Let the agent use call_agent, or send its "+RunToken)
		}
	}
	return nil
}
