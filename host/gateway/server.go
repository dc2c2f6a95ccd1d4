// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fasthttp/router"
	"github.com/go-json-experiment/json"
	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/store"
)

const (
	// AnswerTimeout is how long a client is kept waiting for an answer; then it
	// gets the run's id, and the run goes on.
	AnswerTimeout = 2 * time.Minute
	// ConnectionsMax is how many connections are served at once.
	ConnectionsMax = 8192

	readTimeout = 30 * time.Second
)

// Node is what the gateway is the door of: an engine.Engine.
type Node interface {
	Ask(ctx context.Context, call actor.Call) (engine.Answer, error)
	AskStream(ctx context.Context, call actor.Call, joined func(run actor.CallID)) (engine.Answer, error)
	Cancel(run actor.CallID, id actor.ID) *actor.Refusal
	Read(ctx context.Context, read func(store.KV) error) error
	Watch(run actor.CallID) (news <-chan struct{}, stop func())
	NewCallID() actor.CallID
	Agents() []actor.Definition
	Ready() error
	State(ctx context.Context) ([]history.State, error)
	Stats() engine.Stats
}

// External is who looks after external agents: an outbound.Outbound.
type External interface {
	// Heartbeat takes a heartbeat; false if there is no external agent of that name.
	Heartbeat(name string) bool
	Healthy(name string) bool
}

// Server answers HTTP.
type Server struct {
	node       Node
	log        *slog.Logger
	config     Config
	onLoopback atomic.Bool            // bound to loopback
	lastHost   atomic.Pointer[string] // the Host that was last found to be ours
	http       *fasthttp.Server
	streams    streamLimiter
	metrics    *metrics
	drainOnce  sync.Once
	draining   chan struct{} // closed: no waiting for news
	stopOnce   sync.Once
	stopping   chan struct{} // closed: streams end
}

// New makes a server of a node.
func New(node Node, log *slog.Logger, config Config) *Server {
	s := &Server{node: node, log: log, config: config.withDefaults(), draining: make(chan struct{}), stopping: make(chan struct{})}
	s.streams.maxOpen = s.config.Streams
	s.metrics = newMetrics(s)
	r := router.New()
	r.RedirectTrailingSlash, r.RedirectFixedPath, r.HandleOPTIONS = false, false, false
	r.NotFound = func(ctx *fasthttp.RequestCtx) {
		newProblem(http.StatusNotFound, "not_found", "no such path", "there is nothing at this path; see the README for what there is").write(ctx)
	}
	r.MethodNotAllowed = func(ctx *fasthttp.RequestCtx) {
		takes := allowedMethods(string(ctx.Response.Header.Peek(fasthttp.HeaderAllow)))
		ctx.Response.Header.Set(fasthttp.HeaderAllow, takes)
		newProblem(http.StatusMethodNotAllowed, "method_not_allowed", "method not allowed", "this path takes "+takes).write(ctx)
	}
	s.addRoute(r, http.MethodGet, "/v1/agents", s.listAgents)
	s.addRoute(r, http.MethodPost, "/v1/agents", s.createAgent)
	s.addRoute(r, http.MethodPost, "/v1/agents/register", s.registerAgent)
	s.addRoute(r, http.MethodGet, "/v1/agents/{id}", s.getAgent)
	s.addRoute(r, http.MethodDelete, "/v1/agents/{id}", s.deleteAgent)
	s.addVerbRoutes(r, "/v1/agents/{id}", map[string]fasthttp.RequestHandler{"heartbeat": s.heartbeat, "invoke": s.invoke})
	message := s.addRoute(r, http.MethodPost, "/v1/agents/{id}/messages", s.postMessage)
	s.addRoute(r, http.MethodGet, "/v1/runs", s.listRuns)
	s.addRoute(r, http.MethodGet, "/v1/runs/{id}", s.getRun)
	s.addRoute(r, http.MethodGet, "/v1/runs/{id}/events", s.getEvents)
	s.addVerbRoutes(r, "/v1/runs/{id}", map[string]fasthttp.RequestHandler{"signal": s.signalRun, "cancel": s.cancelRun})
	s.addRoute(r, http.MethodGet, "/v1/keys", s.listKeys)
	s.addRoute(r, http.MethodPost, "/v1/keys", s.createKey)
	s.addRoute(r, http.MethodDelete, "/v1/keys/{id}", s.revokeKey)
	s.addRoute(r, http.MethodPost, "/v1/backups", s.backup)
	s.addRoute(r, http.MethodGet, "/healthz", func(ctx *fasthttp.RequestCtx) { respond(ctx, http.StatusOK, []byte(`{"status":"ok"}`)) })
	s.addRoute(r, http.MethodGet, "/readyz", s.readyz)
	s.addRoute(r, http.MethodGet, "/metrics", s.getMetrics)
	s.http = &fasthttp.Server{
		Handler:            s.handler(messageFastPath(r.Handler, message)),
		ErrorHandler:       s.handleReadError,
		HeaderReceived:     s.headerReceived,
		Concurrency:        s.config.Connections,
		ReadBufferSize:     HeaderBytesMax,
		MaxRequestBodySize: BodyBytesMax,
		ReadTimeout:        s.config.HeadTimeout, // received says how long the body may take
		WriteTimeout:       s.config.WriteTimeout,
		IdleTimeout:        s.config.IdleTimeout,
		// Nothing here takes a form, and its own reader would end it elsewhere than its length says.
		DisablePreParseMultipartForm: true,
		NoDefaultServerHeader:        true,
		NoDefaultContentType:         true,
		CloseOnShutdown:              true,
		Logger:                       discardLogger{},
	}
	return s
}

// messageFastPath leads messages to agents past the router: most requests are such, and it makes
// three copies of each one's id.
func messageFastPath(router, message fasthttp.RequestHandler) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) {
		rest, ours := bytes.CutPrefix(ctx.Path(), agentsPath)
		id, ends := bytes.CutSuffix(rest, messagesPath)
		if !ours || !ends || bytes.IndexByte(id, '/') >= 0 || !ctx.IsPost() {
			router(ctx)
			return
		}
		ctx.SetUserValue("id", string(id))
		message(ctx)
	}
}

var agentsPath, messagesPath = []byte("/v1/agents/"), []byte("/messages")

// discardLogger keeps fasthttp's own words to itself: what matters is logged here.
type discardLogger struct{}

func (discardLogger) Printf(string, ...any) {}

// Serve answers what comes in until Shutdown. Off loopback it wants a key to exist.
func (s *Server) Serve(l net.Listener) error {
	if err := CheckListenAddress(l.Addr().String(), s.config.Keys.Count()); err != nil {
		return errors.Join(err, l.Close())
	}
	s.onLoopback.Store(CheckListenAddress(l.Addr().String(), 0) == nil)
	bounded := s.limitConnections(l)
	go func() { // even if it is shut down before it begins
		<-s.stopping
		_ = bounded.Close()
	}()
	return s.http.Serve(bounded)
}

// Drain turns /readyz red, so that whoever sends work sends it elsewhere, and
// lets no reader wait for news.
func (s *Server) Drain() { s.drainOnce.Do(func() { close(s.draining) }) }

// Shutdown takes no more connections, ends streams so that their clients can go on
// elsewhere, and waits for requests under way, until ctx ends.
func (s *Server) Shutdown(ctx context.Context) error {
	s.Drain()
	s.stopOnce.Do(func() { close(s.stopping) })
	return errors.Join(s.http.ShutdownWithContext(ctx), s.streams.waitIdle(ctx))
}

// allowedMethods are those that a router lists, but for OPTIONS, which nothing here takes.
func allowedMethods(listed string) string {
	return strings.Join(slices.DeleteFunc(strings.Split(listed, ", "), func(m string) bool { return m == http.MethodOptions }), ", ")
}

// handler stands before every route: the guard, and whoever falls.
func (s *Server) handler(next fasthttp.RequestHandler) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) {
		defer func() {
			if p := recover(); p != nil {
				s.log.Error("a request made the gateway fail", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
				newProblem(http.StatusInternalServerError, "internal", "internal error", "this is our mistake; the log says more").write(ctx)
			}
			took := time.Since(ctx.Time())
			s.metrics.observe(ctx, took)
			status := ctx.Response.StatusCode()
			level := slog.LevelDebug
			if status >= 500 && status != http.StatusServiceUnavailable && status != http.StatusGatewayTimeout {
				level = slog.LevelWarn // those two are foreseen, counted, and many when they come
			}
			if !s.log.Enabled(ctx, level) {
				return
			}
			s.log.LogAttrs(ctx, level, "request", slog.String("method", string(ctx.Method())), slog.String("path", string(ctx.Path())),
				slog.Int("status", status), slog.Int64("us", took.Microseconds()))
		}()
		if ctx.Request.Header.ContentLength() > 0 { // received has looked before the body was read
			next(ctx)
			return
		}
		if p, hangUp := s.validateHead(&ctx.Request.Header); p != nil {
			p.write(ctx)
			if hangUp {
				ctx.SetConnectionClose()
			}
			return
		}
		next(ctx)
	}
}

// handleReadError answers what fasthttp itself could not read.
func (s *Server) handleReadError(ctx *fasthttp.RequestCtx, err error) {
	var small *fasthttp.ErrSmallBuffer
	var net net.Error
	p := invalid(http.StatusBadRequest, "", "the request cannot be read")
	var refused *problem
	if len(ctx.Request.Header.RawHeaders()) > 0 { // its head came, whole
		refused = s.validateBeforeBody(&ctx.Request.Header)
	}
	switch {
	case refused != nil:
		p = refused
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		p = invalid(http.StatusRequestEntityTooLarge, "", fmt.Sprintf("the body is over %d bytes", BodyBytesMax))
	case errors.As(err, &small):
		p = invalid(http.StatusRequestHeaderFieldsTooLarge, "", fmt.Sprintf("the headers are over %d bytes", HeaderBytesMax))
	case errors.As(err, &net) && net.Timeout():
		p = invalid(http.StatusRequestTimeout, "", "the request did not come in time")
	}
	p.write(ctx)
	ctx.SetConnectionClose()
}

func respond(ctx *fasthttp.RequestCtx, status int, body []byte) {
	ctx.SetStatusCode(status)
	ctx.SetContentType("application/json")
	ctx.SetBody(body)
}

func respondJSON(ctx *fasthttp.RequestCtx, status int, v any) {
	body, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		panic(err)
	}
	respond(ctx, status, body)
}

// respondError answers what went wrong: a refusal, or something of our own. Who is gone
// is told nothing.
func (s *Server) respondError(ctx *fasthttp.RequestCtx, err error) {
	var r *actor.Refusal
	switch {
	case errors.Is(err, context.Canceled):
		abandonRequest(ctx)
	case errors.As(err, &r):
		refusalProblem(r).write(ctx)
	case errors.Is(err, context.DeadlineExceeded):
		refusalProblem(actor.Refuse(actor.Deadline, "the node did not answer in time")).write(ctx)
	case errors.Is(err, engine.ErrClosed):
		refusalProblem(&actor.Refusal{Reason: actor.Unavailable, RetryAfter: time.Second, Detail: "this node stops"}).write(ctx)
	default:
		s.log.Error("a request failed", "path", string(ctx.Path()), "error", err.Error())
		newProblem(http.StatusInternalServerError, "internal", "internal error", err.Error()).write(ctx)
	}
}

func (s *Server) readyz(ctx *fasthttp.RequestCtx) {
	err := s.node.Ready()
	select {
	case <-s.draining:
		err = errors.New("this node is about to stop")
	default:
	}
	if err != nil {
		refusalProblem(&actor.Refusal{Reason: actor.Unavailable, RetryAfter: time.Second, Detail: err.Error()}).write(ctx)
		return
	}
	respond(ctx, http.StatusOK, []byte(`{"status":"ready"}`))
}
