// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fasthttp/router"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

const (
	// AnswerWithin is how long a client is kept waiting for an answer; then it
	// gets the run's id, and the run goes on.
	AnswerWithin = 2 * time.Minute
	// ConnectionsMax is how many connections are served at once.
	ConnectionsMax = 8192

	signalWithin   = 30 * time.Second
	readWithin     = 30 * time.Second
	newsWithinMax  = time.Minute
	idempotencyKey = "Idempotency-Key"
	keyBytesMax    = 255
)

// Node is what the gateway is the door of: an engine.Engine.
type Node interface {
	Ask(ctx context.Context, call actor.Call) (engine.Answer, error)
	Read(ctx context.Context, read func(store.KV) error) error
	Watch(run actor.CallID) (news <-chan struct{}, stop func())
	NewCallID() actor.CallID
	Agents() []actor.Definition
	Ready() error
}

// Server answers HTTP.
type Server struct {
	node     Node
	log      *slog.Logger
	config   Config
	local    atomic.Bool // bound to loopback
	http     *fasthttp.Server
	drain    sync.Once
	draining chan struct{}
}

// New makes a server of a node.
func New(node Node, log *slog.Logger, config Config) *Server {
	s := &Server{node: node, log: log, config: config.withDefaults(), draining: make(chan struct{})}
	r := router.New()
	r.RedirectTrailingSlash, r.RedirectFixedPath, r.HandleOPTIONS = false, false, false
	r.NotFound = func(ctx *fasthttp.RequestCtx) {
		newProblem(http.StatusNotFound, "not_found", "no such path", "there is nothing at this path; see the README for what there is").write(ctx)
	}
	r.MethodNotAllowed = func(ctx *fasthttp.RequestCtx) {
		takes := strings.TrimSuffix(string(ctx.Response.Header.Peek(fasthttp.HeaderAllow)), ", OPTIONS") // which nothing here takes
		ctx.Response.Header.Set(fasthttp.HeaderAllow, takes)
		newProblem(http.StatusMethodNotAllowed, "method_not_allowed", "method not allowed", "this path takes "+takes).write(ctx)
	}
	s.on(r, http.MethodPost, "/v1/agents/{id}/messages", s.message)
	s.on(r, http.MethodGet, "/v1/agents", s.agents)
	s.on(r, http.MethodGet, "/v1/runs", s.runs)
	s.on(r, http.MethodGet, "/v1/runs/{id}", s.run)
	s.on(r, http.MethodGet, "/v1/runs/{id}/events", s.events)
	s.on(r, http.MethodPost, "/v1/runs/{id}:signal", s.signal)
	s.on(r, http.MethodGet, "/healthz", func(ctx *fasthttp.RequestCtx) { ok(ctx, http.StatusOK, []byte(`{"status":"ok"}`)) })
	s.on(r, http.MethodGet, "/readyz", s.ready)
	s.http = &fasthttp.Server{
		Handler:            s.handler(r.Handler),
		ErrorHandler:       s.malformed,
		HeaderReceived:     s.received,
		Concurrency:        s.config.Connections,
		ReadBufferSize:     HeaderBytesMax,
		MaxRequestBodySize: BodyBytesMax,
		ReadTimeout:        s.config.HeadWithin, // received says how long the body may take
		WriteTimeout:       s.config.WriteWithin,
		IdleTimeout:        s.config.IdleWithin,
		// Nothing here takes a form, and its own reader would end it elsewhere than its length says.
		DisablePreParseMultipartForm: true,
		NoDefaultServerHeader:        true,
		NoDefaultContentType:         true,
		CloseOnShutdown:              true,
		Logger:                       quiet{},
	}
	return s
}

// quiet keeps fasthttp's own words to itself: what matters is logged here.
type quiet struct{}

func (quiet) Printf(string, ...any) {}

// Serve answers what comes in until Shutdown. Off loopback it wants a key to exist.
func (s *Server) Serve(l net.Listener) error {
	if err := MayListen(l.Addr().String(), s.config.Keys.Count()); err != nil {
		return errors.Join(err, l.Close())
	}
	s.local.Store(MayListen(l.Addr().String(), 0) == nil)
	return s.http.Serve(s.bounded(l))
}

// Drain turns /readyz red, so that whoever sends work sends it elsewhere, and
// lets no reader wait for news.
func (s *Server) Drain() { s.drain.Do(func() { close(s.draining) }) }

// Shutdown takes no more connections and waits for requests under way, until ctx ends.
func (s *Server) Shutdown(ctx context.Context) error { return s.http.ShutdownWithContext(ctx) }

// handler stands before every route: the guard, and whoever falls.
func (s *Server) handler(next fasthttp.RequestHandler) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) {
		began := time.Now()
		defer func() {
			if p := recover(); p != nil {
				s.log.Error("a request made the gateway fail", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
				newProblem(http.StatusInternalServerError, "internal", "internal error", "this is our mistake; the log says more").write(ctx)
			}
			status := ctx.Response.StatusCode()
			level := slog.LevelDebug
			if status >= 500 {
				level = slog.LevelWarn
			}
			s.log.LogAttrs(ctx, level, "request", slog.String("method", string(ctx.Method())), slog.String("path", string(ctx.Path())),
				slog.Int("status", status), slog.Int64("us", time.Since(began).Microseconds()))
		}()
		if p, hangUp := s.guard(&ctx.Request.Header); p != nil {
			p.write(ctx)
			if hangUp {
				ctx.SetConnectionClose()
			}
			return
		}
		next(ctx)
	}
}

// malformed answers what fasthttp itself could not read.
func (s *Server) malformed(ctx *fasthttp.RequestCtx, err error) {
	var small *fasthttp.ErrSmallBuffer
	var net net.Error
	p := invalid(http.StatusBadRequest, "", "the request cannot be read")
	switch {
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		if p = s.early(&ctx.Request.Header); p == nil {
			p = invalid(http.StatusRequestEntityTooLarge, "", fmt.Sprintf("the body is over %d bytes", BodyBytesMax))
		}
	case errors.As(err, &small):
		p = invalid(http.StatusRequestHeaderFieldsTooLarge, "", fmt.Sprintf("the headers are over %d bytes", HeaderBytesMax))
	case errors.As(err, &net) && net.Timeout():
		p = invalid(http.StatusRequestTimeout, "", "the request did not come in time")
	}
	p.write(ctx)
	ctx.SetConnectionClose()
}

func ok(ctx *fasthttp.RequestCtx, status int, body []byte) {
	ctx.SetStatusCode(status)
	ctx.SetContentType("application/json")
	ctx.SetBody(body)
}

func okJSON(ctx *fasthttp.RequestCtx, status int, v any) {
	body, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		panic(err)
	}
	ok(ctx, status, body)
}

// failed answers what went wrong: a refusal, or something of our own.
func (s *Server) failed(ctx *fasthttp.RequestCtx, err error) {
	var r *actor.Refusal
	switch {
	case errors.As(err, &r):
		refusal(r).write(ctx)
	case errors.Is(err, context.DeadlineExceeded):
		refusal(actor.Refuse(actor.Deadline, "the node did not answer in time")).write(ctx)
	case errors.Is(err, engine.ErrClosed):
		refusal(&actor.Refusal{Reason: actor.Unavailable, RetryAfter: time.Second, Detail: "this node stops"}).write(ctx)
	default:
		s.log.Error("a request failed", "path", string(ctx.Path()), "error", err.Error())
		newProblem(http.StatusInternalServerError, "internal", "internal error", err.Error()).write(ctx)
	}
}

// param copies a part of the path: what the router gives is good only inside the request.
func param(ctx *fasthttp.RequestCtx, name string) string {
	text, _ := ctx.UserValue(name).(string)
	return strings.Clone(text)
}

func header(ctx *fasthttp.RequestCtx, name string) string {
	return string(ctx.Request.Header.Peek(name))
}

// number reads a number of the query; absent is the default, more than most is most.
func number(ctx *fasthttp.RequestCtx, name string, or, most uint64) (uint64, *problem) {
	if !ctx.QueryArgs().Has(name) {
		return or, nil
	}
	n, err := strconv.ParseUint(string(ctx.QueryArgs().Peek(name)), 10, 63)
	if err != nil {
		return 0, invalid(http.StatusBadRequest, name, name+": want a number from 0 on")
	}
	return min(n, most), nil
}

func runID(ctx *fasthttp.RequestCtx) (actor.CallID, *problem) {
	id, err := actor.ParseCallID(param(ctx, "id"))
	if err != nil {
		return id, invalid(http.StatusBadRequest, "id", err.Error())
	}
	return id, nil
}

// message brings a message to an agent and waits for the answer.
func (s *Server) message(ctx *fasthttp.RequestCtx) {
	var in struct {
		Content *string `json:"content"`
		Session string  `json:"session"`
		Timeout int64   `json:"timeout_ms"`
	}
	p := decode(ctx, &in)
	to := actor.NewID(param(ctx, "id"), in.Session)
	switch {
	case p != nil:
	case in.Content == nil:
		p = invalid(http.StatusBadRequest, "content", "content: is missing")
	case in.Timeout < 0 || in.Timeout > int64(24*time.Hour/time.Millisecond):
		p = invalid(http.StatusBadRequest, "timeout_ms", "timeout_ms: want 1 to 86400000, or nothing")
	case actor.CheckName(to.Key) != nil:
		p = invalid(http.StatusBadRequest, "session", "session "+actor.CheckName(to.Key).Error())
	case actor.CheckName(to.Agent) != nil:
		p = invalid(http.StatusBadRequest, "id", "agent "+actor.CheckName(to.Agent).Error())
	}
	if p != nil {
		p.write(ctx)
		return
	}
	call := actor.Call{ID: s.node.NewCallID(), To: to, Left: time.Duration(in.Timeout) * time.Millisecond, Principal: who(ctx).Principal,
		Trace: traceparent(ctx), Parts: actor.Text(*in.Content)}
	if call.Idempotency, p = idempotency(ctx, "POST /v1/agents/{id}/messages"); p != nil {
		p.write(ctx)
		return
	}
	within, cancel := context.WithTimeout(context.Background(), AnswerWithin)
	defer cancel()
	answer, err := s.node.Ask(within, call)
	run := answer.Reply.Run
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		if _, err := s.owner(call.ID); err != nil {
			// A repeat of a run under way is no run itself; nor is what nobody took up yet.
			refusal(&actor.Refusal{Reason: actor.Unavailable, RetryAfter: 10 * time.Second,
				Detail: "no answer within two minutes: ask again, with the same Idempotency-Key"}).write(ctx)
			return
		}
		s.accepted(ctx, call.ID)
	case err != nil:
		s.failed(ctx, err)
	case answer.HeldUntil != 0:
		s.accepted(ctx, run)
	case answer.Reply.Refusal != nil:
		p := refusal(answer.Reply.Refusal)
		if _, err := s.owner(run); err == nil { // else it was refused before it became a run
			p.Run = run.String()
		}
		p.write(ctx)
	default:
		okJSON(ctx, http.StatusOK, struct {
			Run      string   `json:"run_id"`
			Agent    string   `json:"agent_id"`
			Session  string   `json:"session_id"`
			Status   string   `json:"status"`
			Content  string   `json:"content"`
			Warnings []string `json:"warnings,omitempty"`
		}{run.String(), to.Agent, to.Key, answer.Reply.Status.String(), content(answer.Reply.Parts), answer.Reply.Warnings})
	}
}

// content is what an answer says, as far as it is text.
func content(parts []actor.Part) string {
	var b strings.Builder
	for _, p := range parts {
		if p.Blob.IsZero() && (p.Media == actor.MediaText || p.Media == actor.MediaJSON) {
			b.Write(p.Bytes)
		}
	}
	return strings.ToValidUTF8(b.String(), "\uFFFD")
}

// accepted says that a run goes on by itself, and how to hear of it; if it waits
// for a signal, which one.
func (s *Server) accepted(ctx *fasthttp.RequestCtx, run actor.CallID) {
	type signal struct {
		Run    string `json:"run_id"`
		Name   string `json:"name"`
		Until  string `json:"until"`
		Method string `json:"method"`
		Path   string `json:"path"`
		Body   string `json:"body"`
	}
	out := struct {
		Run    string  `json:"run_id"`
		Status string  `json:"status"`
		Detail string  `json:"detail"`
		Path   string  `json:"path"`
		Signal *signal `json:"signal,omitzero"`
	}{Run: run.String(), Status: runs.Running.String(), Detail: "the run goes on; look at it there", Path: "/v1/runs/" + run.String()}
	within, cancel := context.WithTimeout(context.Background(), readWithin)
	defer cancel()
	err := s.node.Read(within, func(kv store.KV) error {
		v := View{kv}
		record, err := v.Record(run)
		if err == nil {
			out.Status = record.Status.String()
			waits, name, until, found, e := v.Waiting(run)
			if err = e; found {
				out.Detail = fmt.Sprintf("the run waits for the signal %s", name)
				body, _ := json.Marshal(map[string]string{"name": name})
				out.Signal = &signal{waits.String(), name, runs.FormatTime(until), "POST", "/v1/runs/" + waits.String() + ":signal", string(body)}
			}
		}
		return err
	})
	var r *actor.Refusal
	if err != nil && !errors.As(err, &r) { // a run that is still on its way in is not found yet
		s.failed(ctx, err)
		return
	}
	ctx.Response.Header.Set(fasthttp.HeaderLocation, out.Path)
	okJSON(ctx, http.StatusAccepted, out)
}

// idempotency reads the key with which a client may ask again.
func idempotency(ctx *fasthttp.RequestCtx, route string) (actor.Idempotency, *problem) {
	if len(ctx.Request.Header.PeekAll(idempotencyKey)) == 0 {
		return actor.Idempotency{}, nil
	}
	key := header(ctx, idempotencyKey)
	if len(ctx.Request.Header.PeekAll(idempotencyKey)) > 1 || key == "" || len(key) > keyBytesMax {
		return actor.Idempotency{}, invalid(http.StatusBadRequest, idempotencyKey, fmt.Sprintf("%s: want one, of 1 to %d characters", idempotencyKey, keyBytesMax))
	}
	for _, c := range []byte(key) {
		if c < ' ' || c > '~' {
			return actor.Idempotency{}, invalid(http.StatusBadRequest, idempotencyKey, idempotencyKey+": want printable ASCII")
		}
	}
	return actor.Idempotency{Principal: who(ctx).Principal, Route: route, Key: key, Body: actor.HashOf(ctx.PostBody())}, nil
}

// traceparent passes on a W3C trace context that is well formed; another one is as if there were none.
func traceparent(ctx *fasthttp.RequestCtx) string {
	all := ctx.Request.Header.PeekAll("traceparent")
	if len(all) != 1 || len(all[0]) != 55 {
		return ""
	}
	t := string(all[0])
	for i, c := range []byte(t) {
		dash := i == 2 || i == 35 || i == 52
		if dash != (c == '-') || !dash && !('0' <= c && c <= '9' || 'a' <= c && c <= 'f') {
			return ""
		}
	}
	if t[:2] == "ff" || strings.Trim(t[3:35], "0") == "" || strings.Trim(t[36:52], "0") == "" {
		return ""
	}
	return t
}

func (s *Server) agents(ctx *fasthttp.RequestCtx) {
	type agent struct {
		ID         string `json:"agent_id"`
		Doc        string `json:"doc"`
		Definition string `json:"definition"`
	}
	out := struct {
		Agents []agent `json:"agents"`
	}{Agents: []agent{}}
	for _, d := range s.node.Agents() {
		out.Agents = append(out.Agents, agent{d.Name, d.Doc, d.Hash.String()})
	}
	okJSON(ctx, http.StatusOK, out)
}

// show answers with what a read finds, once it is durable.
func (s *Server) show(ctx *fasthttp.RequestCtx, read func(View) ([]byte, error)) {
	within, cancel := context.WithTimeout(context.Background(), readWithin)
	defer cancel()
	var body []byte
	err := s.node.Read(within, func(kv store.KV) (err error) {
		body, err = read(View{kv})
		return err
	})
	if err != nil {
		s.failed(ctx, err)
		return
	}
	ok(ctx, http.StatusOK, body)
}

func (s *Server) runs(ctx *fasthttp.RequestCtx) {
	limit, p := number(ctx, "limit", RunsDefault, RunsMax)
	if p != nil {
		p.write(ctx)
		return
	}
	s.show(ctx, func(v View) ([]byte, error) { return v.Runs(int(limit)) })
}

func (s *Server) run(ctx *fasthttp.RequestCtx) {
	id, p := runID(ctx)
	if p != nil {
		p.write(ctx)
		return
	}
	s.show(ctx, func(v View) ([]byte, error) { return v.Run(id) })
}

// events shows a run's events behind the one numbered after; if there are none
// yet, it waits for one as long as the client wishes.
func (s *Server) events(ctx *fasthttp.RequestCtx) {
	id, p := runID(ctx)
	if p != nil {
		p.write(ctx)
		return
	}
	var of [3]uint64
	for i, q := range []struct {
		name     string
		or, most uint64
	}{{"after", 0, 1 << 62}, {"limit", EventsDefault, EventsMax}, {"wait_ms", 0, uint64(newsWithinMax / time.Millisecond)}} {
		if of[i], p = number(ctx, q.name, q.or, q.most); p != nil {
			p.write(ctx)
			return
		}
	}
	news, stop := s.node.Watch(id)
	defer stop()
	patience := time.NewTimer(time.Duration(of[2]) * time.Millisecond)
	defer patience.Stop()
	for last := of[2] == 0; ; {
		count := 0
		within, cancel := context.WithTimeout(context.Background(), readWithin)
		var body []byte
		err := s.node.Read(within, func(kv store.KV) (err error) {
			body, count, err = View{kv}.Events(id, of[0], int(of[1]))
			return err
		})
		cancel()
		if err != nil {
			s.failed(ctx, err)
			return
		}
		if count > 0 || last {
			ok(ctx, http.StatusOK, body)
			return
		}
		select {
		case <-news:
		case <-patience.C:
			last = true
		case <-s.draining:
			last = true
		}
	}
}

// signal answers a run that waits.
func (s *Server) signal(ctx *fasthttp.RequestCtx) {
	id, p := runID(ctx)
	var in struct {
		Name    string         `json:"name"`
		Payload jsontext.Value `json:"payload"`
	}
	if p == nil {
		p = decode(ctx, &in)
	}
	if p == nil && actor.CheckName(in.Name) != nil {
		p = invalid(http.StatusBadRequest, "name", "name "+actor.CheckName(in.Name).Error())
	}
	var promise actor.Idempotency
	if p == nil {
		promise, p = idempotency(ctx, "POST /v1/runs/{id}:signal")
	}
	if p != nil {
		p.write(ctx)
		return
	}
	owner, err := s.owner(id)
	if err != nil {
		s.failed(ctx, err)
		return
	}
	within, cancel := context.WithTimeout(context.Background(), signalWithin)
	defer cancel()
	answer, err := s.node.Ask(within, actor.Call{ID: s.node.NewCallID(), To: owner.Actor, Kind: actor.Signal, Parent: id, Operation: in.Name,
		Left: signalWithin, Principal: who(ctx).Principal, Trace: traceparent(ctx), Idempotency: promise, Parts: payload(in.Payload)})
	switch {
	case err != nil:
		s.failed(ctx, err)
	case answer.Reply.Refusal != nil:
		p := refusal(answer.Reply.Refusal)
		p.Run = id.String()
		p.write(ctx)
	default:
		okJSON(ctx, http.StatusOK, struct {
			Run    string `json:"run_id"`
			Name   string `json:"name"`
			Status string `json:"status"`
		}{id.String(), in.Name, "received"})
	}
}

// owner is whose run it is.
func (s *Server) owner(run actor.CallID) (owner store.RunOwner, err error) {
	within, cancel := context.WithTimeout(context.Background(), readWithin)
	defer cancel()
	err = s.node.Read(within, func(kv store.KV) (err error) {
		owner, err = View{kv}.Owner(run)
		return err
	})
	return owner, err
}

// payload is what comes with a signal: a string as text, anything else as the JSON it is.
func payload(v jsontext.Value) []actor.Part {
	var text string
	switch {
	case len(v) == 0 || v.Kind() == 'n':
		return nil
	case v.Kind() == '"' && json.Unmarshal(v, &text) == nil:
		return actor.Text(text)
	default:
		return []actor.Part{{Media: actor.MediaJSON, Bytes: v.Clone()}}
	}
}

func (s *Server) ready(ctx *fasthttp.RequestCtx) {
	err := s.node.Ready()
	select {
	case <-s.draining:
		err = errors.New("this node is about to stop")
	default:
	}
	if err != nil {
		refusal(&actor.Refusal{Reason: actor.Unavailable, RetryAfter: time.Second, Detail: err.Error()}).write(ctx)
		return
	}
	ok(ctx, http.StatusOK, []byte(`{"status":"ready"}`))
}
