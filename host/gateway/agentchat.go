// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"encoding/hex"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/client"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
)

const (
	agentChatRoute = "/v1/openai/chat/completions"

	sessionHeader     = "X-Session-Id"
	retryCountHeader  = "X-Stainless-Retry-Count" // of stock clients: how often they have sent the request before
	shouldRetryHeader = "X-Should-Retry"          // obeyed by the stock clients of the OpenAI API

	agentChatTimeout = 2 * time.Hour // ends the wait for an answer; its run continues
	agentChatSentMax = 4 << 20       // bytes of an answer whose conversation is kept
)

// agentModels are the routes of the OpenAI API in which each agent is a model.
type agentModels struct{ *Server }

// listModels answers with the agents that a client can send messages to.
func (s agentModels) listModels(ctx *fasthttp.RequestCtx) {
	all, err := s.agents(ctx)
	if err != nil {
		s.respondError(ctx, err)
		return
	}
	by, out := callerOf(ctx), modelList{Object: "list", Data: []modelView{}}
	for i := range all {
		if !all[i].System && by.finds(all[i].Name) {
			out.Data = append(out.Data, newModelView(all[i].Name))
		}
	}
	slices.SortFunc(out.Data, func(a, b modelView) int { return strings.Compare(a.ID, b.ID) })
	respondJSON(ctx, http.StatusOK, out)
}

func (s agentModels) getModel(ctx *fasthttp.RequestCtx) {
	agent, p := s.find(ctx, pathParam(ctx, "id"))
	if p != nil {
		p.write(ctx)
		return
	}
	respondJSON(ctx, http.StatusOK, newModelView(agent.Name))
}

// find is findAgent for clients to which an agent is a model.
func (s agentModels) find(ctx *fasthttp.RequestCtx, name string) (command.Agent, *problem) {
	agent, p := s.findAgent(ctx, name)
	if p != nil {
		if p.Field = "model"; p.Status == http.StatusNotFound {
			p = refusalProblem(actor.Refuse(actor.ModelNotFound, "no agent is named %s: GET /v1/openai/models lists those of this server", name))
			p.Status, p.Field = http.StatusNotFound, "model"
		}
	}
	return agent, p
}

// complete sends the last message of a conversation to an agent.
func (s agentModels) complete(ctx *fasthttp.RequestCtx) {
	c := &agentChat{agentAnswer: agentAnswer{server: s.Server, by: callerOf(ctx)}}
	c.keep = c.keepSession
	agent, p := c.parse(ctx)
	if p == nil && agent.Durability == actor.Volatile {
		c.askVolatile(ctx)
		return
	}
	release := func() {}
	if p == nil {
		free, r := s.streams.acquire(&c.by) // an answer in one piece takes as long as a stream
		if r != nil {
			p = refusalProblem(r)
		} else {
			release = free
			if p = c.continueSession(ctx); p != nil {
				c.forget()
			}
		}
	}
	if p == nil && c.attempt != nil {
		c.attempt.session = c.call.To.Key
		s.chats.remember(c.call.To.Tenant, c.attempt)
	}
	if p != nil {
		release()
		p.write(ctx)
		return
	}
	ctx.Request.ResetBody() // it may be large, and the answer far away
	b, refused := messageRoutes(s).begin(ctx, c.call)
	if b == nil {
		if refused {
			c.forget()
		}
		release()
		return
	}
	c.earlier = nil
	c.run, c.head = b.Run, ingress.NewChatHead(b.Run, time.Now().Unix(), c.model)
	c.answer(ctx, func() {
		b.Release()
		release()
	})
}

// agentChat is a request to an agent in the form of the OpenAI API.
type agentChat struct {
	agentAnswer
	model     string // name of the agent in the request
	call      actor.Call
	earlier   []ingress.ChatText // not in the session yet
	key       *ingress.ChatKey   // of the conversation up to the message; nil if its client names a session
	keyed     bool               // the client names an idempotency key
	continued *chatSession       // taken from the sessions of recent conversations
	attempt   *chatAttempt       // nil unless the client repeats requests by itself
	streams   bool
}

// parse decodes the request and finds its agent. The session of the call is that of a new
// conversation unless the client names one.
func (c *agentChat) parse(ctx *fasthttp.RequestCtx) (agent command.Agent, p *problem) {
	in, p := decodeBody(ctx, ingress.DecodeChat)
	if p != nil {
		return agent, p
	}
	if agent, p = (agentModels{c.server}).find(ctx, in.Agent); p != nil {
		return agent, p
	}
	c.model, c.streams, c.withUsage = in.Agent, in.Stream, in.StreamUsage
	c.call = actor.Call{To: c.by.ID(agent.Name, ""), Parts: actor.Text(in.Text)}
	keys := headers(ctx, ingress.IdempotencyKey)
	named, repeats := headers(ctx, sessionHeader), false
	c.keyed = len(keys) > 0
	if count := header(ctx, retryCountHeader); count != "" && !c.keyed {
		c.attempt = newChatAttempt(c.call.To.Agent, named, ctx.PostBody())
		if repeats = count != "0" && c.server.chats.recall(c.call.To.Tenant, c.attempt); !repeats {
			c.attempt.key = c.server.node.NewCallID().String()
		}
		keys = []string{c.attempt.key}
	}
	if p = fillKeyedContext(ctx, "POST "+agentChatRoute, keys, &c.call); p != nil {
		return agent, p
	}
	c.call.Claimed = claimedRun(&ctx.Request.Header)
	clientOf(c.server, &c.by).Address(&c.call, &agent, len(named) > 0)
	switch {
	case len(named) > 1:
		return agent, invalid(http.StatusBadRequest, sessionHeader, "the header "+sessionHeader+" is a duplicate")
	case len(named) == 1:
		session, r := ingress.CheckSession(named[0])
		if r != nil {
			return agent, invalid(http.StatusBadRequest, sessionHeader, sessionHeader+strings.TrimPrefix(r.Detail, "session_id"))
		}
		c.call.To.Key = session // which holds the messages before this one
		return agent, nil
	}
	if agent.OneSession || agent.Durability == actor.Volatile { // it has one conversation with all, or none
		return agent, nil
	}
	key := ingress.NewChatKey(c.call.To, in.Earlier)
	c.earlier, c.key = in.Earlier, &key
	if c.keyed && len(in.Earlier) > 0 { // the same key with other messages changes no session of the former ones
		of := c.call.Idempotency
		of.Route += " after " + hex.EncodeToString(key[:])
		c.call.To.Key = ingress.SessionOf(c.call.To, of, c.call.ID)
	}
	if repeats { // the session has the messages
		c.call.To.Key, c.earlier = c.attempt.session, nil
	}
	return agent, nil
}

// continueSession sets the session of the call to that of the conversation before its message. If
// none is known, it gives the messages before it to the new session.
func (c *agentChat) continueSession(ctx *fasthttp.RequestCtx) *problem {
	if len(c.earlier) == 0 {
		return nil
	}
	waitCtx := c.server.newClientContext(ctx, AnswerTimeout)
	p := c.moveEarlier(ctx, waitCtx)
	cause := waitCtx.cause()
	waitCtx.stop()
	if cause != nil {
		return refusalProblem(actor.RefuseUnavailable(time.Second, "the client has gone, or the messages could not be stored in time"))
	}
	return p
}

func (c *agentChat) moveEarlier(ctx *fasthttp.RequestCtx, waiting context.Context) *problem {
	if !c.keyed { // otherwise the session follows from the key
		if known, ok := c.server.chats.take(c.call.To.Tenant, *c.key); ok && c.isLast(waiting, &known) {
			c.call.To.Key, c.earlier, c.continued = known.name, nil, &known
			return nil
		}
	}
	for i, m := range c.earlier[max(len(c.earlier)-ingress.ChatEarlierMax, 0):] {
		r := client.Request{Trace: c.call.Trace}
		if c.keyed {
			r.Key = c.call.Idempotency
			r.Key.Route += " " + strconv.Itoa(i)
		}
		if _, err := clientOf(c.server, &c.by).Append(waiting, c.call.To, client.Message{Role: m.Role, Text: m.Text, FromUser: true}, &r); err != nil {
			return c.server.errorProblem(ctx, err)
		}
	}
	return nil
}

// isLast reports whether the conversation of a session ends with the answer that was remembered. It
// does not if the session was deleted, or has further messages that the client has not sent.
func (c *agentChat) isLast(ctx context.Context, known *chatSession) bool {
	found, err := command.Find(ctx, nodeOf(c.server, &c.by), c.by.Principal, command.MessagesQuery{Session: known.name, Agent: c.call.To.Agent, Limit: 1})
	return err == nil && len(found.All) == 1 && found.All[0].Call == known.run && len(found.Open) == 0
}

// forget undoes continueSession for a message that has no run: a session that was known is known
// again, and a new one is deleted unless a repeat with its key will use it.
func (c *agentChat) forget() {
	switch {
	case c.continued != nil:
		c.server.chats.put(c.call.To.Tenant, *c.key, *c.continued)
	case len(c.earlier) > 0 && !c.keyed:
		if c.attempt != nil {
			c.server.chats.forget(c.call.To.Tenant, c.attempt)
		}
		waiting, cancel := context.WithTimeout(context.Background(), signalTimeout)
		defer cancel()
		var r *actor.Refusal
		if err := nodeOf(c.server, &c.by).Forget(waiting, command.Forget{By: c.by.Principal, Session: c.call.To.Key}); err != nil && !errors.As(err, &r) {
			c.server.log.Warn("cannot delete the session of a refused message", "session", c.call.To.Key, "error", err.Error())
		}
	}
}

// askVolatile answers for an agent whose runs have no events: in one piece, also in a stream.
func (c *agentChat) askVolatile(ctx *fasthttp.RequestCtx) {
	waitCtx := c.server.newClientContext(ctx, AnswerTimeout)
	answer, err := clientOf(c.server, &c.by).Send(waitCtx, c.call, nil)
	cause := waitCtx.cause()
	waitCtx.stop()
	switch r := answer.Reply.Refusal; {
	case respondAborted(ctx, cause):
		return
	case err != nil:
		c.server.respondError(ctx, err)
		return
	case r != nil:
		refusalProblem(r).write(ctx)
		return
	}
	reply := &answer.Reply
	c.head = ingress.NewChatHead(reply.Run, time.Now().Unix(), c.model)
	text, finish := string(replyText(reply.Parts)), ingress.ChatFinish(reply.Status)
	if !c.streams {
		respond(ctx, http.StatusOK, c.head.Completion(text, finish, reply.Tree))
		return
	}
	c.record.Tree = reply.Tree
	respond(ctx, http.StatusOK, append(c.head.Chunk(ingress.ChatChunk{Role: "assistant", Text: text}, c.withUsage), c.lastFrames(finish)...))
	ctx.SetContentType(ingress.EventStream + "; charset=utf-8")
}

// answer waits for the end of the run, or streams the text until then. The function done ends the
// wait; the run continues.
func (c *agentChat) answer(ctx *fasthttp.RequestCtx, done func()) {
	ends := c.server.draining
	if c.streams {
		ends = c.server.stopping
	}
	watch := clientOf(c.server, &c.by).Watch(ends)
	err := watch.Follow(client.Subject{Run: c.run})
	if err != nil {
		done()
		c.server.respondError(ctx, err)
		return
	}
	end := sync.OnceFunc(func() {
		watch.Close()
		done()
	})
	if c.streams {
		c.coding = transferCoding(ctx.Request.Header.IsHTTP11())
		more := runHeader + ": " + c.run.String() + "\r\n" + c.coding.header()
		if c.call.To.Key != actor.DefaultKey {
			more += sessionHeader + ": " + c.call.To.Key + "\r\n"
		}
		openEventStream(c.server, ctx, more, end, func(e eventStream, head []byte) { c.stream(e, head, watch) })
		return
	}
	defer end()
	waitCtx := c.server.newClientContext(ctx, agentChatTimeout)
	err = c.wait(waitCtx, watch)
	cause := waitCtx.cause()
	waitCtx.stop()
	ctx.Response.Header.Set(runHeader, c.run.String())
	if c.call.To.Key != actor.DefaultKey { // otherwise no session: see CheckSession
		ctx.Response.Header.Set(sessionHeader, c.call.To.Key)
	}
	ctx.Response.Header.Set(shouldRetryHeader, "false") // a repeat would be another run
	switch {
	case respondAborted(ctx, cause):
	case cause != nil:
		c.continues("the run takes longer than this request may wait").write(ctx)
	case err != nil:
		c.problemOf(err).write(ctx)
	case c.end.Type != runs.RunDone:
		c.failure().write(ctx)
	default:
		c.keep(c.end.Text)
		respond(ctx, http.StatusOK, c.head.Completion(c.end.Text, ingress.ChatFinish(c.end.Status), c.record.Tree))
	}
}

// keepSession remembers the session for the request that continues the conversation.
func (c *agentChat) keepSession(answer string) {
	if c.key == nil || answer == "" || len(answer) > agentChatSentMax {
		return
	}
	text := string(c.call.Parts[0].Bytes)
	key := c.key.With(ingress.ChatText{Role: actor.RoleUser, Text: text}).With(ingress.ChatText{Role: actor.RoleAssistant, Text: answer})
	c.server.chats.put(c.call.To.Tenant, key, chatSession{c.call.To.Key, c.run})
}
