// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"crypto/subtle"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fasthttp/router"
	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
)

// Requirements of a route that are not scopes of API keys.
const (
	scopePublic    ingress.Scope = "public"            // no credentials: health checks
	scopeRunToken  ingress.Scope = "run token"         // the token of an open run
	scopeCallOrRun ingress.Scope = "call or run token" // the token of an open run if one is presented; otherwise ScopeCall
)

// routeScopes is the single table of access rules. A route without an entry
// cannot be registered.
var routeScopes = map[string]ingress.Scope{
	"GET /healthz": scopePublic,
	"GET /readyz":  scopePublic,
	"GET /metrics": ingress.ScopeRead,

	"GET /v1/agents":                 ingress.ScopeRead,
	"GET /v1/agents/{id}":            ingress.ScopeRead,
	"POST /v1/agents":                ingress.ScopeAgents,
	"POST /v1/agents/register":       ingress.ScopeAgents,
	"POST /v1/agents/{id}:heartbeat": ingress.ScopeAgents,
	"DELETE /v1/agents/{id}":         ingress.ScopeAgents,
	"POST /v1/agents/{id}/messages":  scopeCallOrRun,
	"POST /v1/agents/{id}:invoke":    scopeRunToken,

	"GET /v1/runs":              ingress.ScopeRead,
	"GET /v1/runs/{id}":         ingress.ScopeRead,
	"GET /v1/runs/{id}/events":  ingress.ScopeRead,
	"POST /v1/runs/{id}:signal": ingress.ScopeCall,
	"POST /v1/runs/{id}:cancel": ingress.ScopeCall,

	"GET /v1/keys":         ingress.ScopeAdmin,
	"POST /v1/keys":        ingress.ScopeAdmin,
	"DELETE /v1/keys/{id}": ingress.ScopeAdmin,
	"POST /v1/backups":     ingress.ScopeAdmin,
}

// addRoute registers a route protected by routeScopes and returns the protected
// handler.
func (s *Server) addRoute(r *router.Router, method, path string, handle fasthttp.RequestHandler) fasthttp.RequestHandler {
	behind := s.withScope(method+" "+path, handle)
	r.Handle(method, path, behind)
	return behind
}

// withScope returns a handler that requires the scope of the route before it
// calls the handler handle.
func (s *Server) withScope(route string, handle fasthttp.RequestHandler) fasthttp.RequestHandler {
	scope, ok := routeScopes[route]
	if !ok {
		panic(route + " has no entry in routeScopes")
	}
	observers := s.metrics.newRouteObservers(route)
	return func(ctx *fasthttp.RequestCtx) {
		ctx.SetUserValue(routeKey, observers)
		c, p := s.authorize(&ctx.Request.Header, scope, ctx.Conn())
		if p != nil {
			s.throttle(ctx, p).write(ctx)
			return
		}
		if p := checkQuery(ctx, routeParams[route]); p != nil && scope != scopePublic { // load balancers add parameters to health checks
			p.write(ctx)
			return
		}
		ctx.SetUserValue(callerKey, c)
		handle(ctx)
		if c.Key != "" && ctx.IsGet() && !ctx.Hijacked() && !s.config.Keys.Valid(c.Key) { // the key may have expired during a long poll
			invalidKey().write(ctx)
		}
	}
}

// addVerbRoutes registers the routes path:verb of a resource.
func (s *Server) addVerbRoutes(r *router.Router, path string, handles map[string]fasthttp.RequestHandler) {
	all := map[string]fasthttp.RequestHandler{}
	for verb, handle := range handles {
		all[verb] = s.withScope("POST "+path+":"+verb, handle)
	}
	known := ":" + strings.Join(slices.Sorted(maps.Keys(all)), ", :")
	r.POST(path, func(ctx *fasthttp.RequestCtx) {
		id, verb, _ := strings.Cut(pathParam(ctx, "id"), ":")
		handle, ok := all[verb]
		if !ok {
			newProblem(http.StatusNotFound, "not_found", "no such path", "unknown action: append one of these to the id: "+known).write(ctx)
			return
		}
		ctx.SetUserValue("id", id)
		handle(ctx)
	})
}

// caller is the authenticated origin of a request. All keys of the tenant that have
// the same scopes see the same runs.
type caller struct {
	actor.Principal
	Run   actor.CallID // run authorized by the token, if any
	Actor actor.ID     // actor of that run
}

// localUser is the user of clients without a key.
const localUser = "local"

// LocalPrincipal returns the principal of the data folder's owner.
func LocalPrincipal() actor.Principal { return ownerCaller.Principal }

// localCaller is a client on loopback without a key. It lacks the scope admin: were
// such a client a stranger behind an unrecognized proxy, it could make itself a key.
// ownerCaller is a process of the data folder's owner, who could change the store
// itself.
var (
	localCaller  = newCaller(localUser, ingress.ScopeCall, ingress.ScopeRead, ingress.ScopeAgents)
	ownerCaller  = newCaller(localUser, ingress.Scopes()...)
	publicCaller = newCaller("")
)

func newCaller(user string, scopes ...ingress.Scope) caller {
	return caller{Principal: actor.NewPrincipal(user, "", ingress.ScopeNames(scopes)...)}
}

const callerKey = "caller"

// callerOf returns the caller that withScope has stored in the request.
func callerOf(ctx *fasthttp.RequestCtx) caller {
	if c, ok := ctx.UserValue(callerKey).(*caller); ok {
		return *c
	}
	return publicCaller
}

// authorize authenticates a request and checks that it may use the scope. A
// presented key is always verified, even if no key is required. The connection may
// be nil. The scope "" means any scope.
func (s *Server) authorize(h *fasthttp.RequestHeader, scope ingress.Scope, conn net.Conn) (*caller, *problem) {
	presented := h.Peek(fasthttp.HeaderAuthorization)
	switch {
	case scope == scopePublic:
		return &publicCaller, nil
	case scope == scopeRunToken, scope == scopeCallOrRun && hasRunToken(h):
		return s.authorizeRun(runTokenOf(h))
	case scope == scopeCallOrRun:
		scope = ingress.ScopeCall
	}
	if anonymous := len(presented) == 0; anonymous || isForeignBearer(presented) {
		if isOwner(conn) {
			return &ownerCaller, nil
		}
		switch reason := s.keyRequired(h); {
		case reason == "" && scope != "" && !ingress.Allows(localCaller.Principal, scope):
			return nil, unauthorized(fmt.Sprintf("over TCP this request needs an API key with the scope %s; the owner of the data folder needs none: `troupe keys` and `troupe backup` take --data DIR while the server runs", scope))
		case reason == "":
			return &localCaller, nil
		case anonymous:
			p := unauthorized(reason + "; `troupe keys create` makes one")
			p.wrongKey = scope == "" && len(h.Peek(RunToken)) > 0
			return nil, p
		}
	}
	held, ok := s.config.Keys.authenticate(conn, presented)
	if !ok {
		p := invalidKey()
		p.wrongKey = strings.HasPrefix(bearerToken(presented), "troupe_")
		return nil, p
	}
	if !ingress.Allows(held.caller.Principal, scope) {
		return nil, newProblem(http.StatusForbidden, "forbidden_scope", "forbidden scope",
			fmt.Sprintf("the API key %s lacks the scope %s; `troupe keys create --scope %[2]s` makes one that has it", held.ID, scope))
	}
	return &held.caller, nil
}

// authorizeRun returns the external agent that works on the run of a token.
func (s *Server) authorizeRun(token string) (*caller, *problem) {
	run, id, r := ingress.ReadToken(s.config.Secret, token)
	if r != nil {
		p := unauthorized(r.Detail)
		p.wrongKey = token != ""
		return nil, p
	}
	return &caller{Principal: actor.Principal{Tenant: id.Tenant, User: "run:" + run.String()}, Run: run, Actor: id}, nil
}

// hasRunToken reports whether a request presents a run token, valid or not. An empty
// header counts: a service that lost its token MUST NOT start a tree of its own.
func hasRunToken(h *fasthttp.RequestHeader) bool {
	return len(h.PeekAll(RunToken)) > 0 || ingress.IsRunToken(bearerToken(h.Peek(fasthttp.HeaderAuthorization)))
}

// hasCredential reports whether the request carries a valid key or token, with
// any scope.
func (s *Server) hasCredential(h *fasthttp.RequestHeader) bool {
	if _, ok := s.config.Keys.authenticate(nil, h.Peek(fasthttp.HeaderAuthorization)); ok {
		return true
	}
	_, _, r := ingress.ReadToken(s.config.Secret, runTokenOf(h))
	return r == nil
}

// bearerToken returns the token of an Authorization header, or "".
func bearerToken(header []byte) string {
	const scheme = "Bearer "
	text := string(header)
	if len(text) < len(scheme) || !strings.EqualFold(text[:len(scheme)], scheme) {
		return ""
	}
	return strings.TrimSpace(text[len(scheme):])
}

func runTokenOf(h *fasthttp.RequestHeader) string {
	if t := h.Peek(RunToken); len(t) > 0 {
		return string(t)
	}
	return bearerToken(h.Peek(fasthttp.HeaderAuthorization))
}

// RunToken is the header that carries the run token of an external agent.
const RunToken = "x-run-token"

func unauthorized(detail string) *problem {
	return newProblem(http.StatusUnauthorized, "unauthorized", "unauthorized", detail)
}

func invalidKey() *problem {
	return unauthorized("invalid API key: it may be mistyped, expired or revoked; see `troupe keys list`")
}

// wallTime returns the current time, against which keys expire.
func wallTime() actor.Time { return actor.Time(time.Now().UnixNano()) }

// Keys is the set of valid API keys. The zero value is empty. It is safe for
// concurrent use.
type Keys struct {
	table atomic.Pointer[map[string]*keyEntry]
}

// keyEntry is a key with the caller that it authenticates.
type keyEntry struct {
	ingress.Key
	caller caller
}

// Set replaces all keys. A key that is missing in the new set is thereby revoked.
func (k *Keys) Set(all []ingress.Key) {
	table := make(map[string]*keyEntry, len(all))
	for _, key := range all {
		table[key.ID] = &keyEntry{key, caller{Principal: key.Principal()}}
	}
	k.table.Store(&table)
}

// Count returns the number of keys.
func (k *Keys) Count() int { return len(k.entries()) }

// All returns the keys ordered by id.
func (k *Keys) All() []ingress.Key {
	all := k.entries()
	list := make([]ingress.Key, 0, len(all))
	for _, id := range slices.Sorted(maps.Keys(all)) {
		list = append(list, all[id].Key)
	}
	return list
}

// Valid reports whether the key with this id is still valid. Streams check
// their key periodically and end once it is invalid.
func (k *Keys) Valid(id string) bool {
	key, ok := k.entries()[id]
	return ok && !key.Expired(wallTime())
}

func (k *Keys) entries() map[string]*keyEntry {
	if t := k.table.Load(); t != nil {
		return *t
	}
	return nil
}

// keyCache is the last key presented on a connection, with the exact header. It
// saves hashing the same key again, as long as the key table is unchanged.
type keyCache struct {
	header []byte
	table  *map[string]*keyEntry
	entry  *keyEntry
}

// authenticate returns the valid key presented in an Authorization header. If
// conn is not nil, it uses the key cache of that connection.
func (k *Keys) authenticate(conn net.Conn, header []byte) (*keyEntry, bool) {
	c, _ := conn.(*connection)
	table := k.table.Load()
	if c != nil && table != nil && c.cachedKey.table == table && subtle.ConstantTimeCompare(c.cachedKey.header, header) == 1 {
		return c.cachedKey.entry, c.cachedKey.entry.Expires == 0 || !c.cachedKey.entry.Expired(wallTime())
	}
	key, ok := k.lookup(bearerToken(header), wallTime())
	if ok && c != nil {
		c.cachedKey = keyCache{append(c.cachedKey.header[:0], header...), table, key}
	}
	return key, ok
}

// unknownKey has a digest that no text has. lookup compares with it if no key
// has the id, so that an unknown id takes as long as a wrong secret.
var unknownKey keyEntry

// lookup returns the valid key with the given text. Its running time reveals
// neither whether a key with that id exists nor how much of the text matches.
func (k *Keys) lookup(text string, at actor.Time) (*keyEntry, bool) {
	id, ok := ingress.KeyID(text)
	key, known := k.entries()[id]
	if !known {
		key = &unknownKey
	}
	if !key.Matches(text) || !ok || !known || key.Expired(at) {
		return nil, false
	}
	return key, true
}
