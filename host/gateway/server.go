// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
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
	"github.com/troupe-run/troupe/internal/client"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/internal/shares"
)

const (
	// AnswerTimeout is the maximum time a client waits for an answer. After it,
	// the client gets the id of the run, which continues.
	AnswerTimeout = 2 * time.Minute
	// ConnectionsMax is the default for Config.Connections.
	ConnectionsMax = 8192

	readTimeout  = 30 * time.Second
	readyTimeout = 2 * time.Second // of /readyz: probes wait a few seconds at most
)

// External tracks the health of external agents. outbound.Outbound implements it.
type External interface {
	// Heartbeat records a heartbeat. It reports whether an external agent of that
	// name exists.
	Heartbeat(name string) bool
	Healthy(name string) bool
	// LastSeen returns the time of the last registration, heartbeat or successful
	// poll of an agent, or 0.
	LastSeen(name string) actor.Time
	// Circuit returns the state of the circuit breaker of an agent: closed, open or half_open; "" if
	// there is no agent of that name.
	Circuit(name string) string
	// Permit returns an error if the secret in the environment variable authEnv may
	// not be sent to a URL.
	Permit(url, authEnv string) error
	// PermitDefinition returns an error if a tool with this definition cannot be
	// performed, or may not be sent the secrets in its headers.
	PermitDefinition(definition []byte) error
}

// Server serves the HTTP API of a node.
type Server struct {
	node        command.Node
	log         *slog.Logger
	config      Config
	onLoopback  atomic.Bool   // the listener is bound to a loopback address
	port        atomic.Uint32 // port of the listener
	lastHost    atomic.Pointer[seenHost]
	agentNames  atomic.Pointer[agentNames]
	owners      agentOwners
	http        *fasthttp.Server // of Serve
	ownerHTTP   *fasthttp.Server // of ServeOwner
	table       routeTable
	router      *router.Router          // of the table
	handle      fasthttp.RequestHandler // of the router, before validation
	streams     *limiter                // streams, sockets and requests that wait for events
	strangers   *limiter                // sockets before their hello
	scans       *limiter                // requests that read lists, trees of runs, sessions and their events
	turns       turns                   // reads of those that have a place among streams
	chats       chatMemory
	wrongKeys   wrongKeys
	connections *openConnections
	lingering   lingerer   // served connections
	excess      lingerer   // connections over a limit
	tls         *decrypter // nil: connections are not encrypted
	bodies      *bodies
	admitted    admitted

	capabilities client.Capabilities
	metrics      *metrics
	drainOnce    sync.Once
	clock        func() time.Time
	draining     chan struct{} // closed by Drain: long polls return
	stopOnce     sync.Once
	stopping     chan struct{} // closed by Shutdown: streams end
}

// New returns a server for node.
func New(node command.Node, log *slog.Logger, config Config) *Server {
	s := &Server{node: node, log: log, config: config.withDefaults(), clock: time.Now, draining: make(chan struct{}), stopping: make(chan struct{}),
		connections: &openConnections{all: map[*connection]struct{}{}, answers: newAnswers()}, lingering: newLingerer(lingeringMax, lingeringEach), excess: newLingerer(lingeringExcessMax, lingeringExcessEach), bodies: newBodies(), admitted: admitted{seed: maphash.MakeSeed()}}
	streams := int64(s.config.Streams)
	s.streams = newLimiter(shares.Bounds{Max: streams, Each: max(1, streams/4), Reserved: streams / 8}, "event streams, sockets and requests that wait", "close some, or request JSON with Accept: application/json and without wait_ms")
	s.strangers = newLimiter(shares.Bounds{Max: strangersMax, Each: strangersEach, Reserved: strangersReserved}, "sockets without a hello", "send it, or the key in the handshake")
	s.scans = newLimiter(shares.Bounds{Max: ScansMax, Each: scansEach, Reserved: scansReserved}, "requests for lists, sessions and events", "wait for an answer, and repeat this one")
	s.tls = newDecrypter(s.config)
	s.wrongKeys.now, s.wrongKeys.debts = time.Now, map[netip.Prefix]time.Time{}
	s.metrics = newMetrics(s)
	if external := s.config.External; external != nil {
		s.capabilities.Unavailable = func(agent string) *actor.Refusal {
			if external.Circuit(agent) != "open" {
				return nil
			}
			return actor.RefuseUnavailable(time.Second, "agent %s does not answer: its circuit breaker is open", agent)
		}
		s.capabilities.Unhealthy = func(agent string) bool { return external.Circuit(agent) != "" && !external.Healthy(agent) }
	}
	s.setRoutes(s.routes())
	return s
}

// newHTTP returns a server that reads requests within the configured limits.
// owner is as in validateBeforeBody.
func (s *Server) newHTTP(handler fasthttp.RequestHandler, owner bool) *fasthttp.Server {
	return &fasthttp.Server{
		Handler:            handler,
		ErrorHandler:       s.handleReadError,
		HeaderReceived:     func(h *fasthttp.RequestHeader) fasthttp.RequestConfig { return s.headerReceived(h, owner) },
		Concurrency:        s.config.Connections,
		ReadBufferSize:     HeaderBytesMax,
		MaxRequestBodySize: BodyBytesMax,
		ReadTimeout:        s.config.HeadTimeout, // headerReceived sets the timeout of the body
		WriteTimeout:       s.config.WriteTimeout,
		IdleTimeout:        s.config.IdleTimeout,
		ConnState:          s.connections.changed,
		// No route takes a form. The form parser could end the body at another
		// place than the length of the body does.
		DisablePreParseMultipartForm: true,
		NoDefaultServerHeader:        true,
		NoDefaultContentType:         true,
		CloseOnShutdown:              true,
		Logger:                       httpLog{s.log},
	}
}

// messageFastPath routes messages to agents without the router. Most requests are
// messages, and the router copies each id three times.
func messageFastPath(router, message fasthttp.RequestHandler) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) {
		rest, hasPrefix := bytes.CutPrefix(ctx.Path(), agentsPath)
		id, hasSuffix := bytes.CutSuffix(rest, messagesPath)
		if !hasPrefix || !hasSuffix || bytes.IndexByte(id, '/') >= 0 || !ctx.IsPost() {
			router(ctx)
			return
		}
		ctx.SetUserValue("id", string(id))
		message(ctx)
	}
}

var agentsPath, messagesPath = []byte("/v1/agents/"), []byte("/messages")

// Serve serves connections of l until Shutdown. Off loopback it returns an error
// if no API key exists.
func (s *Server) Serve(l net.Listener) error {
	if err := CheckListenAddress(l.Addr().String(), s.config.Keys.Count()); err != nil {
		return errors.Join(err, l.Close())
	}
	s.onLoopback.Store(CheckListenAddress(l.Addr().String(), 0) == nil)
	if tcp, ok := l.Addr().(*net.TCPAddr); ok {
		s.port.Store(uint32(tcp.Port))
	}
	bounded := s.limitConnections(l)
	go func() { // also if Shutdown precedes Serve
		<-s.stopping
		_ = bounded.Close()
	}()
	return s.http.Serve(bounded)
}

// Drain makes /readyz fail, so that load balancers stop sending work, and ends
// all long polls.
func (s *Server) Drain() { s.drainOnce.Do(func() { close(s.draining) }) }

// Shutdown stops accepting connections and ends streams, so that clients can
// resume elsewhere. It waits for open requests until ctx is done.
func (s *Server) Shutdown(ctx context.Context) error {
	s.Drain()
	s.stopOnce.Do(func() { close(s.stopping) })
	return errors.Join(s.http.ShutdownWithContext(ctx), s.ownerHTTP.ShutdownWithContext(ctx), s.streams.waitIdle(ctx), s.strangers.waitIdle(ctx), s.tls.waitIdle(ctx))
}

// allowedMethods returns the methods listed by the router, without OPTIONS, which
// no route supports.
func allowedMethods(allow string) string {
	return strings.Join(slices.DeleteFunc(strings.Split(allow, ", "), func(m string) bool { return m == http.MethodOptions }), ", ")
}

// observed wraps a handler with panic recovery, metrics and logging.
func observed(s *Server, next fasthttp.RequestHandler) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) {
		defer func() {
			if p := recover(); p != nil {
				s.log.Error("panic while handling a request", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
				internalProblem().write(ctx)
			}
			allowOrigin(ctx, s.config.Origins)
			elapsed := time.Since(ctx.Time())
			s.metrics.observe(ctx, elapsed)
			status := ctx.Response.StatusCode()
			level := slog.LevelDebug
			if status >= 500 && status != http.StatusServiceUnavailable && status != http.StatusGatewayTimeout {
				level = slog.LevelWarn // expected under load, counted in metrics, and frequent
			}
			if !s.log.Enabled(ctx, level) {
				return
			}
			attrs := []slog.Attr{slog.String("method", string(ctx.Method())), slog.String("path", string(ctx.Path())),
				slog.Int("status", status), slog.Float64("ms", float64(elapsed.Microseconds())/1000)}
			if p, ok := ctx.UserValue(loggedProblem).(*problem); ok {
				attrs = append(attrs, slog.String("code", p.Code), slog.String("detail", p.Detail))
				if p.Run != "" {
					attrs = append(attrs, slog.String("run", p.Run))
				}
			}
			s.log.LogAttrs(ctx, level, "request", attrs...)
		}()
		next(ctx)
	}
}

// handler wraps every route with request validation, and with observed.
func (s *Server) handler(next fasthttp.RequestHandler) fasthttp.RequestHandler {
	return observed(s, func(ctx *fasthttp.RequestCtx) {
		defer s.connections.answers.admit(ctx)
		if h := &ctx.Request.Header; takesBodyShare(h) {
			s.bodies.received(h, int64(len(ctx.PostBody())))
			defer func() {
				if ctx.Hijacked() { // the stream keeps the request
					ctx.Request.ResetBody()
				}
				s.bodies.release(h)
			}()
		}
		if c, ok := ctx.Conn().(*connection); ok && c.bareLineFeed {
			malformed("the request line does not end with CR LF").write(ctx)
			ctx.SetConnectionClose()
			c.lingers = true
			return
		}
		if ctx.Request.Header.ContentLength() > 0 { // headerReceived has validated it before the body was read
			next(ctx)
			return
		}
		if p, hangUp := s.validateHead(&ctx.Request.Header); p != nil {
			p.write(ctx)
			if hangUp {
				ctx.SetConnectionClose()
				lingerOnClose(ctx)
			}
			return
		}
		next(ctx)
	})
}

// handleReadError answers a request that fasthttp failed to read.
func (s *Server) handleReadError(ctx *fasthttp.RequestCtx, err error) {
	var small *fasthttp.ErrSmallBuffer
	var net net.Error
	p := invalid(http.StatusBadRequest, "", "malformed request")
	refused := s.bodies.release(&ctx.Request.Header)
	if refused == nil && len(ctx.Request.Header.RawHeaders()) > 0 { // the head was received completely
		_, _, refused = s.validateBeforeBody(&ctx.Request.Header, isOwner(ctx.Conn()))
	}
	switch {
	case refused != nil:
		p = s.throttle(ctx.Conn(), refused)
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		p = invalid(http.StatusRequestEntityTooLarge, "", fmt.Sprintf("the body exceeds %d bytes", bodyMax(&ctx.Request.Header)))
	case errors.As(err, &small):
		p = invalid(http.StatusRequestHeaderFieldsTooLarge, "", fmt.Sprintf("the headers exceed %d bytes", HeaderBytesMax))
	case errors.As(err, &net) && net.Timeout():
		p = invalid(http.StatusRequestTimeout, "", "the request did not arrive in time")
	}
	p.write(ctx)
	allowOrigin(ctx, s.config.Origins)
	ctx.SetConnectionClose()
	if p.Status != http.StatusRequestTimeout { // a slow client gets no more time
		lingerOnClose(ctx)
	}
}

// lingerOnClose makes the connection of a request linger when it is closed.
func lingerOnClose(ctx *fasthttp.RequestCtx) {
	if c, ok := ctx.Conn().(*connection); ok {
		c.lingers = true
	}
}

func respond(ctx *fasthttp.RequestCtx, status int, body []byte) {
	ctx.SetStatusCode(status)
	ctx.SetContentType("application/json")
	keepFromCaches(ctx)
	ctx.SetBody(body)
}

// keepFromCaches marks an answer as one that is of its user only, and that no browser takes for a page.
func keepFromCaches(ctx *fasthttp.RequestCtx) {
	ctx.Response.Header.Set(fasthttp.HeaderCacheControl, "no-store")
	ctx.Response.Header.Set(fasthttp.HeaderXContentTypeOptions, "nosniff")
}

func respondJSON(ctx *fasthttp.RequestCtx, status int, v any) {
	body, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		panic(err)
	}
	respond(ctx, status, body)
}

// respondError answers a request that failed with a refusal or an internal error.
// If the client has disconnected, it sends nothing.
func (s *Server) respondError(ctx *fasthttp.RequestCtx, err error) {
	if errors.Is(err, context.Canceled) {
		abandonRequest(ctx)
		return
	}
	s.errorProblem(ctx, err).write(ctx)
}

// errorProblem returns the problem for an error of the node.
func (s *Server) errorProblem(ctx *fasthttp.RequestCtx, err error) *problem {
	return problemOf(s, string(ctx.Path()), err)
}

// problemOf is errorProblem for what a client has requested, a path or a kind of message.
func problemOf(s *Server, what string, err error) *problem {
	var r *actor.Refusal
	var dropped command.EventsDropped
	var forbidden *client.Forbidden
	switch {
	case errors.As(err, &dropped):
		return eventsDropped(dropped)
	case errors.As(err, &r):
		return refusalProblem(r)
	case errors.As(err, &forbidden):
		return forbiddenProblem(forbidden)
	case errors.Is(err, client.ErrRevoked):
		return keyRevoked()
	case errors.Is(err, context.DeadlineExceeded):
		return refusalProblem(actor.Refuse(actor.Deadline, "the node did not answer in time"))
	case errors.Is(err, command.ErrClosed):
		return refusalProblem(&actor.Refusal{Reason: actor.Unavailable, RetryAfter: time.Second, Detail: "this node is stopping"})
	default:
		s.log.Error("request failed", "path", what, "error", err.Error())
		return internalProblem()
	}
}

// internalProblem returns the problem of an internal error. The text of the error
// may name files and keys of the store, and goes to the log only.
func internalProblem() *problem {
	return newProblem(http.StatusInternalServerError, "internal", "internal error", "unexpected error; see the server log")
}

func healthz(ctx *fasthttp.RequestCtx) { respond(ctx, http.StatusOK, []byte(`{"status":"ok"}`)) }

func (s *Server) readyz(ctx *fasthttp.RequestCtx) {
	waiting, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	health, err := command.Find(waiting, s.node, callerOf(ctx).Principal, command.HealthQuery{})
	reason := health.Reason
	away := (*command.AwayError)(nil)
	switch {
	case errors.As(err, &away):
		reason = away.Refusal.Detail
	case errors.Is(err, command.ErrClosed):
		reason = command.ErrClosed.Error()
	case errors.Is(err, context.DeadlineExceeded):
		reason = fmt.Sprintf("the node has not answered for %v", readyTimeout)
	case err != nil:
		s.log.Error("cannot read the health of the node", "error", err.Error())
		reason = "the node does not report its health; see the server log"
	}
	select {
	case <-s.draining:
		reason = "this node is stopping"
	default:
	}
	if reason != "" {
		refusalProblem(&actor.Refusal{Reason: actor.Unavailable, RetryAfter: time.Second, Detail: reason}).write(ctx)
		return
	}
	if health.Database != "" {
		respond(ctx, http.StatusOK, []byte(`{"status":"ready","database":"`+health.Database+`"}`))
		return
	}
	respond(ctx, http.StatusOK, []byte(`{"status":"ready"}`))
}
