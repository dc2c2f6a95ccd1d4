// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"cmp"
	"context"
	"errors"
	"github.com/troupe-run/troupe/internal/client"

	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
)

const (
	// completionTimeout ends the wait for a part of an answer. The node ends requests earlier.
	completionTimeout = 2 * time.Hour

	requestIDHeader = "X-Request-Id"
)

// completion is one request to a model while its answer is passed on.
type completion struct {
	server  *Server
	by      caller
	id      actor.CallID // of the chat at the node
	request ingress.ModelRequest
	call    string // ID of the request in its run; empty if it has none
	began   time.Time
	probed  time.Time // last check that the run is open
	ended   bool
	runEnd  <-chan struct{} // closed when the run of a recorded request has ended; else nil
	unwatch func()          // ends the wait for that; nil if there is none
	coding  transferCoding
}

// complete passes a request on to a model.
func (s openAIRoutes) complete(ctx *fasthttp.RequestCtx) {
	c := &completion{server: s.Server, began: time.Now(), probed: time.Now()}
	p := c.bind(ctx)
	free, r := s.streams.acquire(&c.by)
	release := free
	if n := int64(len(ctx.PostBody())); r == nil && p == nil && n > bodyFree { // the body is kept until the end, longer than that of other requests
		key := c.by.shareKey()
		if s.bodies.Take(key, n, c.by.isAdmin()) != actor.NoScope {
			p = refusalProblem(actor.RefuseBusy(actor.ScopeCaller, time.Second, "the requests to models under way from you take %d MiB, which is the limit: wait for their answers", bodiesEach>>20))
		} else {
			release = sync.OnceFunc(func() {
				s.bodies.Give(key, n)
				free()
			})
		}
	}
	switch {
	case p != nil:
	case r != nil:
		p = refusalProblem(r)
	default:
		if p = c.begin(ctx); p == nil {
			c.answer(ctx, release)
			return
		}
	}
	if r == nil {
		release()
	}
	p.write(ctx)
}

// bind finds the run that the request belongs to: that of its token, the one that it names, or the only one on
// which agents of its caller work.
func (c *completion) bind(ctx *fasthttp.RequestCtx) *problem {
	from := callerOf(ctx)
	by, err := onlyRun(c.server, &from)
	if c.by = *by; err != nil {
		return c.server.errorProblem(ctx, err)
	}
	if c.request.ID = header(ctx, requestIDHeader); c.request.ID == "" || len(c.request.ID) > actor.NameBytesMax || !isPrintable(c.request.ID) {
		c.request.ID = "req_" + c.server.node.NewCallID().String()
	}
	ctx.Response.Header.Set(requestIDHeader, c.request.ID)
	if named := headers(ctx, runHeader); !c.by.Run.IsZero() && len(named) > 0 && named[0] != c.by.Run.String() {
		p := newProblem(http.StatusForbidden, "forbidden_run", "forbidden run", runHeader+": differs from the run of the token")
		p.Field = runHeader
		return p
	}
	if c.request.Run, c.request.Actor = c.by.Run, c.by.Actor; !c.by.Run.IsZero() {
		ctx.Response.Header.Set(runHeader, c.by.Run.String())
	}
	return nil
}

func isPrintable(text string) bool {
	return !strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c > '~' })
}

// begin checks the request and records it in its run.
func (c *completion) begin(ctx *fasthttp.RequestCtx) *problem {
	if !c.by.Run.IsZero() {
		if p := (toolCallRoutes{c.server}).checkRecorded(ctx, c.by); p != nil {
			return p
		}
	}
	a := command.StartChat{Body: append([]byte(nil), ctx.PostBody()...), Trace: ingress.Trace(headers(ctx, "traceparent"), headers(ctx, "tracestate")), Share: c.by.Tenant, Agent: c.by.Actor.Agent, Run: c.by.Run, Owner: c.by.Actor}
	starting, cancelStart := context.WithTimeout(context.Background(), readTimeout)
	defer cancelStart()
	chat, err := command.Perform(starting, nodeOf(c.server, &c.by), c.by.Principal, a)
	if err != nil {
		p := c.server.errorProblem(ctx, err)
		if p.Code == actor.ModelNotFound.Info().Type {
			p.setUnknownModel()
		}
		return p
	}
	c.id, c.request.Model, c.request.PromptTokens, c.request.AnswerTokens = chat.ID, chat.Model, chat.PromptTokens, chat.AnswerTokens
	if c.by.Run.IsZero() {
		return nil
	}
	waiting, cancelAdd := context.WithTimeout(context.Background(), client.Timeout)
	defer cancelAdd()
	c.call, err = clientOf(c.server, &c.by).AddModel(waiting, &c.request)
	if err != nil {
		c.cancel()
		return c.server.errorProblem(ctx, err)
	}
	watching, cancel := context.WithCancel(context.Background())
	c.runEnd, c.unwatch = watchRunEnd(watching, c.server, c.by, c.request.Run), cancel
	return nil
}

// record records an outcome in the run of the request.
func (c *completion) record(completion []byte, refusal *actor.Refusal, id string) error {
	waiting, cancel := context.WithTimeout(context.Background(), client.Timeout)
	defer cancel()
	return clientOf(c.server, &c.by).EndModel(waiting, &c.request, id, completion, refusal)
}

// next returns the next part of the answer, empty after command.ChatBeat.
func (c *completion) next(ctx context.Context) (command.ChatPart, error) {
	return command.Perform(ctx, c.server.node, c.by.Principal, command.ReadChat{Chat: c.id})
}

// cancel ends the request at the model, unless it has ended.
func (c *completion) cancel() {
	waiting, cancel := context.WithTimeout(context.Background(), signalTimeout)
	defer cancel()
	_, _ = command.Perform(waiting, c.server.node, c.by.Principal, command.CancelChat{Chat: c.id})
}

// end records the outcome once. The caller reads the end of the answer afterwards.
func (c *completion) end(last *command.ChatPart) {
	if c.ended {
		return
	}
	c.ended = true
	if c.unwatch != nil {
		c.unwatch()
	}
	if c.call != "" {
		var r *actor.Refusal
		err := c.record(last.Completion, last.Refusal, c.call)
		if err != nil && (!errors.As(err, &r) || r.Reason != actor.NotFound) { // the run may have ended
			c.server.log.Warn("cannot record the end of a model request", "run", c.request.Run.String(), "request", c.request.ID, "error", err.Error())
		}
		return
	}
	code, log := "ok", c.server.log
	if last.Refusal != nil {
		code, log = last.Refusal.Reason.Info().Type, log.With("detail", last.Refusal.Detail)
	}
	if last.Tokens > 0 {
		log = log.With("tokens", last.Tokens)
	}
	log.Info("model request", "request", c.request.ID, "user", c.by.User, "model", c.request.Model, "code", code, "ms", time.Since(c.began).Milliseconds())
}

// runEnded reports whether the run of a recorded request has ended. It asks the run at most once
// in command.ChatBeat, for an outcome of no request.
func (c *completion) runEnded() bool {
	if c.call == "" || time.Since(c.probed) < command.ChatBeat {
		return false
	}
	c.probed = time.Now()
	var r *actor.Refusal
	err := c.record(nil, actor.Refuse(actor.Stopped, "probe"), "")
	return errors.As(err, &r) && r.IsNotFound(actor.WhatOpenRun)
}

// interrupted cancels the request because its run has ended, or else because the server stops.
func (c *completion) interrupted(runEnded bool) *problem {
	if runEnded {
		c.abandon("the run has ended")
		return refusalProblem(actor.RefuseNotFound(actor.WhatOpenRun, "run %s has ended, and its request to the model with it", c.request.Run))
	}
	c.abandon("the server is stopping")
	return refusalProblem(actor.RefuseUnavailable(time.Second, "this server is stopping: retry the request"))
}

// abandon cancels the request because its client has gone.
func (c *completion) abandon(why string) {
	c.cancel()
	c.end(&command.ChatPart{Refusal: actor.Refuse(actor.Stopped, "%s", why)})
}

// answer answers the request: at once if the answer is one value or the request has failed,
// and with a stream of events otherwise.
func (c *completion) answer(ctx *fasthttp.RequestCtx, release func()) {
	waitCtx := c.server.newClientContext(ctx, completionTimeout)
	answered := make(chan struct{})
	if c.runEnd != nil {
		go func() {
			select {
			case <-c.runEnd:
				c.cancel() // ends the wait for a part
			case <-answered:
			}
		}()
	}
	part, err := c.next(waitCtx)
	stopping, runEnded := false, false
	for err == nil && !part.Last && len(part.Bytes) == 0 && waitCtx.Err() == nil && !stopping && !runEnded {
		select {
		case <-c.server.draining:
			stopping = true
		default:
			if runEnded = c.runEnded(); !runEnded {
				part, err = c.next(waitCtx)
			}
		}
	}
	close(answered)
	cause := waitCtx.cause()
	waitCtx.stop()
	select {
	case <-c.runEnd:
		runEnded = true
	default:
	}
	if stopping || runEnded {
		defer release()
		c.interrupted(runEnded).write(ctx)
		return
	}
	if err == nil && !part.Last && cause == nil {
		c.stream(ctx, &part, release)
		return
	}
	defer release()
	switch {
	case cause != nil:
		c.abandon("the client has gone")
		if errors.Is(cause, errKeyRevoked) {
			unauthorized("the API key was revoked or has expired while the answer was pending").write(ctx)
		} else if !respondAborted(ctx, cause) {
			refusalProblem(actor.Refuse(actor.Deadline, "the model did not answer in time")).write(ctx)
		}
	case err != nil:
		c.abandon("the server has lost the request")
		c.server.respondError(ctx, err)
	default:
		c.end(&part)
		if part.Refusal != nil {
			completionProblem(&part).write(ctx)
			return
		}
		respond(ctx, http.StatusOK, part.Bytes)
		if part.Streams {
			ctx.SetContentType(ingress.EventStream + "; charset=utf-8")
		}
	}
}

// completionProblem returns the problem of a request that a model did not answer. A client
// acts on the status and the code of the model's own server, except for those about the key
// of this server.
func completionProblem(last *command.ChatPart) *problem {
	p := refusalProblem(last.Refusal)
	p.Detail = cmp.Or(last.Detail, p.Detail)
	p.openAI = last.Error
	if last.Refusal.Reason == actor.ModelNotFound && last.Status == 0 { // no server was asked
		p.setUnknownModel()
	}
	switch last.Status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity, http.StatusTooManyRequests:
		p.Status = int(last.Status)
		if last.Code != "" {
			p.Code = last.Code
		}
	}
	return p
}

// setUnknownModel makes p the problem of a request to a model that this server does not have.
func (p *problem) setUnknownModel() {
	p.Status, p.Field = http.StatusNotFound, "model"
	p.Detail += "; agents are models at the base URL that ends with /v1/openai"
}

// stream answers with a stream of events that ends when the answer ends or the client leaves.
// Clients of the OpenAI API take the end of a connection for the end of the answer. The stream
// is chunked, so that one cut short, as by a crash of the server, is an error to them.
func (c *completion) stream(ctx *fasthttp.RequestCtx, first *command.ChatPart, release func()) {
	more := requestIDHeader + ": " + c.request.ID + "\r\n"
	if !c.by.Run.IsZero() {
		more += runHeader + ": " + c.by.Run.String() + "\r\n"
	}
	c.coding = transferCoding(ctx.Request.Header.IsHTTP11())
	more += c.coding.header()
	openEventStream(c.server, ctx, more, release, func(e eventStream, head []byte) { c.serve(e, append(head, c.coding.part(first.Bytes)...)) })
}

// serve writes the parts of the answer. It reads the next one in the background, so that it
// notices at once when the client leaves.
func (c *completion) serve(e eventStream, out []byte) {
	gone, unwatch := watchPeer(e.conn)
	defer unwatch()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	type read struct {
		command.ChatPart
		err error
	}
	parts := make(chan read)
	go func() {
		for {
			part, err := c.next(ctx)
			select {
			case parts <- read{part, err}:
			case <-ctx.Done():
				return
			}
			if part.Last || err != nil {
				return
			}
		}
	}()
	check := time.NewTicker(keyCheckInterval)
	defer check.Stop()
	for {
		if len(out) > 0 && !e.write(out) {
			c.abandon("the client has gone")
			return
		}
		out = nil
		select {
		case part := <-parts:
			select {
			case <-c.runEnd: // the reason of what follows
				c.fail(e, c.interrupted(true))
				return
			default:
			}
			switch {
			case part.err != nil:
				c.abandon("the server has lost the request")
				c.fail(e, refusalProblem(actor.RefuseUnavailable(time.Second, "the server has lost the request: retry it")))
				return
			case part.Last:
				c.end(&part.ChatPart)
				if part.Refusal != nil {
					c.fail(e, completionProblem(&part.ChatPart))
					return
				}
				e.write(c.coding.last(part.Bytes))
				return
			case len(part.Bytes) == 0 && c.runEnded():
				c.fail(e, c.interrupted(true))
				return
			case len(part.Bytes) == 0:
				out = c.coding.part([]byte(openAIPing))
			default:
				if out = c.coding.part(part.Bytes); c.runEnded() {
					c.fail(e, c.interrupted(true))
					return
				}
			}
		case <-check.C:
			if c.by.Key != "" && !c.server.config.Keys.Valid(c.by.Key) {
				c.abandon("the key was revoked or has expired")
				c.fail(e, invalidKey())
				return
			}
		case <-c.runEnd:
			c.fail(e, c.interrupted(true))
			return
		case <-gone:
			c.abandon("the client has gone")
			return
		case <-c.server.stopping:
			c.fail(e, c.interrupted(false))
			return
		}
	}
}

// fail ends a stream with an error. No [DONE] follows, so the client does not take the answer
// for a complete one.
func (c *completion) fail(e eventStream, p *problem) {
	e.writeFinal(c.coding.last(runs.Frame{Data: string(p.appendOpenAI(nil))}.Append(nil)))
}
