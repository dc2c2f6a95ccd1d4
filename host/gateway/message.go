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

// message brings a message to an agent, and answers with what it says: at once
// and whole, or as it is said.
func (s *Server) message(ctx *fasthttp.RequestCtx) {
	call, r := ingress.Message(param(ctx, "id"), ctx.PostBody())
	p := bad(r)
	streams := ingress.WantsStream(header(ctx, fasthttp.HeaderAccept))
	if p == nil {
		p = s.addressed(&call, streams)
	}
	if p == nil {
		p = promised(ctx, "POST /v1/agents/{id}/messages", &call)
	}
	if p != nil {
		p.write(ctx)
		return
	}
	call.ID = s.node.NewCallID()
	if streams {
		s.messageStream(ctx, call)
		return
	}
	within := s.waiting(ctx, AnswerWithin)
	answer, err := s.node.Ask(within, call)
	why := within.cause()
	within.stop()
	switch {
	case left(ctx, why):
	case errors.Is(err, context.DeadlineExceeded):
		if _, err := s.owner(call.ID); err != nil {
			// A repeat of a run under way is no run itself; nor is what nobody took up yet.
			refusal(noAnswer()).write(ctx)
			return
		}
		s.accepted(ctx, call.ID)
	case err != nil:
		s.failed(ctx, err)
	default:
		s.answered(ctx, call.To, answer)
	}
}

func noAnswer() *actor.Refusal {
	return &actor.Refusal{Reason: actor.Unavailable, RetryAfter: 10 * time.Second,
		Detail: "no answer within two minutes: ask again, with the same Idempotency-Key"}
}

// addressed finds the agent that a call is for. What one has to tell that writes
// nothing down stands nowhere, so nobody can follow it.
func (s *Server) addressed(call *actor.Call, streams bool) *problem {
	d, p := s.find(call.To.Agent)
	call.To.Agent = d.Name
	if p == nil && streams && d.Durability == actor.Volatile {
		p = invalid(http.StatusNotAcceptable, "accept", d.Name+" has durability none: its runs have no events to stream; ask without Accept: "+ingress.EventStream)
	}
	return p
}

// answered tells a client what came of its call.
func (s *Server) answered(ctx *fasthttp.RequestCtx, to actor.ID, answer engine.Answer) {
	run := answer.Reply.Run
	switch {
	case answer.HeldUntil != 0:
		s.accepted(ctx, run)
	case answer.Reply.Refusal != nil:
		p := refusal(answer.Reply.Refusal)
		if s.isRun(run, answer) { // else it was refused before it became one
			p.Run = run.String()
		}
		p.write(ctx)
	default:
		said(ctx, to, &answer.Reply)
	}
}

// isRun tells whether an answer is that of a run that can be looked at. What was
// refused because there is too much to do already must not wait for the disk.
func (s *Server) isRun(run actor.CallID, answer engine.Answer) bool {
	if !answer.Durable {
		return false
	}
	_, err := s.owner(run)
	return err == nil
}

// said tells what an agent answered.
func said(ctx *fasthttp.RequestCtx, to actor.ID, reply *actor.Reply) {
	room := bodies.Get().(*[]byte)
	defer bodies.Put(room)
	b := append((*room)[:0], `{"run_id":"`...)
	b = reply.Run.AppendTo(b)
	b = append(append(b, `","agent_id":"`...), to.Agent...) // names need no escapes
	b = append(append(b, `","session_id":"`...), to.Key...)
	b = append(append(b, `","status":"`...), reply.Status.String()...)
	b = quote(append(b, `","content":`...), content(reply.Parts))
	for i, w := range reply.Warnings {
		b = append(b, [...]string{`,"warnings":[`, ","}[min(i, 1)]...)
		b = quote(b, strings.ToValidUTF8(w, "\uFFFD"))
	}
	if len(reply.Warnings) > 0 {
		b = append(b, ']')
	}
	b = append(b, '}')
	ok(ctx, http.StatusOK, b)
	if *room = b; cap(b) > bodyRoomMax {
		*room = nil
	}
}

// bodies are rooms in which answers are written; ok copies them.
var bodies = sync.Pool{New: func() any { return new([]byte) }}

const bodyRoomMax = 64 << 10

// quote appends a text as JSON.
func quote[T ~string | ~[]byte](b []byte, text T) []byte {
	return invariant.Must(jsontext.AppendQuote(b, text)) // which fails on what is no UTF-8 alone
}

// messageStream answers with the events of the run that the message becomes, or
// became when it came first. Before there is one, whatever is wrong is a problem.
func (s *Server) messageStream(ctx *fasthttp.RequestCtx, call actor.Call) {
	at, p := cursor(ctx)
	if p == nil {
		if r := s.streams.begin(); r != nil {
			p = refusal(r)
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
	within := s.waiting(ctx, AnswerWithin)
	run, begun := call.ID, true
	var o outcome
	select {
	case <-news:
	case run = <-joined:
	case o = <-came:
		if run = o.answer.Reply.Run; o.err == nil {
			begun = s.isRun(run, o.answer)
		}
	case <-within.Done():
	case <-s.stopping:
		o.err = engine.ErrClosed
	}
	why := within.cause()
	within.stop()
	deaf()
	switch {
	case left(ctx, why):
	case why != nil:
		refusal(noAnswer()).write(ctx)
	case o.err != nil:
		s.failed(ctx, o.err)
	case !begun:
		s.answered(ctx, call.To, o.answer)
	default:
		s.tell(ctx, run, false, at, giveUp)
		return
	}
	s.streams.end()
	giveUp()
}

// content is what an answer says, as far as it is text. It may be a part of the answer.
func content(parts []actor.Part) []byte {
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
	err := s.look(func(v View) error {
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
