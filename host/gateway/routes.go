// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/fasthttp/router"
	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/ingress"
)

// route is a request that clients may send. Its scope and its query parameters are checked
// before it is handled.
type route struct {
	method string
	path   string // may have one {id}, which a verb may follow: /v1/runs/{id}:cancel; skillRoute has a {skill} too
	scope  ingress.Scope
	params []string // query parameters
	handle fasthttp.RequestHandler
}

// Requirements of a route that are not scopes of API keys.
const (
	scopePublic    ingress.Scope = "public"            // no credentials: health checks
	scopeRunToken  ingress.Scope = "run token"         // the token of an open run
	scopeCallOrRun ingress.Scope = "call or run token" // the token of an open run if one is presented; otherwise ScopeCall
	scopeReadOrRun ingress.Scope = "read or run token" // likewise with ScopeRead
	scopePerson    ingress.Scope = "call, for no run"  // ScopeCall, in a request that acts for no run
	scopeModels    ingress.Scope = "agents, or a run"  // the token of an open run, ScopeCall in a request that names one, otherwise ScopeAgents
)

// neededScope returns the scope of an API key that meets a requirement without a run.
func neededScope(scope ingress.Scope) ingress.Scope {
	switch scope {
	case scopeCallOrRun, scopePerson:
		return ingress.ScopeCall
	case scopeReadOrRun:
		return ingress.ScopeRead
	case scopeModels:
		return ingress.ScopeAgents
	}
	return scope
}

// forRuns reports whether the token of a run meets a requirement.
func forRuns(scope ingress.Scope) bool {
	return scope == scopeRunToken || scope == scopeCallOrRun || scope == scopeReadOrRun || scope == scopeModels
}

// routes returns the single table of routes.
func (s *Server) routes() []route {
	const get, post, put, del = http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete
	const call, read, agents, operator, admin = ingress.ScopeCall, ingress.ScopeRead, ingress.ScopeAgents, ingress.ScopeOperator, ingress.ScopeAdmin
	page, user := []string{"limit", "cursor"}, []string{userParam}
	return []route{
		{get, "/healthz", scopePublic, nil, healthz},
		{get, "/readyz", scopePublic, nil, s.readyz},
		{get, "/metrics", operator, nil, s.getMetrics},
		{get, "/", scopePublic, nil, frontPage},
		{get, "/docs", scopePublic, nil, docsPage},
		{get, "/docs/{id}", scopePublic, nil, docsText},
		{get, "/chat", scopePublic, nil, chatPage},
		{get, "/console", scopePublic, nil, consolePage},
		{get, "/assets/{id}", scopePublic, nil, webAsset},
		{get, keySetRoute, scopePublic, nil, keySet(s.config.Secret)},

		{get, "/v1/agents", read, page, s.listAgents},
		{post, "/v1/agents", agents, nil, s.createAgent},
		{post, "/v1/agents/register", agents, nil, s.registerAgent},
		{get, "/v1/agents/{id}", read, nil, s.getAgent},
		{del, "/v1/agents/{id}", agents, nil, s.deleteAgent},
		{post, "/v1/agents/{id}:heartbeat", agents, nil, s.heartbeat},
		{post, "/v1/agents/{id}:invoke", scopeRunToken, nil, s.invoke},
		{post, "/v1/agents/{id}/messages", scopeCallOrRun, nil, s.postMessage},
		{post, skillRoute, call, nil, skillRoutes{s}.invoke},

		{get, "/v1/capabilities", read, page, capabilityRoutes{s}.list},
		{get, "/v1/capabilities/{id}", read, nil, capabilityRoutes{s}.get},
		{put, "/v1/capabilities/{id}", agents, nil, capabilityRoutes{s}.put},
		{del, "/v1/capabilities/{id}", agents, nil, capabilityRoutes{s}.delete},
		{get, "/v1/schemas/{id}", read, nil, capabilityRoutes{s}.schema},

		{get, "/v1/runs", read, slices.Concat(page, user, ingress.RunParams), s.listRuns},
		{get, "/v1/runs/{id}", read, []string{"tree", userParam}, s.getRun},
		{get, "/v1/runs/{id}/events", read, []string{"after", "limit", "wait_ms", "tree", userParam}, eventRoutes{s}.getEvents},
		{get, "/v1/runs/{id}/prompts", operator, []string{"after", "limit", userParam}, promptRoute{s}.list},
		{get, "/v1/runs/{id}/steps", operator, []string{"after", "limit", "prompts", userParam}, stepRoute{s}.list},
		{get, usageRoute, read, slices.Concat(page, user, ingress.UsageParams), usageRoutes{s}.report},
		{post, "/v1/runs/{id}:signal", call, user, s.signalRun},
		{post, "/v1/runs/{id}:cancel", call, user, s.cancelRun},
		{post, "/v1/runs/{id}:retry", call, user, retryRoute{s}.retryRun},

		{get, "/v1/sessions", read, slices.Concat(page, user), sessionRoutes{s}.listSessions},
		{post, "/v1/sessions", call, nil, sessionRoutes{s}.createSession},
		{get, "/v1/sessions/{id}", read, user, sessionRoutes{s}.getSession},
		{del, "/v1/sessions/{id}", call, []string{"cancel"}, sessionRoutes{s}.deleteSession},
		{get, "/v1/sessions/{id}/events", read, []string{"after", "limit", "wait_ms", userParam}, sessionRoutes{s}.getSessionEvents},
		{get, "/v1/sessions/{id}/state", read, user, taskRoutes{s}.getState},
		{get, schedulesRoute, read, user, scheduleRoutes{s}.list},
		{get, "/v1/tasks", read, user, taskRoutes{s}.list},
		{get, "/v1/tasks/{id}", read, user, taskRoutes{s}.get},
		{post, "/v1/tasks/{id}:cancel", call, user, taskRoutes{s}.cancel},
		{get, "/v1/sessions/{id}/messages", scopeReadOrRun, []string{"limit", "before", "agent", "agent_id", userParam}, sessionRoutes{s}.getMessages},
		{post, "/v1/sessions/{id}/messages", operator, user, sessionRoutes{s}.appendMessage},

		{post, "/v1/context", scopeCallOrRun, nil, contextRoutes{s}.createContext},
		{get, "/v1/context/{id}", scopeReadOrRun, []string{"version"}, contextRoutes{s}.getContext},
		{put, "/v1/context/{id}", scopeCallOrRun, nil, contextRoutes{s}.putContext},
		{del, "/v1/context/{id}", scopeCallOrRun, nil, contextRoutes{s}.deleteContext},

		{get, "/v1/memory", read, slices.Concat(page, user, memoryScope), memoryRoutes{s}.list},
		{post, "/v1/memory", call, user, memoryRoutes{s}.create},
		{post, "/v1/memory/forget", call, user, memoryRoutes{s}.forget},
		{post, "/v1/memory/entity", read, user, memoryRoutes{s}.entity},
		{post, "/v1/memory/search", read, user, memoryRoutes{s}.search},
		{post, "/v1/memory/traverse", read, user, memoryRoutes{s}.traverse},

		{get, socketRoute, scopePublic, nil, socketRoutes{s}.upgrade},

		{get, "/v1/tools", read, page, toolRoutes{s}.listTools},
		{post, "/v1/tools", operator, nil, toolRoutes{s}.createTool},
		{get, "/v1/tools/{id}", read, nil, toolRoutes{s}.getTool},
		{put, "/v1/tools/{id}", operator, nil, toolRoutes{s}.replaceTool},
		{del, "/v1/tools/{id}", operator, nil, toolRoutes{s}.deleteTool},
		{post, "/v1/tools/{id}:invoke", scopeRunToken, nil, toolCallRoutes{s}.invokeTool},
		{get, toolCallsRoute, read, slices.Concat(page, user), func(ctx *fasthttp.RequestCtx) { listToolCalls(s, ctx) }},
		{get, "/v1/tool_calls/{id}", scopeReadOrRun, user, toolCallRoutes{s}.getToolCall},
		{post, "/v1/tool_calls/{id}:wait", scopeReadOrRun, []string{"timeout_ms", userParam}, toolCallRoutes{s}.waitForToolCall},

		{post, "/v1/tool_calls/{id}:result", scopePerson, nil, toolCallRoutes{s}.giveResult},

		{post, "/v1/chat/completions", scopeModels, nil, openAIRoutes{s}.complete},
		{get, "/v1/models", scopeModels, nil, openAIRoutes{s}.listModels},
		{get, "/v1/models/{id}", scopeModels, nil, openAIRoutes{s}.getModel},

		{post, "/v1/openai/chat/completions", call, nil, agentModels{s}.complete},
		{get, "/v1/openai/models", call, nil, agentModels{s}.listModels},
		{get, "/v1/openai/models/{id}", call, nil, agentModels{s}.getModel},

		{get, approvalsRoute, read, slices.Concat(page, user, []string{"status"}), approvalRoutes{s}.listApprovals},
		{get, "/v1/approvals/{id}", read, user, approvalRoutes{s}.getApproval},
		{post, "/v1/approvals/{id}:decide", scopePerson, user, approvalRoutes{s}.decideApproval},

		{post, "/v1/tokens", operator, nil, tokenRoute{s}.issue},
		{get, "/v1/keys", admin, page, s.listKeys},
		{post, "/v1/keys", admin, nil, s.createKey},
		{del, "/v1/keys/{id}", admin, nil, s.revokeKey},
		{post, "/v1/backups", admin, nil, s.backup},
	}
}

// Routes that other code refers to.
const (
	messagesRoute  = "/v1/agents/{id}/messages" // the most frequent requests, which messageFastPath routes
	runsRoute      = "/v1/runs"
	keySetRoute    = "/.well-known/jwks.json"
	runRoute       = runsRoute + "/{id}"
	approvalsRoute = "/v1/approvals"
	approvalRoute  = "/v1/approvals/{id}"
	toolCallsRoute = "/v1/tool_calls"
	schedulesRoute = "/v1/schedules"
)

// name returns method and path, as metrics show them.
func (r *route) name() string { return r.method + " " + r.path }

// calls reports whether a request for a run is a call of that run. The actor of the run refuses
// the call once the run has ended.
func (r *route) calls() bool {
	return r.scope == scopeRunToken || r.path == messagesRoute || r.path == "/v1/chat/completions"
}

// isOfSession reports whether a request for a run reads the messages of its session, or reads or writes its contexts.
func (r *route) isOfSession() bool {
	return (r.scope == scopeReadOrRun || r.scope == scopeCallOrRun) && (r.path == "/v1/sessions/{id}/messages" || strings.HasPrefix(r.path, "/v1/context"))
}

// verb splits the verb from the path; it is empty if there is none.
func (r *route) verb() (path, verb string) {
	path, verb, _ = strings.Cut(r.path, ":")
	return path, verb
}

// matches reports whether the route has a path. It allocates nothing.
func (r *route) matches(path []byte) bool {
	for rest := r.path; ; {
		fixed, after, hasParam := strings.Cut(rest, "{")
		if len(path) < len(fixed) || string(path[:len(fixed)]) != fixed {
			return false
		}
		path = path[len(fixed):]
		if !hasParam {
			return len(path) == 0
		}
		n := bytes.IndexAny(path, "/:")
		if n < 0 {
			n = len(path)
		}
		if n == 0 {
			return false
		}
		path = path[n:]
		_, rest, _ = strings.Cut(after, "}")
	}
}

// routeTable is the table of routes that a server serves, by method and resource. So a request is
// compared with a few routes only.
type routeTable map[string]map[string][]*route

func newRouteTable(all []route) routeTable {
	t := routeTable{}
	for i := range all {
		r := &all[i]
		if t[r.method] == nil {
			t[r.method] = map[string][]*route{}
		}
		resource := string(resourceOf([]byte(r.path)))
		t[r.method][resource] = append(t[r.method][resource], r)
	}
	return t
}

// resourceOf returns the beginning of a path that has no parameters: the first segment, or the first
// two of a path of the protocol.
func resourceOf(path []byte) []byte {
	from := 1
	if bytes.HasPrefix(path, protocolPath) {
		from = len(protocolPath)
	}
	if i := bytes.IndexByte(path[min(from, len(path)):], '/'); i >= 0 {
		return path[:from+i]
	}
	return path
}

var protocolPath = []byte("/v1/")

// scope returns the scope of the route of a request; false if it has no route.
func (t routeTable) scope(method, path []byte) (scope ingress.Scope, ok bool) {
	for _, r := range t[string(method)][string(resourceOf(path))] {
		if r.matches(path) {
			return r.scope, true
		}
	}
	return "", false
}

// params are the names of all query parameters. A name has one meaning on all routes.
var params = slices.Concat([]string{"after", "agent", "before", "cancel", "cursor", "limit", "prompts", "scope", "timeout_ms", "tree", userParam, "version", "wait_ms"}, ingress.RunParams, ingress.UsageParams)

// checkRoutes returns an error for the first mistake in a table.
func checkRoutes(all []route) error {
	scopes := append(ingress.Scopes(), scopePublic, scopeRunToken, scopeCallOrRun, scopeReadOrRun, scopePerson, scopeModels)
	seen := map[string]bool{}
	for i := range all {
		r := &all[i]
		path, verb := r.verb()
		at := strings.LastIndex(r.path, "{")
		switch {
		case !slices.Contains([]string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete}, r.method):
			return fmt.Errorf("%s: unknown method", r.name())
		case r.path == skillRoute && r.method == http.MethodPost:
		case !strings.HasPrefix(path, "/"), at >= 0 && !strings.HasPrefix(r.path[at:], "{id}"), strings.Count(r.path, "{") > 1,
			verb != "" && (r.method != http.MethodPost || !strings.HasSuffix(path, "/{id}")):
			return fmt.Errorf("%s: malformed path", r.name())
		case seen[r.name()]:
			return fmt.Errorf("%s: is a duplicate", r.name())
		case !slices.Contains(scopes, r.scope):
			return fmt.Errorf("%s: unknown scope %q", r.name(), r.scope)
		case r.handle == nil:
			return fmt.Errorf("%s: has no handler", r.name())
		}
		for j, name := range r.params {
			if !slices.Contains(params, name) || slices.Contains(r.params[:j], name) {
				return fmt.Errorf("%s: query parameter %s is unknown or a duplicate", r.name(), name)
			}
		}
		seen[r.name()] = true
	}
	return nil
}

// setRoutes makes the server serve a table of routes. It panics if the table has a mistake.
func (s *Server) setRoutes(all []route) {
	if err := checkRoutes(all); err != nil {
		panic("route " + err.Error())
	}
	r := router.New()
	r.RedirectTrailingSlash, r.RedirectFixedPath, r.HandleOPTIONS = false, false, false
	r.NotFound = func(ctx *fasthttp.RequestCtx) {
		if page := pageOf(ctx.Path()); page != "" && (ctx.IsGet() || ctx.IsHead()) {
			ctx.Response.Header.Set(fasthttp.HeaderLocation, "../"+page) // from wherever a proxy shows the page
			ctx.SetStatusCode(http.StatusPermanentRedirect)
			return
		}
		detail := "this path does not exist: a message is sent by POST /v1/agents/{id}/messages; docs/api.md lists all paths"
		if isForeignOpenAI(ctx.Path()) {
			detail = "this path does not exist: of the OpenAI API this server has POST /v1/chat/completions and GET /v1/models, and both for agents below /v1/openai; the base URL of a client ends with /v1 or /v1/openai"
		}
		newProblem(http.StatusNotFound, "not_found", "no such path", detail).write(ctx)
	}
	r.MethodNotAllowed = func(ctx *fasthttp.RequestCtx) {
		allowed := allowedMethods(string(ctx.Response.Header.Peek(fasthttp.HeaderAllow)))
		ctx.Response.Header.Set(fasthttp.HeaderAllow, allowed)
		newProblem(http.StatusMethodNotAllowed, "method_not_allowed", "method not allowed", "this path supports "+allowed).write(ctx)
	}
	var message fasthttp.RequestHandler
	verbs := map[string]verbHandlers{} // by path
	for _, one := range all {
		handle := s.protect(one)
		path, verb := one.verb()
		switch {
		case verb == "":
			r.Handle(one.method, path, handle)
		case verbs[path] == nil:
			verbs[path] = verbHandlers{verb: handle}
			r.POST(path, verbs[path].handle)
		default:
			verbs[path][verb] = handle
		}
		if one.path == messagesRoute {
			message = handle
		}
	}
	s.table, s.router = newRouteTable(all), r
	s.handle = crossOrigin{s.config.Origins, s.table}.handler(messageFastPath(r.Handler, message))
	handler := s.handler(s.handle)
	s.http, s.ownerHTTP = s.newHTTP(handler, false), s.newHTTP(handler, true)
}

// verbHandlers handles the requests to one resource by their verbs.
type verbHandlers map[string]fasthttp.RequestHandler

func (v verbHandlers) handle(ctx *fasthttp.RequestCtx) {
	param := "id"
	if pathParam(ctx, "skill") != "" {
		param = "skill"
	}
	id, verb, _ := strings.Cut(pathParam(ctx, param), ":")
	handle, ok := v[verb]
	if !ok {
		known := ":" + strings.Join(slices.Sorted(maps.Keys(v)), ", :")
		detail := "unknown action: append one of these to the id: " + known
		if bytes.HasPrefix(ctx.Path(), agentsPath) {
			detail = "a message is sent by POST /v1/agents/{id}/messages; " + detail
		}
		newProblem(http.StatusNotFound, "not_found", "no such path", detail).write(ctx)
		return
	}
	ctx.SetUserValue(param, id)
	handle(ctx)
}

// protect returns a handler that checks scope, parameters and user of a request before the
// route handles it.
func (s *Server) protect(r route) fasthttp.RequestHandler {
	observers := s.metrics.newRouteObservers(r.name())
	return func(ctx *fasthttp.RequestCtx) {
		ctx.SetUserValue(routeKey, observers)
		var c *caller
		var p *problem
		h := &ctx.Request.Header
		switch names := len(h.PeekAll(runHeader)) > 0 && !hasRunToken(h); {
		case r.scope == scopeRunToken && !hasRunToken(h), r.scope == scopeModels && names:
			c, p = forwardedRuns{s}.authorize(ctx)
		case names && r.isOfSession():
			c, p = authorizeSession(s, ctx, r.scope)
		default:
			if c = s.admitted.take(h, r.scope); c == nil {
				c, p = s.authorize(h, r.scope, ctx.Conn())
			} else if c.lost(s.config.Keys) { // revoked while the body arrived
				p = invalidKey()
			}
		}
		if p == nil && c.chats() && !chatMayUse(&r) {
			p = lacksChat(&r)
		}
		if p != nil {
			s.throttle(ctx.Conn(), p).write(ctx)
			return
		}
		if r.scope != scopePublic { // load balancers add parameters to health checks
			if p = checkQuery(ctx, r.params); p == nil {
				c, p = c.named(ctx, r.path)
			}
			switch {
			case p != nil:
			case !c.Run.IsZero() && !r.calls():
				p = requireOpenRun(s, ctx, c)
			case c.Run.IsZero() && r.begins():
				p = checkNotOwn(s.config.Secret, &ctx.Request.Header)
			}
			if p != nil {
				p.write(ctx)
				return
			}
		}
		ctx.SetUserValue(callerKey, c)
		r.handle(ctx)
		if ctx.IsGet() && !ctx.Hijacked() && c.lost(s.config.Keys) { // the key may have expired during a long poll
			invalidKey().write(ctx)
		}
		if strings.HasPrefix(r.path, runRoute) && ctx.Response.StatusCode() < http.StatusMultipleChoices && !ctx.Hijacked() {
			ctx.Response.Header.Set(runHeader, pathParam(ctx, "id"))
		}
		if c.chats() && !ctx.Hijacked() {
			showChat(ctx, c, &r)
		}
	}
}
