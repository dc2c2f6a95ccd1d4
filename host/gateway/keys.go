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
	anybody  ingress.Scope = "anybody"   // nothing: health
	runToken ingress.Scope = "run token" // the token of an open run
)

// scopes is the one table of who may do what. A route without a row is not
// served, and cannot be made.
var scopes = map[string]ingress.Scope{
	"GET /healthz": anybody,
	"GET /readyz":  anybody,
	"GET /metrics": ingress.ScopeRead,

	"GET /v1/agents":                 ingress.ScopeRead,
	"GET /v1/agents/{id}":            ingress.ScopeRead,
	"POST /v1/agents":                ingress.ScopeAgents,
	"POST /v1/agents/register":       ingress.ScopeAgents,
	"POST /v1/agents/{id}:heartbeat": ingress.ScopeAgents,
	"DELETE /v1/agents/{id}":         ingress.ScopeAgents,
	"POST /v1/agents/{id}/messages":  ingress.ScopeCall,
	"POST /v1/agents/{id}:invoke":    runToken,

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

// on makes a route, behind the table of scopes, and returns what it leads to.
func (s *Server) on(r *router.Router, method, path string, handle fasthttp.RequestHandler) fasthttp.RequestHandler {
	behind := s.behind(method+" "+path, handle)
	r.Handle(method, path, behind)
	return behind
}

// behind has whoever comes by a route show first that he may.
func (s *Server) behind(route string, handle fasthttp.RequestHandler) fasthttp.RequestHandler {
	scope, ok := scopes[route]
	if !ok {
		panic(route + " has no row in the table of scopes")
	}
	row := s.metrics.row(route)
	return func(ctx *fasthttp.RequestCtx) {
		ctx.SetUserValue(routeValue, row)
		c, p := s.identify(&ctx.Request.Header, scope, ctx.Conn())
		if p != nil {
			p.write(ctx)
			return
		}
		ctx.SetUserValue(callerValue, c)
		handle(ctx)
		if c.Key != "" && ctx.IsGet() && !ctx.Hijacked() && !s.config.Keys.Valid(c.Key) { // it may have waited long
			badKey().write(ctx)
		}
	}
}

// verbs makes the routes of a thing's verbs: path:verb.
func (s *Server) verbs(r *router.Router, path string, handles map[string]fasthttp.RequestHandler) {
	all := map[string]fasthttp.RequestHandler{}
	for verb, handle := range handles {
		all[verb] = s.behind("POST "+path+":"+verb, handle)
	}
	known := ":" + strings.Join(slices.Sorted(maps.Keys(all)), ", :")
	r.POST(path, func(ctx *fasthttp.RequestCtx) {
		id, verb, _ := strings.Cut(param(ctx, "id"), ":")
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

// local is who speaks over loopback without a key: whoever can is this
// machine's user already.
const local = "local"

var localCaller = caller{Principal: local}

const callerValue = "caller"

// who is whom on found.
func who(ctx *fasthttp.RequestCtx) caller {
	if c, ok := ctx.UserValue(callerValue).(*caller); ok {
		return *c
	}
	return caller{}
}

// identify finds in whose name a request comes, and whether it may do what the
// scope is about. A key that is presented is looked at even where none is needed.
// Over says on which connection it came, if that is known.
func (s *Server) identify(h *fasthttp.RequestHeader, scope ingress.Scope, over net.Conn) (*caller, *problem) {
	presented := h.Peek(fasthttp.HeaderAuthorization)
	none := len(presented) == 0
	switch {
	case scope == anybody:
		return &caller{}, nil
	case scope == runToken:
		run, id, r := ingress.ReadToken(s.config.Secret, token(h))
		if r != nil {
			return nil, unauthorized(r.Detail)
		}
		return &caller{Principal: "run:" + run.String(), Run: run, Actor: id}, nil
	case none && s.local.Load() && !passedOn(h):
		return &localCaller, nil
	case none && s.local.Load():
		return nil, unauthorized("this request comes through a proxy, for somebody who may be anywhere: an API key is needed; `troupe keys create` makes one")
	case none:
		return nil, unauthorized("an API key is needed here: send the header Authorization: Bearer troupe_…; `troupe keys create` makes one")
	}
	held, ok := s.config.Keys.presented(over, presented)
	if !ok {
		return nil, badKey()
	}
	if !held.Allows(scope) {
		return nil, newProblem(http.StatusForbidden, "forbidden_scope", "forbidden scope",
			fmt.Sprintf("the API key %s lacks the scope %s; `troupe keys create --scope %[2]s` makes one that has it", held.ID, scope))
	}
	return &held.caller, nil
}

// passedOn tells whether a proxy says that it speaks for somebody else. Who connects
// to an address of this machine by himself is one of its users.
func passedOn(h *fasthttp.RequestHeader) bool {
	for _, name := range [...]string{"Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip"} {
		if len(h.Peek(name)) > 0 {
			return true
		}
	}
	return false
}

// known tells whether a request comes with a key or a token, whatever for.
func (s *Server) known(h *fasthttp.RequestHeader) bool {
	if _, ok := s.config.Keys.presented(nil, h.Peek(fasthttp.HeaderAuthorization)); ok {
		return true
	}
	_, _, r := ingress.ReadToken(s.config.Secret, token(h))
	return r == nil
}

// bearer is what an Authorization header bears.
func bearer(header []byte) string {
	const scheme = "Bearer "
	text := string(header)
	if len(text) < len(scheme) || !strings.EqualFold(text[:len(scheme)], scheme) {
		return ""
	}
	return strings.TrimSpace(text[len(scheme):])
}

func token(h *fasthttp.RequestHeader) string {
	if t := h.Peek(RunToken); len(t) > 0 {
		return string(t)
	}
	return bearer(h.Peek(fasthttp.HeaderAuthorization))
}

// RunToken is the header in which an external agent sends the token of its run.
const RunToken = "x-run-token"

func unauthorized(detail string) *problem {
	return newProblem(http.StatusUnauthorized, "unauthorized", "unauthorized", detail)
}

func badKey() *problem {
	return unauthorized("this is no API key that is valid now: it may be mistyped, expired or revoked; `troupe keys list` shows which there are")
}

// now is the time by which keys expire.
func now() actor.Time { return actor.Time(time.Now().UnixNano()) }

// Keys are the API keys that are valid. The zero value is none. Safe for use by
// many goroutines.
type Keys struct {
	table atomic.Pointer[map[string]*held]
}

// held is a key, and who comes with it.
type held struct {
	ingress.Key
	caller caller
}

// Set replaces all keys: what is not there any more is revoked with this.
func (k *Keys) Set(all []ingress.Key) {
	table := make(map[string]*held, len(all))
	for _, key := range all {
		table[key.ID] = &held{key, caller{Principal: key.Principal(), Key: key.ID}}
	}
	k.table.Store(&table)
}

// Count is how many there are.
func (k *Keys) Count() int { return len(k.all()) }

// All lists them by their ids.
func (k *Keys) All() []ingress.Key {
	all := k.all()
	list := make([]ingress.Key, 0, len(all))
	for _, id := range slices.Sorted(maps.Keys(all)) {
		list = append(list, all[id].Key)
	}
	return list
}

// Valid tells whether the key of this id may still be used. A stream asks every
// second, and ends when it may not.
func (k *Keys) Valid(id string) bool {
	key, ok := k.all()[id]
	return ok && !key.Expired(now())
}

func (k *Keys) all() map[string]*held {
	if t := k.table.Load(); t != nil {
		return *t
	}
	return nil
}

// shown is the key that came last over a connection, as it was written there: where
// it comes again, and no key was changed meanwhile, it need not be hashed again.
type shown struct {
	header []byte
	table  *map[string]*held
	key    *held
}

// presented finds the key that an Authorization header bears.
func (k *Keys) presented(over net.Conn, header []byte) (*held, bool) {
	c, _ := over.(*connection)
	table := k.table.Load()
	if c != nil && table != nil && c.shown.table == table && subtle.ConstantTimeCompare(c.shown.header, header) == 1 {
		return c.shown.key, c.shown.key.Expires == 0 || !c.shown.key.Expired(now())
	}
	key, ok := k.find(bearer(header), now())
	if ok && c != nil {
		c.shown = shown{append(c.shown.header[:0], header...), table, key}
	}
	return key, ok
}

// nobody's key has a digest that no text has.
var nobody held

// find looks a key up by the text that its holder presents. Whether there is
// one of that id, and how much of the text is right, takes no time to tell.
func (k *Keys) find(text string, at actor.Time) (*held, bool) {
	id, ok := ingress.KeyID(text)
	key, known := k.all()[id]
	if !known {
		key = &nobody
	}
	if !key.Matches(text) || !ok || !known || key.Expired(at) {
		return nil, false
	}
	return key, true
}
