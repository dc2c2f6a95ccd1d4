// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/runs"
)

const (
	// ActorsMax is how many actors of an agent are shown.
	ActorsMax = 100

	// invokeTimeout is more than any call between agents may take.
	invokeTimeout = 310 * time.Second
)

// findAgent is the agent of an id; or of a name, as long as no other has it. What
// belongs to the program itself is nobody's to call.
func (s *Server) findAgent(text string) (actor.Definition, *problem) {
	all := s.node.Agents()
	for i := range all {
		if all[i].Name == text && !all[i].System {
			return all[i], nil
		}
	}
	var named []actor.Definition
	for _, d := range all {
		if !d.System && displayName(d) == text {
			named = append(named, d)
		}
	}
	switch {
	case len(named) == 1:
		return named[0], nil
	case len(named) > 1:
		return actor.Definition{}, invalid(http.StatusConflict, "id", "several agents bear the name "+text+": say the agent_id of one; GET /v1/agents lists them")
	case actor.CheckName(text) != nil:
		return actor.Definition{}, invalid(http.StatusBadRequest, "id", "agent "+actor.CheckName(text).Error())
	}
	return actor.Definition{}, refusalProblem(actor.Refuse(actor.NotFound, "no agent is named %s; GET /v1/agents lists those that are", text))
}

// displayName is what people call an agent.
func displayName(d actor.Definition) string {
	var spec struct {
		Name string `json:"name"`
	}
	if d.Spec == nil || json.Unmarshal(d.Spec, &spec) != nil || spec.Name == "" {
		return d.Name
	}
	return spec.Name
}

// agentView is an agent as clients see it.
type agentView struct {
	ID         string         `json:"agent_id"`
	Name       string         `json:"name"`
	Kind       string         `json:"kind"`
	Doc        string         `json:"doc"`
	Definition string         `json:"definition"`
	Healthy    *bool          `json:"healthy,omitempty"` // of external ones
	Spec       jsontext.Value `json:"spec,omitzero"`
	Actors     []actorView    `json:"actors,omitzero"`
}

// actorView is one of its actors that is in memory.
type actorView struct {
	Session string     `json:"session_id"`
	Mailbox []string   `json:"mailbox"` // the runs that wait for the turn
	Turns   []turnView `json:"turns"`
}

// turnView is a run that an actor is at work on.
type turnView struct {
	Run     string     `json:"run_id"`
	Status  string     `json:"status"`
	Started string     `json:"started_at"`
	Left    int64      `json:"time_left_ms"` // that it had when it started
	Waits   []waitView `json:"waits_for"`
}

// waitView is a call that a run waits for.
type waitView struct {
	Run    string `json:"run_id"`
	Target string `json:"target"`
	Since  string `json:"since"`
	Left   int64  `json:"time_left_ms"` // that it was given
}

func (s *Server) newAgentView(d actor.Definition) agentView {
	v := agentView{ID: d.Name, Name: displayName(d), Kind: d.Kind.String(), Doc: d.Doc, Definition: d.Hash.String()}
	if d.Kind == actor.External && s.config.External != nil {
		healthy := s.config.External.Healthy(d.Name)
		v.Healthy = &healthy
	}
	return v
}

func (s *Server) listAgents(ctx *fasthttp.RequestCtx) {
	out := struct {
		Agents []agentView `json:"agents"`
	}{Agents: []agentView{}}
	for _, d := range s.node.Agents() {
		if !d.System {
			out.Agents = append(out.Agents, s.newAgentView(d))
		}
	}
	respondJSON(ctx, http.StatusOK, out)
}

// getAgent shows an agent, and what its actors that are in memory are at.
func (s *Server) getAgent(ctx *fasthttp.RequestCtx) {
	d, p := s.findAgent(pathParam(ctx, "id"))
	if p != nil {
		p.write(ctx)
		return
	}
	out := s.newAgentView(d)
	out.Spec, out.Actors = d.Spec, []actorView{}
	within, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	cells, err := s.node.State(within)
	if err != nil {
		s.respondError(ctx, err)
		return
	}
	for _, cell := range cells {
		for _, a := range cell.Actors {
			if a.ID.Agent == d.Name && len(out.Actors) < ActorsMax {
				out.Actors = append(out.Actors, s.newActorView(a))
			}
		}
	}
	slices.SortFunc(out.Actors, func(a, b actorView) int {
		if a.Session < b.Session {
			return -1
		}
		return 1
	})
	respondJSON(ctx, http.StatusOK, out)
}

// newActorView shows an actor with what its runs have told so far.
func (s *Server) newActorView(a history.Actor) actorView {
	v := actorView{Session: a.ID.Key, Mailbox: []string{}, Turns: []turnView{}}
	for _, run := range a.Queue {
		v.Mailbox = append(v.Mailbox, run.String())
	}
	for _, turn := range a.Turns {
		t := turnView{Run: turn.Run.String(), Status: runs.Running.String(), Waits: []waitView{}}
		// A run that told nothing yet, or of an actor that writes nothing down, is shown as it is.
		_ = s.readView(func(in View) error {
			r, err := in.Record(turn.Run)
			if err != nil {
				return err
			}
			t.Status, t.Started, t.Left, t.Waits = r.Status.String(), runs.FormatTime(r.Started), r.Left.Milliseconds(), []waitView{}
			for _, c := range r.Children {
				if slices.Contains(turn.Open, c.Run) {
					t.Waits = append(t.Waits, waitView{c.Run.String(), c.Target, runs.FormatTime(c.At), c.Left.Milliseconds()})
				}
			}
			return nil
		})
		v.Turns = append(v.Turns, t)
	}
	return v
}

func (s *Server) createAgent(ctx *fasthttp.RequestCtx)   { s.putAgent(ctx, agents.OpPut) }
func (s *Server) registerAgent(ctx *fasthttp.RequestCtx) { s.putAgent(ctx, agents.OpRegister) }

// putAgent hands a spec to the registry, which judges it. The same spec again changes
// nothing.
func (s *Server) putAgent(ctx *fasthttp.RequestCtx, operation string) {
	spec, p := decodeBody(ctx, func(b []byte) ([]byte, *actor.Refusal) { return b, ingress.CheckObject(b) })
	if p != nil {
		p.write(ctx)
		return
	}
	answer, stop := s.callRegistry(ctx, operation, spec)
	if stop {
		return
	}
	var out struct {
		Created bool `json:"created"`
	}
	status := http.StatusOK
	if json.Unmarshal(answer, &out) == nil && out.Created {
		status = http.StatusCreated
	}
	respond(ctx, status, answer)
}

// deleteAgent deletes an agent: its open runs end as they would have, new calls find nobody.
func (s *Server) deleteAgent(ctx *fasthttp.RequestCtx) {
	d, p := s.findAgent(pathParam(ctx, "id"))
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

// heartbeat takes note that an external agent is alive.
func (s *Server) heartbeat(ctx *fasthttp.RequestCtx) {
	d, p := s.findAgent(pathParam(ctx, "id"))
	if p == nil {
		p = requireEmptyBody(ctx)
	}
	if p == nil && (s.config.External == nil || !s.config.External.Heartbeat(d.Name)) {
		p = refusalProblem(actor.Refuse(actor.Rejected, "%s is %s and needs no heartbeat: only agents made by POST /v1/agents/register send one", d.Name, d.Kind))
	}
	if p != nil {
		p.write(ctx)
		return
	}
	respond(ctx, http.StatusOK, []byte(`{"ok":true}`))
}

// invoke has an external agent call another through the run it is at work on: the
// call has the run's chain, depth, time and budget.
func (s *Server) invoke(ctx *fasthttp.RequestCtx) {
	by := callerOf(ctx)
	var to actor.ID
	call, p := decodeBody(ctx, func(b []byte) (call actor.Call, r *actor.Refusal) {
		call, to, r = ingress.Invoke(by.Run, by.Actor, pathParam(ctx, "id"), b)
		return call, r
	})
	if p == nil {
		p = fillRequestContext(ctx, "POST /v1/agents/{id}:invoke "+pathParam(ctx, "id"), &call)
	}
	if p != nil {
		p.write(ctx)
		return
	}
	call.ID, call.Left, call.Origin = s.node.NewCallID(), invokeTimeout, actor.Agent
	within := s.newClientContext(ctx, invokeTimeout)
	answer, err := s.node.Ask(within, call)
	why := within.cause()
	within.stop()
	switch {
	case respondAborted(ctx, why):
	case err != nil:
		s.respondError(ctx, err)
	default:
		s.respondAnswer(ctx, to, answer)
	}
}
