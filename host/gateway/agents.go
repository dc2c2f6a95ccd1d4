// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"cmp"
	"context"
	"errors"
	"github.com/troupe-run/troupe/internal/client"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
)

const (
	// ActorsMax is the maximum number of actors in the view of an agent.
	ActorsMax = command.ActorsMax

	// invokeTimeout exceeds the maximum time of any call between agents that is not
	// held.
	invokeTimeout = 310 * time.Second
)

// findAgent returns the agent whose id is name or, if there is none, the only
// agent with that display name. System agents are not found: clients must not
// call them.
func (s *Server) findAgent(ctx *fasthttp.RequestCtx, name string) (command.Agent, *problem) {
	all, err := s.agents(ctx)
	if err != nil {
		return command.Agent{}, s.errorProblem(ctx, err)
	}
	by := callerOf(ctx)
	return agentNamed(s, &by, all, name)
}

// agentNamed returns the agent of a list that a name means. For a caller that is limited to agents no
// other exists.
func agentNamed(s *Server, by *caller, all []command.Agent, name string) (command.Agent, *problem) {
	for i := range all {
		if all[i].Name == name && !all[i].System && by.finds(name) {
			return all[i], nil
		}
	}
	named := s.namesOf(all).byName[name]
	if len(by.agents) > 0 {
		named = slices.DeleteFunc(slices.Clone(named), func(i int) bool { return !by.finds(all[i].Name) })
	}
	switch {
	case len(named) == 1:
		return all[named[0]], nil
	case len(named) > 1:
		return command.Agent{}, invalid(http.StatusConflict, "id", "several agents have the name "+name+": use the agent_id of one; GET /v1/agents lists them")
	case actor.CheckName(name) != nil:
		return command.Agent{}, invalid(http.StatusBadRequest, "id", "agent "+actor.CheckName(name).Error())
	}
	return command.Agent{}, refusalProblem(actor.AgentNotFound(name))
}

// agents returns the agents of the node. It is called for every message and therefore
// uses a pooled context, which is cheaper than context.WithTimeout.
func (s *Server) agents(ctx *fasthttp.RequestCtx) ([]command.Agent, error) {
	timeout := s.newTimeout(readTimeout)
	defer timeout.stop()
	found, err := command.Find(timeout, s.node, callerOf(ctx).Principal, command.AgentsQuery{})
	return found.All, err
}

// displayName returns the name in the agent's spec, or its id if the spec has
// none.
func displayName(d command.Agent) string {
	var spec struct {
		Name string `json:"name"`
	}
	if d.Spec == nil || json.Unmarshal(d.Spec, &spec) != nil || spec.Name == "" {
		return d.Name
	}
	return spec.Name
}

// agentView is the JSON form of an agent.
type agentView struct {
	ID         string         `json:"agent_id"`
	Name       string         `json:"name"`
	Code       string         `json:"code,omitempty"`              // in requests of the contract
	Endpoint   string         `json:"endpoint,omitempty"`          // external agents only
	Tags       any            `json:"capabilities"`                // as registered
	Status     string         `json:"status"`                      // healthy, unhealthy, or unknown before the first contact
	LastSeen   string         `json:"last_heartbeat_at,omitempty"` // external agents only
	Circuit    string         `json:"circuit,omitempty"`           // external agents only
	Kind       string         `json:"kind"`
	Doc        string         `json:"doc"`
	Definition string         `json:"definition"`
	Served     *uint64        `json:"served_runs,omitempty"` // see servedRuns
	Spec       jsontext.Value `json:"spec,omitzero"`
	Actors     []actorView    `json:"actors,omitzero"`
}

// actorView is the JSON form of an actor in memory.
type actorView struct {
	Session string     `json:"session_id"`
	Mailbox []string   `json:"mailbox"` // runs waiting for a turn
	Turns   []turnView `json:"turns"`
}

// turnView is the JSON form of a run that an actor is working on.
type turnView struct {
	Run     string     `json:"run_id"`
	Status  string     `json:"status"`
	Started string     `json:"started_at"`
	Left    int64      `json:"time_left_ms"` // time left when the run started
	Due     string     `json:"deadline_at"`  // now; a hold moves it
	Waits   []waitView `json:"waits_for"`
}

// waitView is the JSON form of a call that a run waits for.
type waitView struct {
	Run    string `json:"run_id"`
	Target string `json:"target"`
	Since  string `json:"since"`
	Left   int64  `json:"time_left_ms"` // time given to the call
	Due    string `json:"deadline_at"`  // now; a hold moves it
}

func (s *Server) newAgentView(d command.Agent) agentView {
	v := agentView{ID: d.Name, Name: displayName(d), Status: "healthy", Kind: d.Kind.String(), Doc: d.Doc, Definition: d.Hash.String()}
	var spec struct {
		Kind         string   `json:"kind"`
		Code         string   `json:"code"`
		Endpoint     string   `json:"endpoint"`
		Capabilities []string `json:"capabilities"`

		Details jsontext.Value `json:"capability_details"`
	}
	if d.Spec != nil && json.Unmarshal(d.Spec, &spec) == nil {
		v.Kind = cmp.Or(spec.Kind, v.Kind)
		v.Code, v.Endpoint = spec.Code, spec.Endpoint
	}
	v.Tags = append([]string{}, spec.Capabilities...)
	if len(spec.Details) > 0 {
		v.Tags = spec.Details
	}
	if d.Kind == actor.External && s.config.External != nil {
		at := s.config.External.LastSeen(d.Name)
		v.Circuit = s.config.External.Circuit(d.Name)
		switch {
		case !s.config.External.Healthy(d.Name):
			v.Status = "unhealthy"
		case at == 0:
			v.Status = "unknown"
		}
		if at != 0 {
			v.LastSeen = runs.FormatTime(at)
		}
	}
	return v
}

// servedRuns returns the number of runs that each agent has ended since the node
// started, for operators only. Once the node has met more than command.StatsNamesMax agents, it counts some
// together: all is then false, the number of an agent that is not in the map is unknown,
// and that of an agent whose figures were freed is too low.
func (s *Server) servedRuns(by caller) (served map[string]uint64, all bool, err error) {
	if !ingress.Allows(by.Principal, ingress.ScopeOperator) { // they count the runs of all users
		return nil, false, nil
	}
	stats, err := lookup(s, by, command.StatsQuery{})
	served, all = countServed(stats.Agents)
	return served, all, err
}

func countServed(agents []command.AgentStats) (served map[string]uint64, all bool) {
	served = map[string]uint64{}
	for _, a := range agents {
		for _, r := range a.Runs {
			served[a.Agent] += r.Count
		}
	}
	return served, len(agents) < command.StatsNamesMax && served[command.StatsOther] == 0
}

// setServed sets the number of runs that an agent has served, if it is known.
func (v *agentView) setServed(served map[string]uint64, all bool) {
	if n, ok := served[v.ID]; all || ok && v.ID != command.StatsOther {
		v.Served = &n
	}
}

func (s *Server) listAgents(ctx *fasthttp.RequestCtx) {
	out := struct {
		Agents []agentView `json:"agents"`
		Next   string      `json:"next_cursor,omitzero"`
		Chat   *ChatPage   `json:"chat,omitzero"`
	}{Agents: []agentView{}, Chat: s.config.Chat}
	all, err := s.agents(ctx)
	if err != nil {
		s.respondError(ctx, err)
		return
	}
	by := callerOf(ctx)
	served, known, err := s.servedRuns(by)
	if err != nil {
		s.respondError(ctx, err)
		return
	}
	all = slices.DeleteFunc(slices.Clone(all), func(d command.Agent) bool { return d.System || !by.finds(d.Name) })
	slices.SortFunc(all, func(a, b command.Agent) int { return strings.Compare(a.Name, b.Name) })
	page, next, p := namesPage(ctx, ingress.CursorKey(s.config.Secret), "agents", all, func(d *command.Agent) string { return d.Name })
	if p != nil {
		p.write(ctx)
		return
	}
	out.Next = next
	for _, d := range page {
		v := s.newAgentView(d)
		v.setServed(served, known)
		out.Agents = append(out.Agents, v)
	}
	respondJSON(ctx, http.StatusOK, out)
}

// getAgent returns an agent with its actors in memory and their current turns.
func (s *Server) getAgent(ctx *fasthttp.RequestCtx) {
	d, p := s.findAgent(ctx, pathParam(ctx, "id"))
	if p != nil {
		p.write(ctx)
		return
	}
	by := callerOf(ctx)
	out := s.newAgentView(d)
	out.Spec, out.Actors = specFor(by, d.Spec), []actorView{}
	loaded, err := lookup(s, by, command.ActorsQuery{Agent: d.Name, Limit: ActorsMax})
	if err != nil {
		s.respondError(ctx, err)
		return
	}
	served, known, err := s.servedRuns(by)
	if err != nil {
		s.respondError(ctx, err)
		return
	}
	out.setServed(served, known)
	for _, a := range loaded.All {
		out.Actors = append(out.Actors, s.newActorView(by, a))
	}
	slices.SortFunc(out.Actors, func(a, b actorView) int {
		if a.Session < b.Session {
			return -1
		}
		return 1
	})
	respondJSON(ctx, http.StatusOK, out)
}

// newActorView returns the view of an actor. It reads the events of the actor's
// runs.
func (s *Server) newActorView(by caller, a history.Actor) actorView {
	v := actorView{Session: a.ID.Key, Mailbox: []string{}, Turns: []turnView{}}
	for _, run := range a.Queue {
		v.Mailbox = append(v.Mailbox, run.String())
	}
	for _, turn := range a.Turns {
		t := turnView{Run: turn.Run.String(), Status: runs.Running.String(), Due: runs.FormatTime(turn.Due), Waits: []waitView{}}
		// A run without events, such as one of a volatile actor, keeps the
		// default view.
		if run, err := lookup(s, by, command.RunQuery{Run: turn.Run}); err == nil {
			r := &run.Record
			t.Status, t.Started, t.Left, t.Waits = r.Status.String(), runs.FormatTime(r.Started), r.Left.Milliseconds(), []waitView{}
			for _, c := range r.Children {
				if i := slices.Index(turn.Open, c.Run); i >= 0 {
					t.Waits = append(t.Waits, waitView{c.Run.String(), c.Target, runs.FormatTime(c.At), c.Left.Milliseconds(), runs.FormatTime(turn.OpenDue[i])})
				}
			}
		}
		v.Turns = append(v.Turns, t)
	}
	return v
}

func (s *Server) createAgent(ctx *fasthttp.RequestCtx)   { s.putAgent(ctx, agents.OpPut) }
func (s *Server) registerAgent(ctx *fasthttp.RequestCtx) { s.putAgent(ctx, agents.OpRegister) }

// putAgent sends a spec to the registry, which validates it. An unchanged spec
// has no effect.
func (s *Server) putAgent(ctx *fasthttp.RequestCtx, operation string) {
	spec, p := decodeBody(ctx, func(b []byte) ([]byte, *actor.Refusal) {
		if r := ingress.CheckObject(b); r != nil {
			return b, r
		}
		return agents.SealRegistration(s.config.Secret, b)
	})
	if p == nil {
		p = s.checkSecret(spec)
	}
	if p != nil {
		p.write(ctx)
		return
	}
	putInRegistry(s, ctx, operation, spec)
}

// checkSecret refuses a spec that names a secret that may not be sent to its endpoint.
// An invalid spec is left to the registry.
func (s *Server) checkSecret(body []byte) *problem {
	spec, err := agents.ReadJSON(body)
	if err != nil || s.config.External == nil {
		return nil
	}
	return permitProblem(s.config.External.Permit(spec.Endpoint, spec.Auth.Env), "auth.env")
}

// permitProblem returns the problem for an error of Permit or PermitDefinition, or nil.
func permitProblem(err error, field string) *problem {
	var r *actor.Refusal
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &r): // else the node could not be asked
		r = actor.Refuse(actor.Rejected, "%v", err)
		r.Field = field
	}
	return refusalProblem(r)
}

// deleteAgent deletes an agent. Its open runs complete, and new calls get a 404
// agent_not_found.
func (s *Server) deleteAgent(ctx *fasthttp.RequestCtx) {
	d, p := s.findAgent(ctx, pathParam(ctx, "id"))
	if p == nil {
		p = requireEmptyBody(ctx)
	}
	if p != nil {
		p.write(ctx)
		return
	}
	body, _ := json.Marshal(map[string]string{"agent_id": d.Name})
	if answer, stop := s.callRegistry(ctx, agents.OpDelete, body); !stop {
		respond(ctx, http.StatusOK, answer)
	}
}

// heartbeat records a heartbeat of an external agent.
func (s *Server) heartbeat(ctx *fasthttp.RequestCtx) {
	d, p := s.findAgent(ctx, pathParam(ctx, "id"))
	if p == nil {
		p = requireEmptyBody(ctx)
	}
	if p == nil {
		p = checkOwnName(callerOf(ctx))
	}
	if by := callerOf(ctx); p == nil && d.Owner != "" && d.Owner != by.User && !ingress.Allows(by.Principal, ingress.ScopeOperator) {
		p = refusalProblem(actor.Refuse(actor.Rejected, "%s belongs to %s: only its owner and keys with the scope %s send its heartbeat", d.Name, d.Owner, ingress.ScopeOperator))
	}
	if p == nil && (s.config.External == nil || !s.config.External.Heartbeat(d.Name)) {
		p = refusalProblem(actor.Refuse(actor.Rejected, "%s is %s and needs no heartbeat: only agents registered by POST /v1/agents/register send one", d.Name, d.Kind))
	}
	if p != nil {
		p.write(ctx)
		return
	}
	respond(ctx, http.StatusOK, []byte(`{"ok":true}`))
}

// invoke lets an external agent call another agent on behalf of its current run.
// The call inherits the run's chain, depth, time left and budget. The idempotency
// key of a call is the same for both routes.
func (s *Server) invoke(ctx *fasthttp.RequestCtx) {
	if isEnvelope(ctx) {
		capabilityRoutes{s}.fulfil(ctx)
		return
	}
	from := callerOf(ctx)
	var to actor.ID
	call, p := decodeBody(ctx, func(b []byte) (call actor.Call, r *actor.Refusal) {
		call, to, r = ingress.Invoke(from.Run, from.Actor, pathParam(ctx, "id"), b)
		return call, r
	})
	var r *client.Request
	if p == nil {
		r, p = requestOf(ctx, "POST /v1/agents/{id}:invoke "+pathParam(ctx, "id"), headers(ctx, ingress.IdempotencyKey))
	}
	if p != nil {
		p.write(ctx)
		return
	}
	r.Time, r.Origin = invokeTimeout+time.Minute, actor.Agent // a call that is held outlasts both
	waitCtx := s.newClientContext(ctx, invokeTimeout)
	answer, err := clientOf(s, &from).Ask(waitCtx, call, r)
	cause := waitCtx.cause()
	waitCtx.stop()
	switch {
	case respondAborted(ctx, cause):
	case errors.Is(err, context.DeadlineExceeded):
		refusalProblem(&actor.Refusal{Reason: actor.Unavailable, RetryAfter: time.Second,
			Detail: "no answer yet, because the call waits for a person: retry with the same Idempotency-Key"}).write(ctx)
	case err != nil:
		s.respondError(ctx, err)
	default:
		s.respondAnswer(ctx, to, answer)
	}
}
