// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
)

// tokenRoute issues client tokens.
type tokenRoute struct{ server *Server }

// issue answers with a client token, which is shown once. It is invalid as soon as the key of the
// request is.
func (s tokenRoute) issue(ctx *fasthttp.RequestCtx) {
	by := callerOf(ctx)
	t, p := decodeBody(ctx, func(b []byte) (ingress.ClientToken, *actor.Refusal) { return ingress.NewClientToken(b, wallTime()) })
	switch t.Key = by.Key; {
	case p != nil:
	case by.Key == "":
		p = newProblem(http.StatusForbidden, "forbidden_scope", "forbidden scope",
			"a token ends with the key that issued it, and this request has none: send a key of `troupe keys create --scope operator`")
	case len(headers(ctx, ingress.IdempotencyKey)) > 0:
		p = invalid(http.StatusBadRequest, ingress.IdempotencyKey, ingress.IdempotencyKey+": not supported, because a token is shown once; omit the header")
	default:
		if p = s.checkAgents(ctx, t.Agents); p == nil {
			p = s.checkTwin(t.User)
		}
	}
	if p != nil {
		p.write(ctx)
		return
	}
	if !s.server.config.Keys.issues(by.Key) {
		body, _ := json.Marshal(map[string]string{"key_id": by.Key})
		if _, stop := s.server.callRegistry(ctx, agents.OpIssue, body); stop {
			return
		}
	}
	ctx.Response.Header.Set("Cache-Control", "no-store")
	respondJSON(ctx, http.StatusCreated, struct {
		Token   string   `json:"token"`
		User    string   `json:"user"`
		Agents  []string `json:"agents"`
		Origin  string   `json:"origin,omitzero"`
		Expires string   `json:"expires_at"`
		Key     string   `json:"key_id"`
	}{t.Mint(s.server.config.Secret), t.User, t.Agents, t.Origin, runs.FormatTime(t.Expires), t.Key})
}

// checkAgents checks that agents exist: the holder of the token could not tell a missing one from one
// that is not its own.
func (s tokenRoute) checkAgents(ctx *fasthttp.RequestCtx, names []string) *problem {
	all, err := s.server.agents(ctx)
	if err != nil {
		return s.server.errorProblem(ctx, err)
	}
	for _, name := range names {
		if !slices.ContainsFunc(all, func(a command.Agent) bool { return a.Name == name && !a.System }) {
			return invalid(http.StatusBadRequest, "agents", fmt.Sprintf("agents: no agent has the ID %s: GET /v1/agents lists them", name))
		}
	}
	return nil
}

// checkTwin refuses a user that looks like another one, to whom a key belongs: a person who reads the name in an
// approval or a list cannot tell them apart. Keys of such users are refused by the registry.
func (s tokenRoute) checkTwin(user string) *problem {
	if user == "*" { // where a user is named it means all of them
		return invalid(http.StatusBadRequest, "user", "user: * means all users; name one, such as alice")
	}
	for _, k := range s.server.config.Keys.entries() {
		if other := k.Key.User; other != user && actor.FoldName(other) == actor.FoldName(user) {
			return invalid(http.StatusBadRequest, "user", fmt.Sprintf("user: %.80q looks like %.80q, to whom an API key belongs: use that spelling, or another name", user, other))
		}
	}
	return nil
}

// issuing reports whether one of the keys has issued tokens. If so, a bearer token of another service is refused
// even where no key is required: a page whose token is damaged MUST NOT become the local user.
func (k *Keys) issuing() bool {
	for _, e := range k.entries() {
		if e.IssuesTokens {
			return true
		}
	}
	return false
}

// issues reports whether a key has issued tokens.
func (k *Keys) issues(id string) bool {
	e, ok := k.entries()[id]
	return ok && e.IssuesTokens
}

// authorizeToken returns the caller of a client token that permits the scope to the origin of the
// request.
func (k *Keys) authorizeToken(secret []byte, h *fasthttp.RequestHeader, text string, scope ingress.Scope) (*caller, *problem) {
	t, ok := ingress.ReadClientToken(secret, text)
	issuer, known := k.entries()[t.Key]
	switch {
	case !ok:
		p := invalidKey()
		p.wrongKey = true
		return nil, p
	case t.Expired(wallTime()):
		return nil, unauthorized("the token expired at " + runs.FormatTime(t.Expires) + ": get another one where this one came from")
	case !known || issuer.Expired(wallTime()) || !issuer.Allows(ingress.ScopeOperator):
		return nil, unauthorized("the key that issued the token is no longer valid")
	case !t.Admits(string(h.Peek(fasthttp.HeaderOrigin))):
		return nil, newProblem(http.StatusForbidden, "forbidden_origin", "forbidden origin", "the token was issued for pages of another origin")
	case !mayChat(h, scope):
		return nil, lacksChatScope(scope)
	}
	return &caller{Principal: t.Principal(), agents: t.Agents, expires: t.Expires}, nil
}

// lost reports whether the key or the token of the caller has become invalid.
func (c *caller) lost(k *Keys) bool { return c.Key != "" && !stillValid(k, c.Key, c.expires) }

// stillValid reports whether a key is valid and, unless expires is 0, so is a token that it has issued.
func stillValid(k *Keys, id string, expires actor.Time) bool {
	return k.Valid(id) && (expires == 0 || wallTime() < expires)
}

// expiringKeys are the keys of a server for the client of a token.
type expiringKeys struct {
	keys    *Keys
	expires actor.Time
}

// Valid implements client.Keys.
func (k expiringKeys) Valid(id string) bool { return stillValid(k.keys, id, k.expires) }
