// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"net/http"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
)

// backup copies the store into a folder on the server's machine while the node is
// serving.
func (s *Server) backup(ctx *fasthttp.RequestCtx) {
	dir, p := decodeBody(ctx, ingress.Backup)
	if p == nil && s.config.Backup == nil {
		p = refusalProblem(actor.Refuse(actor.Rejected, "this server cannot copy its store"))
	}
	if p == nil {
		if err := s.config.Backup(dir); err != nil {
			p = invalid(http.StatusConflict, "dir", err.Error())
		}
	}
	if p != nil {
		p.write(ctx)
		return
	}
	respondJSON(ctx, http.StatusCreated, struct {
		Dir string `json:"dir"`
	}{dir})
}
