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
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/client"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runs"
)

// postMessage sends a message to an agent. It answers with the complete result
// or, if the client prefers it, with a stream of the run's events. A message with a
// run token is a call on behalf of that run.
func (s *Server) postMessage(ctx *fasthttp.RequestCtx) {
	by := callerOf(ctx)
	if !by.Run.IsZero() {
		if ingress.WantsStream(header(ctx, fasthttp.HeaderAccept)) {
			invalid(http.StatusNotAcceptable, "accept", "a call on behalf of a run has one answer and no stream: omit Accept: "+ingress.EventStream+
				", and follow the calls at /v1/runs/"+by.Run.String()+"/events?tree=1").write(ctx)
			return
		}
		s.invoke(ctx)
		return
	}
	message, r := ingress.ClientMessage(by.Principal, pathParam(ctx, "id"), ctx.PostBody())
	call, p := message.Call, badRequest(r)
	if p == nil && message.User != nil {
		p = actFor(ctx, *message.User)
		by = callerOf(ctx)
		call.To.Tenant = by.Tenant
	}
	streams := ingress.WantsStream(header(ctx, fasthttp.HeaderAccept))
	var agent command.Agent
	if p == nil {
		agent, p = s.resolveAgent(ctx, &call, streams || prefersAsync(&ctx.Request.Header))
	}
	if p == nil {
		p = fillRequestContext(ctx, "POST /v1/agents/{id}/messages", &call)
	}
	if p != nil {
		p.write(ctx)
		return
	}
	device, p := deviceNamed(&ctx.Request.Header)
	if p != nil {
		p.write(ctx)
		return
	}
	c := clientOf(s, &by)
	c.Address(&call, &agent, message.Named)
	call.SetDevice(device)
	call.Claimed = claimedRun(&ctx.Request.Header)
	if streams {
		messageRoutes{s}.streamMessage(ctx, call)
		return
	}
	if prefersAsync(&ctx.Request.Header) {
		messageRoutes{s}.acceptMessage(ctx, call)
		return
	}
	waitCtx := s.newClientContext(ctx, AnswerTimeout)
	answer, err := c.Send(waitCtx, call, nil)
	cause := waitCtx.cause()
	waitCtx.stop()
	switch {
	case respondAborted(ctx, cause):
	case errors.Is(err, context.DeadlineExceeded):
		if _, err := s.runOwner(by, call.ID); err != nil {
			// The run does not exist: the message is a repeat of an open run, or
			// it is still waiting for admission.
			refusalProblem(noAnswerYet()).write(ctx)
			return
		}
		s.respondAccepted(ctx, call.To, call.ID)
	case err != nil:
		s.respondError(ctx, err)
	case answer.Reply.Refusal != nil && answer.Reply.Refusal.Reason == actor.Deadline:
		respondTimeout(s, ctx, answer.Reply.Run, answer.Reply.Refusal)
	default:
		s.respondAnswer(ctx, call.To, answer)
	}
}

// claimedRun returns the run that a client without a run token names in x-run-id, or
// zero. It is shown with the run of the message and has no other effect.
func claimedRun(head *fasthttp.RequestHeader) actor.CallID {
	var id actor.CallID
	if h := head.Peek(runHeader); len(h) > 0 {
		id, _ = actor.ParseCallID(string(h)) // other systems have such headers too
	}
	return id
}

func noAnswerYet() *actor.Refusal {
	return &actor.Refusal{Reason: actor.Unavailable, RetryAfter: 10 * time.Second,
		Detail: "no answer within two minutes: retry with the same Idempotency-Key"}
}

// resolveAgent finds the agent of a call. A volatile agent stores no events, so
// its runs cannot be streamed.
func (s *Server) resolveAgent(ctx *fasthttp.RequestCtx, call *actor.Call, streams bool) (command.Agent, *problem) {
	d, p := s.findAgent(ctx, call.To.Agent)
	call.To.Agent = d.Name
	if p == nil && streams && d.Durability == actor.Volatile {
		p = noEvents(d.Name)
	}
	return d, p
}

// noEvents returns the problem of a stream of an agent that stores no events.
func noEvents(agent string) *problem {
	return invalid(http.StatusNotAcceptable, "accept", agent+" has durability none, so its runs have no events to stream: omit Accept: "+ingress.EventStream+" and Prefer: "+respondAsync)
}

// respondAnswer sends the outcome of a call.
func (s *Server) respondAnswer(ctx *fasthttp.RequestCtx, to actor.ID, answer command.Answer) {
	run := answer.Reply.Run
	switch {
	case answer.HeldUntil != 0:
		s.respondAccepted(ctx, to, run)
	case answer.Reply.Refusal != nil:
		p := refusalProblem(answer.Reply.Refusal)
		if s.isVisibleRun(callerOf(ctx), run, answer) { // otherwise the call was refused before it became a run
			p.Run = run.String()
		}
		p.write(ctx)
	default:
		respondReply(ctx, to, &answer.Reply)
	}
}

// respondTimeout answers that the time of a message has passed, with what its run had produced.
func respondTimeout(s *Server, ctx *fasthttp.RequestCtx, run actor.CallID, r *actor.Refusal) {
	by, p := callerOf(ctx), refusalProblem(r)
	reading := s.newTimeout(readTimeout)
	defer reading.stop()
	if _, err := s.runOwner(by, run); err == nil { // otherwise the message was not accepted in time
		p.Run = run.String()
		if part, err := clientOf(s, &by).Partial(reading, run); err == nil && !part.IsZero() {
			p.Partial = &part
		}
	}
	p.write(ctx)
}

// isVisibleRun reports whether the answer belongs to a run that clients can
// read. An overload refusal is not durable: it belongs to no such run and MUST
// NOT wait for the disk here.
func (s *Server) isVisibleRun(by caller, run actor.CallID, answer command.Answer) bool {
	if !answer.Durable {
		return false
	}
	_, err := s.runOwner(by, run)
	return err == nil
}

// respondReply sends the reply of an agent.
func respondReply(ctx *fasthttp.RequestCtx, to actor.ID, reply *actor.Reply) {
	buf := bufferPool.Get().(*[]byte)
	defer bufferPool.Put(buf)
	b := append((*buf)[:0], `{"run_id":"`...)
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
	b = append(runs.AppendUsage(b, reply.Usage, reply.Tree), '}')
	id := b[len(`{"run_id":"`):]
	ctx.Response.Header.SetBytesV(runHeader, id[:bytes.IndexByte(id, '"')])
	respond(ctx, http.StatusOK, b)
	if *buf = b; cap(b) > pooledBufferMax {
		*buf = nil
	}
}

// bufferPool holds buffers for responses. The function respond copies the
// content of a buffer before the buffer is reused.
var bufferPool = sync.Pool{New: func() any { return new([]byte) }}

const pooledBufferMax = 64 << 10

// appendQuoted appends text as a JSON string.
func appendQuoted[T ~string | ~[]byte](b []byte, text T) []byte {
	return invariant.Must(jsontext.AppendQuote(b, text)) // it fails on invalid UTF-8 only
}

// messageRoutes answers messages before their runs end.
type messageRoutes struct{ *Server }

// begin sends a message and returns once the events of its run can be read. If the message has no
// run that clients can read, it answers the request and returns nil. The caller MUST release the
// result.
func (s messageRoutes) begin(ctx *fasthttp.RequestCtx, call actor.Call) (b *client.Begun, refused bool) {
	by := callerOf(ctx)
	waitCtx := s.newClientContext(ctx, AnswerTimeout)
	b, err := clientOf(s.Server, &by).Begin(waitCtx, call)
	cause := waitCtx.cause()
	waitCtx.stop()
	switch {
	case respondAborted(ctx, cause):
	case cause != nil:
		refusalProblem(noAnswerYet()).write(ctx)
	case err != nil:
		s.respondError(ctx, err)
	case !b.Visible:
		s.respondAnswer(ctx, call.To, *b.Answer)
		refused = b.Answer.Reply.Refusal != nil
	default:
		return b, false
	}
	if b != nil {
		b.Release()
	}
	return nil, refused
}

// streamMessage sends a message and streams the events of its run. A repeated
// message streams the run of the first message. Errors before the run exists
// are sent as problems.
func (s messageRoutes) streamMessage(ctx *fasthttp.RequestCtx, call actor.Call) {
	after, p := requestCursor(ctx)
	var release func()
	if p == nil {
		var r *actor.Refusal
		by := callerOf(ctx)
		if release, r = s.streams.acquire(&by); r != nil {
			p = refusalProblem(r)
		}
	}
	if p != nil {
		p.write(ctx)
		return
	}
	b, _ := s.begin(ctx, call)
	if b == nil {
		release()
		return
	}
	s.streamRun(ctx, b.Run, false, after, func() {
		b.Release()
		release()
	})
}

// Preferences of a request: RFC 7240.
const (
	preferHeader  = "Prefer"
	appliedHeader = "Preference-Applied"
	respondAsync  = "respond-async"
)

// prefersAsync reports whether a request prefers an answer before its run ends.
func prefersAsync(h *fasthttp.RequestHeader) bool {
	for _, value := range h.PeekAll(preferHeader) {
		for one := range strings.SplitSeq(string(value), ",") {
			name, _, _ := strings.Cut(one, ";")
			if strings.EqualFold(strings.TrimSpace(name), respondAsync) {
				return true
			}
		}
	}
	return false
}

// acceptMessage sends a message and answers as soon as its run is durable: with the path of
// the run, which continues. A message that is refused before has the same answer as without
// the preference.
func (s messageRoutes) acceptMessage(ctx *fasthttp.RequestCtx, call actor.Call) {
	b, _ := s.begin(ctx, call)
	if b == nil {
		return
	}
	defer b.Release()
	out := struct {
		Run      string `json:"run_id"`
		Agent    string `json:"agent_id"`
		Session  string `json:"session_id"`
		Status   string `json:"status"`
		Path     string `json:"path"`
		Repeated bool   `json:"repeated,omitzero"`
	}{b.Run.String(), call.To.Agent, call.To.Key, runs.Running.String(), "/v1/runs/" + b.Run.String(), b.Repeated}
	if b.Answer != nil {
		out.Status = runs.Done.String()
		if b.Answer.Reply.Refusal != nil {
			out.Status = runs.Failed.String()
		}
	}
	ctx.Response.Header.Set(appliedHeader, respondAsync)
	ctx.Response.Header.Set(runHeader, out.Run)
	ctx.Response.Header.Set(fasthttp.HeaderLocation, out.Path)
	respondJSON(ctx, http.StatusAccepted, out)
}

// replyText returns the text and JSON parts of a reply as one valid UTF-8 text.
// The result may alias a part.
func replyText(parts []actor.Part) []byte {
	var all []byte
	if len(parts) == 1 && parts[0].Blob.IsZero() && parts[0].Media == actor.MediaText {
		all = parts[0].Bytes
	} else {
		for _, p := range parts {
			if p.Readable() {
				all = append(all, p.Bytes...)
			}
		}
	}
	if utf8.Valid(all) {
		return all
	}
	return bytes.ToValidUTF8(all, []byte("\uFFFD"))
}

// respondAccepted answers that a run of an actor continues and where to follow it. If the run
// waits for a signal or for the approval of a tool call, the response describes it.
func (s *Server) respondAccepted(ctx *fasthttp.RequestCtx, to actor.ID, run actor.CallID) {
	type signal struct {
		Run    string `json:"run_id"`
		Name   string `json:"name"`
		Until  string `json:"until"`
		Method string `json:"method"`
		Path   string `json:"path"`
		Body   string `json:"body"`
	}
	out := struct {
		Run     string  `json:"run_id"`
		Agent   string  `json:"agent_id"`
		Session string  `json:"session_id"`
		Status  string  `json:"status"`
		Detail  string  `json:"detail"`
		Path    string  `json:"path"`
		Signal  *signal `json:"signal,omitzero"`

		Approvals []waitingApproval `json:"approvals,omitempty"`
	}{Run: run.String(), Agent: to.Agent, Session: to.Key, Status: runs.Running.String(), Detail: "the run continues: read it at path", Path: "/v1/runs/" + run.String()}
	w, err := lookup(s, callerOf(ctx), command.WaitingQuery{Run: run})
	var r *actor.Refusal
	switch {
	case errors.As(err, &r): // the run may not be durable yet
	case err != nil:
		s.respondError(ctx, err)
		return
	default:
		out.Status = w.Status.String()
	}
	if w.Found {
		out.Detail = fmt.Sprintf("the run waits for the signal %s", w.Name)
		body, _ := json.Marshal(map[string]string{"name": w.Name})
		out.Signal = &signal{w.Run.String(), w.Name, runs.FormatTime(w.Until), "POST", "/v1/runs/" + w.Run.String() + ":signal", string(body)}
	}
	if out.Status == runs.PausedWaitingApproval.String() {
		out.Approvals = approvalRoutes{s}.below(callerOf(ctx), run)
	}
	if len(out.Approvals) > 0 && !w.Found {
		about := "a call of "
		if out.Approvals[0].Kind == runs.KindBudget {
			about = "a larger budget for requests to "
		}
		out.Detail = "the run waits for a person to decide about " + about + out.Approvals[0].Tool + `: POST {"decision": "approve"} or {"decision": "reject"} to /v1/approvals/` + out.Approvals[0].ID + ":decide"
	}
	ctx.Response.Header.Set(runHeader, out.Run)
	ctx.Response.Header.Set(fasthttp.HeaderLocation, out.Path)
	respondJSON(ctx, http.StatusAccepted, out)
}
