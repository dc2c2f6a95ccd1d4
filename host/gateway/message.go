// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
)

// postMessage brings a message to an agent, and answers with what it says: at once
// and whole, or as it is said.
func (s *Server) postMessage(ctx *fasthttp.RequestCtx) {
	call, r := ingress.Message(pathParam(ctx, "id"), ctx.PostBody())
	p := badRequest(r)
	streams := ingress.WantsStream(header(ctx, fasthttp.HeaderAccept))
	if p == nil {
		p = s.resolveAgent(&call, streams)
	}
	if p == nil {
		p = fillRequestContext(ctx, "POST /v1/agents/{id}/messages", &call)
	}
	if p != nil {
		p.write(ctx)
		return
	}
	call.ID = s.node.NewCallID()
	if streams {
		s.streamMessage(ctx, call)
		return
	}
	within := s.newClientContext(ctx, AnswerTimeout)
	answer, err := s.node.Ask(within, call)
	why := within.cause()
	within.stop()
	switch {
	case respondAborted(ctx, why):
	case errors.Is(err, context.DeadlineExceeded):
		if _, err := s.runOwner(call.ID); err != nil {
			// A repeat of a run under way is no run itself; nor is what nobody took up yet.
			refusalProblem(noAnswerYet()).write(ctx)
			return
		}
		s.respondAccepted(ctx, call.ID)
	case err != nil:
		s.respondError(ctx, err)
	default:
		s.respondAnswer(ctx, call.To, answer)
	}
}

func noAnswerYet() *actor.Refusal {
	return &actor.Refusal{Reason: actor.Unavailable, RetryAfter: 10 * time.Second,
		Detail: "no answer within two minutes: ask again, with the same Idempotency-Key"}
}

// resolveAgent finds the agent that a call is for. What one has to tell that writes
// nothing down stands nowhere, so nobody can follow it.
func (s *Server) resolveAgent(call *actor.Call, streams bool) *problem {
	d, p := s.findAgent(call.To.Agent)
	call.To.Agent = d.Name
	if p == nil && streams && d.Durability == actor.Volatile {
		p = invalid(http.StatusNotAcceptable, "accept", d.Name+" has durability none: its runs have no events to stream; ask without Accept: "+ingress.EventStream)
	}
	return p
}

// respondAnswer tells a client what came of its call.
func (s *Server) respondAnswer(ctx *fasthttp.RequestCtx, to actor.ID, answer engine.Answer) {
	run := answer.Reply.Run
	switch {
	case answer.HeldUntil != 0:
		s.respondAccepted(ctx, run)
	case answer.Reply.Refusal != nil:
		p := refusalProblem(answer.Reply.Refusal)
		if s.isVisibleRun(run, answer) { // else it was refused before it became one
			p.Run = run.String()
		}
		p.write(ctx)
	default:
		respondReply(ctx, to, &answer.Reply)
	}
}

// isVisibleRun tells whether an answer is that of a run that can be looked at. What was
// refused because there is too much to do already must not wait for the disk.
func (s *Server) isVisibleRun(run actor.CallID, answer engine.Answer) bool {
	if !answer.Durable {
		return false
	}
	_, err := s.runOwner(run)
	return err == nil
}

// respondReply tells what an agent answered.
func respondReply(ctx *fasthttp.RequestCtx, to actor.ID, reply *actor.Reply) {
	room := bufferPool.Get().(*[]byte)
	defer bufferPool.Put(room)
	b := append((*room)[:0], `{"run_id":"`...)
	b = reply.Run.AppendTo(b)
	b = append(append(b, `","agent_id":"`...), to.Agent...) // names need no escapes
	b = append(append(b, `","session_id":"`...), to.Key...)
	b = append(append(b, `","status":"`...), reply.Status.String()...)
	b = appendQuoted(append(b, `","content":`...), replyText(reply.Parts))
	for i, w := range reply.Warnings {
		b = append(b, [...]string{`,"warnings":[`, ","}[min(i, 1)]...)
		b = appendQuoted(b, strings.ToValidUTF8(w, "\uFFFD"))
	}
	if len(reply.Warnings) > 0 {
		b = append(b, ']')
	}
	b = append(b, '}')
	respond(ctx, http.StatusOK, b)
	if *room = b; cap(b) > pooledBufferMax {
		*room = nil
	}
}

// bufferPool are rooms in which answers are written; ok copies them.
var bufferPool = sync.Pool{New: func() any { return new([]byte) }}

const pooledBufferMax = 64 << 10

// appendQuoted appends a text as JSON.
func appendQuoted[T ~string | ~[]byte](b []byte, text T) []byte {
	return invariant.Must(jsontext.AppendQuote(b, text)) // which fails on what is no UTF-8 alone
}

// streamMessage answers with the events of the run that the message becomes, or
// became when it came first. Before there is one, whatever is wrong is a problem.
func (s *Server) streamMessage(ctx *fasthttp.RequestCtx, call actor.Call) {
	at, p := requestCursor(ctx)
	if p == nil {
		if r := s.streams.acquire(); r != nil {
			p = refusalProblem(r)
		}
	}
	if p != nil {
		p.write(ctx)
		return
	}
	type outcome struct {
		answer engine.Answer
		err    error
	}
	news, deaf := s.node.Watch(call.ID)
	joined, came := make(chan actor.CallID, 1), make(chan outcome, 1)
	// It is asked for as long as somebody listens: a node that drains waits for it.
	asking, giveUp := context.WithCancel(context.Background())
	go func() {
		a, err := s.node.AskStream(asking, call, func(run actor.CallID) { joined <- run })
		came <- outcome{a, err}
	}()
	within := s.newClientContext(ctx, AnswerTimeout)
	run, begun := call.ID, true
	var o outcome
	select {
	case <-news:
	case run = <-joined:
	case o = <-came:
		if run = o.answer.Reply.Run; o.err == nil {
			begun = s.isVisibleRun(run, o.answer)
		}
	case <-within.Done():
	case <-s.stopping:
		o.err = engine.ErrClosed
	}
	why := within.cause()
	within.stop()
	deaf()
	switch {
	case respondAborted(ctx, why):
	case why != nil:
		refusalProblem(noAnswerYet()).write(ctx)
	case o.err != nil:
		s.respondError(ctx, o.err)
	case !begun:
		s.respondAnswer(ctx, call.To, o.answer)
	default:
		s.streamRun(ctx, run, false, at, giveUp)
		return
	}
	s.streams.release()
	giveUp()
}

// replyText is what an answer says, as far as it is text. It may be a part of the answer.
func replyText(parts []actor.Part) []byte {
	var all []byte
	if len(parts) == 1 && parts[0].Blob.IsZero() && parts[0].Media == actor.MediaText {
		all = parts[0].Bytes
	} else {
		for _, p := range parts {
			if p.Blob.IsZero() && (p.Media == actor.MediaText || p.Media == actor.MediaJSON) {
				all = append(all, p.Bytes...)
			}
		}
	}
	if utf8.Valid(all) {
		return all
	}
	return bytes.ToValidUTF8(all, []byte("\uFFFD"))
}

// respondAccepted says that a run goes on by itself, and how to hear of it; if it waits
// for a signal, which one.
func (s *Server) respondAccepted(ctx *fasthttp.RequestCtx, run actor.CallID) {
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
	err := s.readView(func(v View) error {
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
		s.respondError(ctx, err)
		return
	}
	ctx.Response.Header.Set(fasthttp.HeaderLocation, out.Path)
	respondJSON(ctx, http.StatusAccepted, out)
}
