// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"crypto/rand"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
)

// registryTimeout is the maximum time until all cells know a change of the
// registry.
const registryTimeout = 30 * time.Second

// putInRegistry performs a registry operation that puts an object, and answers the request
// with 201 if the object is new.
func putInRegistry(s *Server, ctx *fasthttp.RequestCtx, operation string, body []byte) {
	answer, stop := s.callRegistry(ctx, operation, body)
	if stop {
		return
	}
	var out struct {
		Created bool `json:"created"`
	}
	status := http.StatusOK
	if json.Unmarshal(answer, &out) == nil && out.Created {
		status = http.StatusCreated
	}
	respond(ctx, status, answer)
}

// callRegistry performs a registry operation for the caller and returns its
// answer. On any other outcome it answers the request and returns stop = true.
// The path parameter is part of the idempotency route, because the body alone
// may not identify the target.
func (s *Server) callRegistry(ctx *fasthttp.RequestCtx, operation string, body []byte) (answer []byte, stop bool) {
	call := actor.Call{To: agents.RegistryID, Operation: operation, Left: registryTimeout, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: body}}}
	p := checkOwnName(callerOf(ctx))
	if p == nil {
		p = fillRequestContext(ctx, strings.TrimSpace(operation+" "+pathParam(ctx, "id")), &call)
	}
	if p != nil {
		p.write(ctx)
		return nil, true
	}
	call.ID = s.node.NewCallID()
	waitCtx := s.newClientContext(ctx, registryTimeout)
	a, err := s.node.Invoke(waitCtx, command.Invoke{By: callerOf(ctx).Principal, Call: call}, nil)
	cause := waitCtx.cause()
	waitCtx.stop()
	switch {
	case respondAborted(ctx, cause):
	case err != nil:
		s.respondError(ctx, err)
	case a.Reply.Refusal != nil:
		refusalProblem(a.Reply.Refusal).write(ctx)
	case len(a.Reply.Parts) != 1:
		s.respondAccepted(ctx, call.To, a.Reply.Run)
	case len(a.Reply.Warnings) == 0:
		return a.Reply.Parts[0].Bytes, false
	default:
		b, err := json.Marshal(struct {
			Answer   jsontext.Value `json:",embed"`
			Warnings []string       `json:"warnings"`
		}{a.Reply.Parts[0].Bytes, a.Reply.Warnings})
		if err == nil {
			return b, false
		}
		s.respondError(ctx, err)
	}
	return nil, true
}

// keyView is the JSON form of an API key. It contains the text only in the
// response that creates the key.
type keyView struct {
	ID      string          `json:"key_id"`
	Key     string          `json:"key,omitzero"`
	Name    string          `json:"name"`
	User    string          `json:"user"`
	ActAs   bool            `json:"act_as_user,omitzero"`
	Scopes  []ingress.Scope `json:"scopes"`
	Created string          `json:"created_at,omitzero"`
	Expires string          `json:"expires_at,omitzero"`
	Expired bool            `json:"expired,omitzero"`
	By      string          `json:"created_by,omitzero"`
	ByKey   string          `json:"created_by_key_id,omitzero"`
	Agents  []string        `json:"agents,omitempty"`

	Warnings []string `json:"warnings,omitempty"`
}

func newKeyView(k ingress.Key) keyView {
	v := keyView{ID: k.ID, Name: k.Name, User: k.Principal().User, ActAs: k.ActAsUser, Scopes: k.Scopes, Expired: k.Expired(wallTime()), By: k.CreatedBy, ByKey: k.CreatedByKey, Agents: k.Agents}
	for _, at := range []struct {
		text *string
		time actor.Time
	}{{&v.Created, k.Created}, {&v.Expires, k.Expires}} {
		if at.time != 0 {
			*at.text = runs.FormatTime(at.time)
		}
	}
	return v
}

func (s *Server) listKeys(ctx *fasthttp.RequestCtx) {
	out := struct {
		Keys []keyView `json:"keys"`
		Next string    `json:"next_cursor,omitzero"`
	}{Keys: []keyView{}}
	page, next, p := namesPage(ctx, ingress.CursorKey(s.config.Secret), "keys", s.config.Keys.All(), func(k *ingress.Key) string { return k.ID })
	if p != nil {
		p.write(ctx)
		return
	}
	out.Next = next
	for _, key := range page {
		out.Keys = append(out.Keys, newKeyView(key))
	}
	respondJSON(ctx, http.StatusOK, out)
}

// createKey creates an API key. Its text appears in this response only.
func (s *Server) createKey(ctx *fasthttp.RequestCtx) {
	var in struct {
		Name    string          `json:"name"`
		User    string          `json:"user"`
		ActAs   bool            `json:"act_as_user"`
		Scopes  []ingress.Scope `json:"scopes"`
		Expires string          `json:"expires_at"`
		Agents  []string        `json:"agents"`
	}
	_, p := decodeBody(ctx, func(b []byte) (struct{}, *actor.Refusal) { return struct{}{}, ingress.Decode(b, &in) })
	var expires actor.Time
	if p == nil && in.Expires != "" {
		switch at, err := time.Parse(time.RFC3339, in.Expires); {
		case err == nil && !at.After(time.Now()): // includes times beyond the range of nanoseconds, and 0, which would mean never
			p = invalid(http.StatusBadRequest, "expires_at", "expires_at: "+in.Expires+" is not in the future")
		case err == nil && at.Year() <= 2200:
			expires = actor.Time(at.UnixNano())
		default:
			p = invalid(http.StatusBadRequest, "expires_at", "expires_at: want a time such as 2027-01-31T12:00:00Z, up to the year 2200, or no value")
		}
	}
	var key ingress.Key
	var text string
	if p == nil {
		var random [ingress.KeyRandomBytes]byte
		_, _ = rand.Read(random[:]) // never fails: it crashes the process instead
		if in.Scopes == nil {
			in.Scopes = ingress.DefaultScopes(s.config.Keys.Count() == 0 && len(in.Agents) == 0, in.User)
		}
		var r *actor.Refusal
		key, text, r = ingress.NewKey(random, in.Name, in.User, in.Scopes, wallTime(), expires)
		if key.ActAsUser = in.ActAs; r == nil {
			r = key.LimitTo(in.Agents)
		}
		p = badRequest(r)
	}
	if p == nil && len(headers(ctx, ingress.IdempotencyKey)) > 0 {
		p = invalid(http.StatusBadRequest, ingress.IdempotencyKey, ingress.IdempotencyKey+": not supported, because an API key is shown once and a repeat creates another one; omit the header")
	}
	if p != nil {
		p.write(ctx)
		return
	}
	if _, stop := s.callRegistry(ctx, agents.OpCreateKey, key.Encode()); !stop {
		out := newKeyView(key)
		out.Key, out.Warnings = text, unknownAgents(s, ctx, key.Agents)
		respondJSON(ctx, http.StatusCreated, out)
	}
}

// unknownAgents returns a warning for each agent of a new key that does not exist. It may be made later, so the key
// is no error.
func unknownAgents(s *Server, ctx *fasthttp.RequestCtx, names []string) (warnings []string) {
	all, err := s.agents(ctx)
	for _, name := range names {
		if err == nil && !slices.ContainsFunc(all, func(a command.Agent) bool { return a.Name == name && !a.System }) {
			warnings = append(warnings, agents.UnknownAgent(name))
		}
	}
	return warnings
}

// revokeKey revokes a key. Streams opened with it end within a second.
func (s *Server) revokeKey(ctx *fasthttp.RequestCtx) {
	id := pathParam(ctx, "id")
	p := requireEmptyBody(ctx)
	if p == nil && actor.CheckName(id) != nil {
		p = invalid(http.StatusBadRequest, "id", "key "+actor.CheckName(id).Error())
	}
	if p != nil {
		p.write(ctx)
		return
	}
	body, _ := json.Marshal(map[string]string{"key_id": id})
	if answer, stop := s.callRegistry(ctx, agents.OpRevokeKey, body); !stop {
		respond(ctx, http.StatusOK, answer)
	}
}
