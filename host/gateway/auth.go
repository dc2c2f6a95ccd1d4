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

// What a route asks of whoever comes, besides the scopes of keys.
const (
	scopePublic   ingress.Scope = "anybody"   // nothing: health
	scopeRunToken ingress.Scope = "run token" // the token of an open run
)

// routeScopes is the one table of who may do what. A route without a row is not
// served, and cannot be made.
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
	"POST /v1/agents/{id}/messages":  ingress.ScopeCall,
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

// addRoute makes a route, behind the table of scopes, and returns what it leads to.
func (s *Server) addRoute(r *router.Router, method, path string, handle fasthttp.RequestHandler) fasthttp.RequestHandler {
	behind := s.withScope(method+" "+path, handle)
	r.Handle(method, path, behind)
	return behind
}

// withScope has whoever comes by a route show first that he may.
func (s *Server) withScope(route string, handle fasthttp.RequestHandler) fasthttp.RequestHandler {
	scope, ok := routeScopes[route]
	if !ok {
		panic(route + " has no row in the table of scopes")
	}
	row := s.metrics.newRouteObservers(route)
	return func(ctx *fasthttp.RequestCtx) {
		ctx.SetUserValue(routeKey, row)
		c, p := s.authorize(&ctx.Request.Header, scope, ctx.Conn())
		if p != nil {
			p.write(ctx)
			return
		}
		ctx.SetUserValue(callerKey, c)
		handle(ctx)
		if c.Key != "" && ctx.IsGet() && !ctx.Hijacked() && !s.config.Keys.Valid(c.Key) { // it may have waited long
			invalidKey().write(ctx)
		}
	}
}

// addVerbRoutes makes the routes of a thing's verbs: path:verb.
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
			newProblem(http.StatusNotFound, "not_found", "no such path", "nothing is posted here; behind the id there may stand "+known).write(ctx)
			return
		}
		ctx.SetUserValue("id", id)
		handle(ctx)
	})
}

// caller is in whose name a request comes. There is one tenant: keys with the
// same scope see the same runs.
type caller struct {
	Principal string
	Key       string       // the id of the API key, if it came with one
	Run       actor.CallID // for which the token speaks, if it came with one
	Actor     actor.ID     // whose run it is
}

// localPrincipal is who speaks over loopback without a key: whoever can is this
// machine's user already.
const localPrincipal = "local"

var localCaller = caller{Principal: localPrincipal}

const callerKey = "caller"

// callerOf is whom on found.
func callerOf(ctx *fasthttp.RequestCtx) caller {
	if c, ok := ctx.UserValue(callerKey).(*caller); ok {
		return *c
	}
	return caller{}
}

// authorize finds in whose name a request comes, and whether it may do what the
// scope is about. A key that is presented is looked at even where none is needed.
// Over says on which connection it came, if that is known.
func (s *Server) authorize(h *fasthttp.RequestHeader, scope ingress.Scope, over net.Conn) (*caller, *problem) {
	presented := h.Peek(fasthttp.HeaderAuthorization)
	none := len(presented) == 0
	switch {
	case scope == scopePublic:
		return &caller{}, nil
	case scope == scopeRunToken:
		run, id, r := ingress.ReadToken(s.config.Secret, runTokenOf(h))
		if r != nil {
			return nil, unauthorized(r.Detail)
		}
		return &caller{Principal: "run:" + run.String(), Run: run, Actor: id}, nil
	case none && s.onLoopback.Load() && !isProxied(h):
		return &localCaller, nil
	case none && s.onLoopback.Load():
		return nil, unauthorized("this request comes through a proxy, for somebody who may be anywhere: an API key is needed; `troupe keys create` makes one")
	case none:
		return nil, unauthorized("an API key is needed here: send the header Authorization: Bearer troupe_…; `troupe keys create` makes one")
	}
	held, ok := s.config.Keys.authenticate(over, presented)
	if !ok {
		return nil, invalidKey()
	}
	if !held.Allows(scope) {
		return nil, newProblem(http.StatusForbidden, "forbidden_scope", "forbidden scope",
			fmt.Sprintf("the API key %s lacks the scope %s; `troupe keys create --scope %[2]s` makes one that has it", held.ID, scope))
	}
	return &held.caller, nil
}

// isProxied tells whether a proxy says that it speaks for somebody else. Who connects
// to an address of this machine by himself is one of its users.
func isProxied(h *fasthttp.RequestHeader) bool {
	for _, name := range [...]string{"Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip"} {
		if len(h.Peek(name)) > 0 {
			return true
		}
	}
	return false
}

// hasCredential tells whether a request comes with a key or a token, whatever for.
func (s *Server) hasCredential(h *fasthttp.RequestHeader) bool {
	if _, ok := s.config.Keys.authenticate(nil, h.Peek(fasthttp.HeaderAuthorization)); ok {
		return true
	}
	_, _, r := ingress.ReadToken(s.config.Secret, runTokenOf(h))
	return r == nil
}

// bearerToken is what an Authorization header bears.
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

// RunToken is the header in which an external agent sends the token of its run.
const RunToken = "x-run-token"

func unauthorized(detail string) *problem {
	return newProblem(http.StatusUnauthorized, "unauthorized", "unauthorized", detail)
}

func invalidKey() *problem {
	return unauthorized("this is no API key that is valid now: it may be mistyped, expired or revoked; `troupe keys list` shows which there are")
}

// wallTime is the time by which keys expire.
func wallTime() actor.Time { return actor.Time(time.Now().UnixNano()) }

// Keys are the API keys that are valid. The zero value is none. Safe for use by
// many goroutines.
type Keys struct {
	table atomic.Pointer[map[string]*keyEntry]
}

// keyEntry is a key, and who comes with it.
type keyEntry struct {
	ingress.Key
	caller caller
}

// Set replaces all keys: what is not there any more is revoked with this.
func (k *Keys) Set(all []ingress.Key) {
	table := make(map[string]*keyEntry, len(all))
	for _, key := range all {
		table[key.ID] = &keyEntry{key, caller{Principal: key.Principal(), Key: key.ID}}
	}
	k.table.Store(&table)
}

// Count is how many there are.
func (k *Keys) Count() int { return len(k.entries()) }

// All lists them by their ids.
func (k *Keys) All() []ingress.Key {
	all := k.entries()
	list := make([]ingress.Key, 0, len(all))
	for _, id := range slices.Sorted(maps.Keys(all)) {
		list = append(list, all[id].Key)
	}
	return list
}

// Valid tells whether the key of this id may still be used. A stream asks every
// second, and ends when it may not.
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

// keyCache is the key that came last over a connection, as it was written there: where
// it comes again, and no key was changed meanwhile, it need not be hashed again.
type keyCache struct {
	header []byte
	table  *map[string]*keyEntry
	entry  *keyEntry
}

// authenticate finds the key that an Authorization header bears.
func (k *Keys) authenticate(over net.Conn, header []byte) (*keyEntry, bool) {
	c, _ := over.(*connection)
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

// unknownKey's key has a digest that no text has.
var unknownKey keyEntry

// lookup looks a key up by the text that its holder presents. Whether there is
// one of that id, and how much of the text is right, takes no time to tell.
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
