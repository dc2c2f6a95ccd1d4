// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/contract"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/client"
	"github.com/troupe-run/troupe/internal/invariant"
)

// fulfilTimeout ends the wait for the response to a request of the contract. The run ends earlier, unless
// it waits for a person.
const fulfilTimeout = 2 * time.Hour

// capabilityRoutes are the routes of the contract between agents.
type capabilityRoutes struct{ server *Server }

// capabilityView is the JSON form of a capability.
type capabilityView struct {
	Code        string         `json:"capability_code"`
	Owners      []string       `json:"owner_agents"`
	Description string         `json:"description"`
	Version     string         `json:"version,omitzero"`
	Timeout     int64          `json:"timeout_ms"`
	UserText    string         `json:"user_text,omitzero"`
	Input       jsontext.Value `json:"input_schema,omitzero"`
	Output      jsontext.Value `json:"output_schema,omitzero"`
	Example     jsontext.Value `json:"example,omitzero"`
}

func newCapabilityView(c *contract.Listed) capabilityView {
	schema := func(text string) jsontext.Value {
		if text == "" {
			return nil
		}
		return jsontext.Value(text)
	}
	return capabilityView{c.Code, c.Owners, c.Description, c.Version, (&contract.Request{}).TimeoutFor(&c.Capability).Milliseconds(), c.UserText, schema(c.Input), schema(c.Output), jsontext.Value(c.Example)}
}

// list answers with the capabilities in order of their codes.
func (s capabilityRoutes) list(ctx *fasthttp.RequestCtx) {
	all, err := s.server.agents(ctx)
	if err != nil {
		s.server.respondError(ctx, err)
		return
	}
	by := callerOf(ctx)
	page, next, p := namesPage(ctx, ingress.CursorKey(s.server.config.Secret), "capabilities", clientOf(s.server, &by).Catalog(&s.server.capabilities, all).All(), func(c *contract.Listed) string { return c.Code })
	if p != nil {
		p.write(ctx)
		return
	}
	out := struct {
		All  []capabilityView `json:"capabilities"`
		Next string           `json:"next_cursor,omitzero"`
	}{All: []capabilityView{}, Next: next}
	for i := range page {
		out.All = append(out.All, newCapabilityView(&page[i]))
	}
	respondJSON(ctx, http.StatusOK, out)
}

func (s capabilityRoutes) get(ctx *fasthttp.RequestCtx) {
	all, err := s.server.agents(ctx)
	if err != nil {
		s.server.respondError(ctx, err)
		return
	}
	by := callerOf(ctx)
	code, catalog := pathParam(ctx, "id"), clientOf(s.server, &by).Catalog(&s.server.capabilities, all)
	if _, unknown := catalog.Find(code); unknown != nil {
		noCapability(unknown).write(ctx)
		return
	}
	for _, c := range catalog.All() {
		if c.Code == code {
			respondJSON(ctx, http.StatusOK, newCapabilityView(&c))
		}
	}
}

// put makes the agents of a row of the catalog its owners, all at once.
func (s capabilityRoutes) put(ctx *fasthttp.RequestCtx) {
	code := pathParam(ctx, "id")
	row, p := decodeBody(ctx, func(b []byte) (map[string]jsontext.Value, *actor.Refusal) {
		var in map[string]jsontext.Value
		r := ingress.Decode(b, &in)
		if named, ok := in[capabilityCode]; r == nil && ok && string(named) != strconv.Quote(code) {
			r = actor.Refuse(actor.Invalid, "%s: want %.80s, as in the path, or no value", capabilityCode, code)
			r.Field = capabilityCode
		}
		return in, r
	})
	if p != nil {
		p.write(ctx)
		return
	}
	row[capabilityCode] = invariant.Must(json.Marshal(code))
	putInRegistry(s.server, ctx, agents.OpPutCapability, invariant.Must(json.Marshal(row, json.Deterministic(true))))
}

// delete takes a capability from all of its owners.
func (s capabilityRoutes) delete(ctx *fasthttp.RequestCtx) {
	all, err := s.server.agents(ctx)
	if err != nil {
		s.server.respondError(ctx, err)
		return
	}
	by := callerOf(ctx)
	code, p := pathParam(ctx, "id"), requireEmptyBody(ctx)
	if _, unknown := clientOf(s.server, &by).Catalog(&s.server.capabilities, all).Find(code); p == nil && unknown != nil {
		p = noCapability(unknown)
	}
	if p != nil {
		p.write(ctx)
		return
	}
	body := invariant.Must(json.Marshal(map[string]string{capabilityCode: code}))
	if answer, stop := s.server.callRegistry(ctx, agents.OpDeleteCapability, body); !stop {
		respond(ctx, http.StatusOK, answer)
	}
}

const capabilityCode = "capability_code"

func noCapability(unknown *contract.Violation) *problem {
	return newProblem(http.StatusNotFound, "not_found", "no such capability", unknown.Rule+"; GET /v1/capabilities lists those of this server")
}

// schema answers with a JSON Schema of the contract.
func (s capabilityRoutes) schema(ctx *fasthttp.RequestCtx) {
	text := contract.Schema(pathParam(ctx, "id"))
	if text == "" {
		newProblem(http.StatusNotFound, "not_found", "no such schema", "this server has the schemas request, response and handoff").write(ctx)
		return
	}
	respond(ctx, http.StatusOK, []byte(text))
	ctx.SetContentType("application/schema+json")
}

// isEnvelope reports whether a request to :invoke is one of the contract.
func isEnvelope(ctx *fasthttp.RequestCtx) bool {
	return bytes.HasPrefix(ctx.Path(), agentsPath) && contract.IsRequest(ctx.PostBody())
}

// fulfil answers a request of the contract: with status 200 whenever its request_id can be read, also
// if it was refused. The body of the response is that of the contract.
func (s capabilityRoutes) fulfil(ctx *fasthttp.RequestCtx) {
	from := callerOf(ctx)
	in := client.Envelope{Addressed: pathParam(ctx, "id"), Run: from.Run, Actor: from.Actor}
	var broken *contract.Violation
	in.Request, broken = contract.DecodeRequest(bytes.Clone(ctx.PostBody()))
	if broken != nil && in.ID == "" {
		invalid(http.StatusBadRequest, broken.Field, broken.Error()).write(ctx)
		return
	}
	if broken == nil {
		broken = checkEnvelope(&in)
	}
	var p *problem
	if from.Run.IsZero() {
		if p = checkNotOwn(s.server.config.Secret, &ctx.Request.Header); p == nil && in.User != "" {
			p = actFor(ctx, in.User)
			from = callerOf(ctx)
		}
	}
	if p != nil {
		p.write(ctx)
		return
	}
	if broken != nil {
		response := contract.Invalid(in.ID, broken)
		response.Metadata.Timed, response.Metadata.Took = true, time.Since(ctx.Time())
		s.respondEnvelope(ctx, response)
		return
	}
	release, busy := s.server.streams.acquire(&from) // it waits as long as a stream
	if busy != nil {
		refusalProblem(busy).write(ctx)
		return
	}
	defer release()
	key := in.Key()
	r := &client.Request{Trace: ingress.Trace(headers(ctx, "traceparent"), headers(ctx, "tracestate")), Invocation: from.invocation,
		Key: actor.Idempotency{Principal: from.User, Route: "POST /v1/agents/{id}:invoke of the contract", Key: key, Body: actor.HashOf([]byte(key))}}
	waitCtx := s.server.newClientContext(ctx, fulfilTimeout)
	out, err := clientOf(s.server, &from).Fulfil(waitCtx, &s.server.capabilities, &in, r)
	cause := waitCtx.cause()
	waitCtx.stop()
	switch {
	case respondAborted(ctx, cause):
		return
	case cause != nil:
		refusalProblem(noAnswerYet()).write(ctx)
		return
	case err != nil:
		s.server.respondError(ctx, err)
		return
	}
	if _, err := s.server.runOwner(from, out.Run); err == nil { // otherwise it was refused before it had one
		ctx.Response.Header.Set(runHeader, out.Run.String())
		ctx.Response.Header.Set(sessionHeader, out.Session)
	}
	s.server.log.Info("capability request", "request", in.ID, "capability", in.Capability, "agent", out.Choice.Agent, "chosen", out.Choice.Why, "status", out.Response.Status.String(), "code", out.Response.ErrorCode)
	s.respondEnvelope(ctx, out.Response)
}

// checkEnvelope checks the session and the user of a request.
func checkEnvelope(in *client.Envelope) *contract.Violation {
	wrong := func(field, rule string) *contract.Violation {
		return &contract.Violation{Code: contract.InputInvalid, Field: "context/" + field, Rule: rule}
	}
	if in.Session != "" {
		if err := actor.CheckName(in.Session); err != nil {
			return wrong("session_id", err.Error())
		}
	}
	switch {
	case in.Run.IsZero():
	case in.Session != "" && in.Session != in.Actor.Key:
		return wrong("session_id", "want "+in.Actor.Key+", the session of the run, or no value")
	case in.User != "" && !actor.InNamespace(in.User, in.Actor.Tenant):
		return wrong("user_id", "want the user of the run, or no value")
	}
	return nil
}

func (s capabilityRoutes) respondEnvelope(ctx *fasthttp.RequestCtx, r contract.Response) {
	if broken := r.Check(); broken != nil {
		s.server.respondError(ctx, errors.New("a response of the contract is invalid: "+broken.Error()))
		return
	}
	respond(ctx, http.StatusOK, r.Encode())
}
