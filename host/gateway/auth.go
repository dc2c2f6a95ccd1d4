// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"cmp"
	"crypto/subtle"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
)

// caller is the authenticated origin of a request. All keys of the tenant that have
// the same scopes see the same runs.
type caller struct {
	actor.Principal
	Run   actor.CallID // run authorized by the token, if any
	Actor actor.ID     // actor of that run

	invocation uint32 // of the agent that got the token; 0 if unknown

	agents  []string   // the only agents that it calls and finds; all if empty
	expires actor.Time // of its token; 0: it has none

	namesUsers bool   // its requests may name any user
	namedBy    string // share key of the caller whose request named this one; empty if none did
	registrar  string // principal that registered the agent that works on Run; empty if none did
}

// shareKey returns the key under which the caller takes shares: its user, or for the external
// agent that works on a run the principal that registered it, which has one share however many
// agents it registers. A caller that names users takes its own shares for all of them.
func (c *caller) shareKey() string {
	switch {
	case c.registrar != "":
		return c.registrar
	case !c.Run.IsZero():
		return "agent:" + c.Actor.Agent
	case c.namedBy != "":
		return c.namedBy
	}
	return c.User
}

// finds reports whether the caller finds an agent, and so may call it.
func (c *caller) finds(agent string) bool {
	return len(c.agents) == 0 || slices.Contains(c.agents, agent)
}

// isAdmin reports whether the caller may do everything.
func (c *caller) isAdmin() bool { return ingress.Allows(c.Principal, ingress.ScopeAdmin) }

// localCaller is a client on loopback without a key. It lacks the scope admin: were
// such a client a stranger behind an unrecognized proxy, it could make itself a key.
// ownerCaller is a process of the data folder's owner, who could change the store
// itself.
var (
	localCaller  = newCaller(actor.LocalUser, ingress.ScopeCall, ingress.ScopeRead, ingress.ScopeAgents, ingress.ScopeOperator)
	ownerCaller  = newCaller(actor.LocalUser, ingress.Scopes()...)
	publicCaller = newCaller("")
)

func newCaller(user string, scopes ...ingress.Scope) caller {
	return caller{Principal: actor.NewPrincipal(user, "", ingress.ScopeNames(scopes)...), namesUsers: true}
}

// callerKey is the user value in which protect stores the caller of a request.
const callerKey = "caller"

// callerOf returns the caller of a request.
func callerOf(ctx *fasthttp.RequestCtx) caller {
	if c, ok := ctx.UserValue(callerKey).(*caller); ok {
		return *c
	}
	return publicCaller
}

// authorize authenticates a request and checks that it may use the scope. A
// presented key is always verified, even if no key is required. A request with a run
// token has the rights of that run only, whatever else it presents. The connection may
// be nil. The scope "" means any scope.
func (s *Server) authorize(h *fasthttp.RequestHeader, scope ingress.Scope, conn net.Conn) (*caller, *problem) {
	presented := h.Peek(fasthttp.HeaderAuthorization)
	switch {
	case scope == scopePublic:
		return &publicCaller, nil
	case hasRunToken(h):
		c, p := s.authorizeRun(runTokenOf(h))
		switch {
		case p == nil && scope == scopePerson:
			return nil, actsForRun()
		case p == nil && scope != "" && !forRuns(scope):
			return nil, newProblem(http.StatusForbidden, "forbidden_scope", "forbidden scope",
				"a request with a run token may call agents with POST /v1/agents/{id}:invoke, or without waiting with POST /v1/tools/agent_call:invoke, use tools and models, read the conversation of its run and use the contexts of its session: send this one without "+RunToken)
		}
		return c, p
	case scope == scopePerson && (len(h.PeekAll(runHeader)) > 0 || len(h.PeekAll(egressHeader)) > 0):
		return nil, actsForRun()
	case scope == scopePerson:
		scope = ingress.ScopeCall
	case scope == scopeRunToken && len(h.Peek(runHeader)) > 0: // before the body; see forwardedRuns
		scope = ingress.ScopeCall
	case scope == scopeRunToken:
		return s.authorizeRun("")
	case scope == scopeCallOrRun:
		scope = ingress.ScopeCall
	case scope == scopeReadOrRun:
		scope = ingress.ScopeRead
	case scope == scopeModels && len(h.Peek(runHeader)) > 0: // before the body; see forwardedRuns
		scope = ingress.ScopeCall
	case scope == scopeModels:
		scope = ingress.ScopeAgents
	}
	if anonymous := len(presented) == 0; anonymous || isForeignBearer(presented) && !s.config.Keys.issuing() {
		if isOwner(conn) {
			return &ownerCaller, nil
		}
		switch reason := cmp.Or(embeddedKeyRequired(conn), s.keyRequired(h)); {
		case reason == "" && scope != "" && !ingress.Allows(localCaller.Principal, scope):
			return nil, unauthorized(fmt.Sprintf("over TCP this request needs an API key with the scope %s; the owner of the data folder needs none: `troupe keys` and `troupe backup` take --data DIR while the server runs", scope))
		case reason == "":
			return &localCaller, nil
		case anonymous:
			p := unauthorized(reason + "; `troupe keys create --data DIR` makes one")
			p.wrongKey = scope == "" && len(h.Peek(RunToken)) > 0
			return nil, p
		}
	}
	if token := bearerToken(presented); ingress.IsClientToken(token) {
		return s.config.Keys.authorizeToken(s.config.Secret, h, token, scope)
	}
	held, ok := s.config.Keys.authenticate(conn, presented)
	if !ok {
		if id, expired := s.config.Keys.expired(bearerToken(presented), wallTime()); expired {
			return nil, unauthorized("the API key " + id + " has expired; `troupe keys create --data DIR` makes another one")
		}
		p := invalidKey()
		p.wrongKey = strings.HasPrefix(bearerToken(presented), "troupe_")
		return nil, p
	}
	if !ingress.Allows(held.caller.Principal, scope) && !(held.caller.chats() && mayChat(h, scope)) {
		return nil, lacksScope(held.ID, scope)
	}
	return &held.caller, nil
}

func lacksScope(key string, scope ingress.Scope) *problem {
	return newProblem(http.StatusForbidden, "forbidden_scope", "forbidden scope",
		fmt.Sprintf("the API key %s lacks the scope %s; `troupe keys create --scope %[2]s --data DIR` makes one that has it", key, scope))
}

// authorizeRun returns the external agent that works on the run of a token.
func (s *Server) authorizeRun(token string) (*caller, *problem) {
	run, id, invocation, r := ingress.ReadInvocationToken(s.config.Secret, token)
	if r != nil {
		p := unauthorized(r.Detail)
		if p.wrongKey = token != ""; !p.wrongKey {
			p.Detail = "this request acts for a run: send the header x-run-token of its /invoke request, or the run in x-run-id with the key that registered its agent"
		}
		return nil, p
	}
	return &caller{Principal: actor.Principal{Tenant: id.Tenant, User: "run:" + run.String()}, Run: run, Actor: id, invocation: invocation, registrar: s.owners.of(s.node, id.Agent)}, nil
}

// requireOpenRun refuses a request for a run that has ended.
func requireOpenRun(s *Server, ctx *fasthttp.RequestCtx, c *caller) *problem {
	_, err := lookup(s, *c, command.OpenRunQuery{Run: c.Run})
	if r := (*actor.Refusal)(nil); errors.As(err, &r) && r.Reason == actor.NotFound {
		return refusalProblem(actor.RefuseNotFound(actor.WhatOpenRun, "run %s is not open: its token is no longer valid", c.Run))
	}
	if err != nil {
		return s.errorProblem(ctx, err)
	}
	return nil
}

// hasRunToken reports whether a request presents a run token, valid or not. An empty
// header counts: a service that lost its token MUST NOT start a tree of its own.
func hasRunToken(h *fasthttp.RequestHeader) bool {
	return len(h.PeekAll(RunToken)) > 0 || ingress.IsRunToken(bearerBytes(h.Peek(fasthttp.HeaderAuthorization)))
}

// hasCredential reports whether the request carries a valid key or token, with
// any scope.
func (s *Server) hasCredential(h *fasthttp.RequestHeader) bool {
	if _, ok := s.config.Keys.authenticate(nil, h.Peek(fasthttp.HeaderAuthorization)); ok {
		return true
	}
	if token := bearerToken(h.Peek(fasthttp.HeaderAuthorization)); ingress.IsClientToken(token) {
		_, p := s.config.Keys.authorizeToken(s.config.Secret, h, token, ingress.ScopeRead)
		return p == nil
	}
	_, _, r := ingress.ReadToken(s.config.Secret, runTokenOf(h))
	return r == nil
}

// bearerToken returns the token of an Authorization header, or "".
func bearerToken(header []byte) string { return string(bearerBytes(header)) }

// bearerBytes returns the token of an Authorization header as a part of it, or nil.
func bearerBytes(header []byte) []byte {
	scheme := []byte("Bearer ")
	if len(header) < len(scheme) || !bytes.EqualFold(header[:len(scheme)], scheme) {
		return nil
	}
	return bytes.TrimSpace(header[len(scheme):])
}

func runTokenOf(h *fasthttp.RequestHeader) string {
	if t := h.Peek(RunToken); len(t) > 0 {
		return string(t)
	}
	return bearerToken(h.Peek(fasthttp.HeaderAuthorization))
}

// egressHeader is the header of each request that a server sends, for an agent or a tool.
// TestToolCannotApprove checks that the sender writes the same name.
const egressHeader = "x-troupe-egress"

// RunToken is the header that carries the run token of an external agent.
const RunToken = "x-run-token"

func unauthorized(detail string) *problem {
	return newProblem(http.StatusUnauthorized, "unauthorized", "unauthorized", detail)
}

func invalidKey() *problem {
	return unauthorized("invalid API key or token: it may be mistyped, expired or revoked; see `troupe keys list`")
}

// wallTime returns the current time, against which keys expire.
func wallTime() actor.Time { return actor.Time(time.Now().UnixNano()) }

// Keys is the set of valid API keys. The zero value is empty. It is safe for
// concurrent use.
type Keys struct {
	table atomic.Pointer[map[string]*keyEntry]
	last  atomic.Pointer[keyCache] // last key presented before a body
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
		table[key.ID] = &keyEntry{key, caller{Principal: key.Principal(), namesUsers: key.ActAsUser, agents: key.Agents}}
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

// keyCache is the last key presented on a connection, or before a body on any of them,
// with the exact header. It saves hashing the same key again, as long as the key table is
// unchanged.
type keyCache struct {
	header []byte
	table  *map[string]*keyEntry
	entry  *keyEntry
}

// authenticate returns the valid key presented in an Authorization header. If
// conn is not the server's own, as before a body, it uses the last key instead of that of
// the connection.
func (k *Keys) authenticate(conn net.Conn, header []byte) (*keyEntry, bool) {
	c, _ := conn.(*connection)
	table, cached := k.table.Load(), k.last.Load()
	if c != nil {
		cached = &c.cachedKey
	}
	if cached != nil && table != nil && cached.table == table && subtle.ConstantTimeCompare(cached.header, header) == 1 {
		return cached.entry, cached.entry.Expires == 0 || !cached.entry.Expired(wallTime())
	}
	key, ok := k.lookup(bearerToken(header), wallTime())
	switch {
	case ok && c != nil:
		c.cachedKey = keyCache{append(c.cachedKey.header[:0], header...), table, key}
	case ok:
		k.last.Store(&keyCache{bytes.Clone(header), table, key})
	}
	return key, ok
}

// expired reports whether a text is that of a key that has expired. Its holder has guessed nothing,
// so it does not count as a wrong key of its address.
func (k *Keys) expired(text string, at actor.Time) (id string, ok bool) {
	id, ok = ingress.KeyID(text)
	key, known := k.entries()[id]
	return id, ok && known && key.Matches(text) && key.Expired(at)
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
