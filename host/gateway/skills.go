// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/contract"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
)

// skillRoute has two parameters, as no other route.
const skillRoute = "/v1/agents/{id}/skills/{skill}:invoke"

// Times of an invocation from outside, those of agent_call.
const (
	skillTimeout    = time.Minute
	skillTimeoutMax = 5 * time.Minute
)

// skillBody is an invocation from outside: the message that an agent gets of another one, with other names of its
// members that callers know.
type skillBody struct {
	Kind        string         `json:"kind"`
	Skill       string         `json:"skill"`
	Mode        string         `json:"mode"`
	Input       jsontext.Value `json:"input"`
	Timeout     *float64       `json:"timeout"`
	TimeoutMS   *float64       `json:"timeout_ms"`
	TimeoutS    *float64       `json:"timeoutSeconds"`
	Correlation string         `json:"correlationId"`
	ReturnTo    *string        `json:"returnTo"`
	Session     string         `json:"session_id"`
	User        *string        `json:"user_id"`
}

// check validates the body for a skill, and returns its time.
func (b *skillBody) check(skill string) (left time.Duration, p *problem) {
	wrong := func(field, format string, args ...any) (time.Duration, *problem) {
		return 0, invalid(http.StatusBadRequest, field, field+": "+fmt.Sprintf(format, args...))
	}
	if err := actor.CheckName(skill); err != nil {
		return wrong("skill", "%v", err)
	}
	if b.Input == nil {
		b.Input = jsontext.Value("{}")
	}
	switch {
	case b.Kind != "" && b.Kind != "skill_invocation":
		return wrong("kind", "want skill_invocation, got %.80q", b.Kind)
	case b.Skill != "" && b.Skill != skill:
		return wrong("skill", "the path has %s", skill)
	case b.Mode != "" && b.Mode != contract.ModeExecute && b.Mode != "critique":
		return wrong("mode", "want execute or critique, got %.80q", b.Mode)
	case b.Input.Kind() != '{':
		return wrong("input", "want a JSON object")
	case b.Input.Compact() != nil:
		return wrong("input", "want a JSON object")
	case len(b.Input) > contract.SkillInputMax:
		return wrong("input", "%d bytes exceed the maximum of %d", len(b.Input), contract.SkillInputMax)
	case len(b.Correlation) > contract.ClientCorrelationMax:
		return wrong("correlationId", "want at most %d bytes", contract.ClientCorrelationMax)
	case b.ReturnTo != nil:
		return wrong("returnTo", "it is made by the server, and only agents have outcomes delivered: read the response at GET /v1/tasks/{id}")
	}
	first := ""
	for _, given := range [...]struct {
		name  string
		value *float64
		scale float64
	}{{"timeout", b.Timeout, 1}, {"timeout_ms", b.TimeoutMS, 1}, {"timeoutSeconds", b.TimeoutS, 1000}} {
		switch {
		case given.value == nil:
			continue
		case *given.value <= 0:
			return wrong(given.name, "want more than 0")
		}
		d := time.Duration(min(*given.value*given.scale, float64(skillTimeoutMax.Milliseconds()))) * time.Millisecond
		if first != "" && d != left {
			return wrong(given.name, "it is another time than that in %s", first)
		}
		left, first = d, given.name
	}
	return cmp.Or(left, skillTimeout), nil
}

// skillsOf returns the skills that an agent declares; nil means any.
func skillsOf(d *command.Agent) []string {
	var spec struct {
		Skills []string `json:"skills"`
	}
	_ = json.Unmarshal(d.Spec, &spec) // of a native agent: none
	return spec.Skills
}

// skillRoutes are the routes about skills.
type skillRoutes struct{ server *Server }

// invoke asks an agent for a skill, as another agent does with agent_call, and answers at once. The response is
// that of the task.
func (s skillRoutes) invoke(ctx *fasthttp.RequestCtx) {
	skill := pathParam(ctx, "skill")
	var in skillBody
	p := badRequest(ingress.Decode(ctx.PostBody(), &in))
	var left time.Duration
	if p == nil {
		left, p = in.check(skill)
	}
	var message ingress.Sent
	if p == nil {
		var r *actor.Refusal
		body := map[string]any{"content": skill, "timeout_ms": max(left.Milliseconds(), 1)}
		if in.Session != "" {
			body["session_id"] = in.Session
		}
		if in.User != nil {
			body["user_id"] = *in.User
		}
		b, err := json.Marshal(body)
		if err != nil {
			p = invalid(http.StatusBadRequest, "", "want text in UTF-8")
		} else if message, r = ingress.ClientMessage(callerOf(ctx).Principal, pathParam(ctx, "id"), b); r != nil {
			p = badRequest(r)
		}
	}
	call := message.Call
	if p == nil && message.User != nil {
		p = actFor(ctx, *message.User)
		call.To.Tenant = callerOf(ctx).Tenant
	}
	var agent command.Agent
	if p == nil {
		agent, p = s.server.resolveAgent(ctx, &call, true)
	}
	if p == nil {
		if known := skillsOf(&agent); known != nil && !slices.Contains(known, skill) {
			p = invalid(http.StatusBadRequest, "skill", fmt.Sprintf("agent %s has no skill %.80q: it has %s", agent.Name, skill, cmp.Or(strings.Join(known, ", "), "none")))
		}
	}
	if p == nil {
		p = fillRequestContext(ctx, "POST "+skillRoute+" "+skill, &call)
	}
	if p != nil {
		p.write(ctx)
		return
	}
	by := callerOf(ctx)
	clientOf(s.server, &by).Address(&call, &agent, message.Named)
	invocation := contract.Invocation{Skill: skill, Mode: cmp.Or(in.Mode, contract.ModeExecute), Input: in.Input, Correlation: call.ID, ReturnTo: call.To, Timeout: left}
	call.Parts = actor.Text(string(invocation.Encode()))
	b, _ := messageRoutes{s.server}.begin(ctx, call)
	if b == nil {
		return
	}
	defer b.Release()
	out := bytes.TrimSuffix(contract.Pending(contract.Correlation{Call: b.Run, Client: in.Correlation}), []byte("}"))
	out = append(appendQuoted(append(out, `,"returnTo":`...), invocation.ReturnAddress()), '}')
	ctx.Response.Header.Set(runHeader, b.Run.String())
	ctx.Response.Header.Set(fasthttp.HeaderLocation, "/v1/tasks/"+b.Run.String())
	respond(ctx, http.StatusAccepted, out)
}
