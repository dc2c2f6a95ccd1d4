// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
)

// openAIRoutes are the routes of the OpenAI API: clients of that API use the models of this
// server. completion is a request to one.
type openAIRoutes struct{ *Server }

type modelView struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"` // unknown
	OwnedBy string `json:"owned_by"`
}

type modelList struct {
	Object string      `json:"object"`
	Data   []modelView `json:"data"`
}

func newModelView(name string) modelView { return modelView{name, "model", 0, "troupe"} }

// listModels lists the models of the server.
func (s openAIRoutes) listModels(ctx *fasthttp.RequestCtx) {
	found, err := lookup(s.Server, callerOf(ctx), command.ModelsQuery{})
	if err != nil {
		s.respondError(ctx, err)
		return
	}
	out := modelList{"list", []modelView{}}
	for _, name := range found.All {
		out.Data = append(out.Data, newModelView(name))
	}
	respondJSON(ctx, http.StatusOK, out)
}

// getModel describes one model.
func (s openAIRoutes) getModel(ctx *fasthttp.RequestCtx) {
	found, err := lookup(s.Server, callerOf(ctx), command.ModelsQuery{})
	if err != nil {
		s.respondError(ctx, err)
		return
	}
	for _, name := range found.All {
		if name == pathParam(ctx, "id") {
			respondJSON(ctx, http.StatusOK, newModelView(name))
			return
		}
	}
	p := refusalProblem(actor.Refuse(actor.ModelNotFound, "unknown model %.80q: GET /v1/models lists those of this server", pathParam(ctx, "id")))
	p.setUnknownModel()
	p.write(ctx)
}

// isOpenAI reports whether a path belongs to the OpenAI API, also to a part that this server
// does not have: clients show the message of an error only if it has the form of that API.
func isOpenAI(path []byte) bool {
	for _, base := range [...]string{"/v1/models", "/v1/openai"} {
		if rest, ok := strings.CutPrefix(string(path), base); ok && (rest == "" || rest[0] == '/') {
			return true
		}
	}
	return isForeignOpenAI(path) || string(path) == "/v1/chat/completions"
}

// isForeignOpenAI reports whether a path without route is that of a client of the OpenAI API:
// one of another part of it, or of a wrong base URL.
func isForeignOpenAI(path []byte) bool {
	switch text := string(path); text {
	case "/v1/responses", "/v1/completions", "/v1/embeddings":
		return true
	default:
		return strings.HasPrefix(text, "/v1/openai/") || strings.HasSuffix(text, "/chat/completions") && text != "/v1/chat/completions"
	}
}

// openAIPing is a comment that keeps a connection open. No empty line follows: the stock clients of the
// OpenAI API take one for the end of an event, and fail to parse its empty data.
const openAIPing = ": ping\n"

// appendOpenAI appends the problem in the form of the OpenAI API.
func (p *problem) appendOpenAI(b []byte) []byte {
	if len(p.openAI) > 0 {
		return append(b, p.openAI...)
	}
	kind := "invalid_request_error"
	switch {
	case p.Status == http.StatusUnauthorized:
		kind = "authentication_error"
	case p.Status == http.StatusForbidden:
		kind = "permission_error"
	case p.Status == http.StatusTooManyRequests:
		kind = "rate_limit_error"
	case p.Status >= 500:
		kind = "server_error"
	}
	b = appendQuoted(append(b, `{"error":{"message":`...), strings.ToValidUTF8(p.Detail, "\uFFFD"))
	b = appendQuoted(append(b, `,"type":`...), kind)
	b = append(b, `,"param":`...)
	if p.Field == "" {
		b = append(b, "null"...)
	} else {
		b = appendQuoted(b, strings.ToValidUTF8(p.Field, "\uFFFD"))
	}
	b = appendQuoted(append(b, `,"code":`...), p.Code)
	if p.RetryAfter != 0 {
		b = strconv.AppendInt(append(b, `,"retry_after":`...), p.RetryAfter, 10)
	}
	return append(b, "}}"...)
}
