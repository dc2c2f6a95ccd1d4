// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// Team is a user-supplied set of agents that replaces the simulation's own. Its
// models, services, tools and clients are stand-ins. The answer of a stand-in MUST
// depend only on its request and on the given Rand. Concurrent simulations share a
// Team, so it MUST NOT be modified.
type Team struct {
	Agents []actor.Definition
	Tools  *tools.Registry   // tools made with StandIn; nil: only call_agent
	Limits dispatcher.Limits // the zero value means the defaults
	// Asks are the possible client requests. Each client draws one of them.
	Asks []TeamAsk
	// Model answers for an agent's model, Service for an external agent.
	Model   func(c Rand, agent string, p upstream.Prompt) upstream.Completion
	Service func(c Rand, agent, message string) upstream.Completion
	// Signal returns the text that a person sends to a run waiting for this signal.
	Signal func(c Rand, name string) string
}

// TeamAsk is a client request.
type TeamAsk struct {
	Agent   string
	Message string
	Left    actor.Duration // at most TeamLeftMax; 0 means 20 s
}

// Rand is the entropy source of a stand-in: 0 <= Int(n) < n. The usual case is 0.
type Rand interface{ Int(n int) int }

// zeroRand always returns 0.
type zeroRand struct{}

func (zeroRand) Int(int) int { return 0 }

// TeamLeftMax is the maximum time left that a client may give its run.
const TeamLeftMax = time.Minute

// teamUnfitFaults are the faults that send scripts, which only the simulation's own
// agents understand.
var teamUnfitFaults = [...]Fault{AgentPanic, LoadPoison, LoadFanOut, LoadDeadlocks, LoadDeadlineStorm}

// AppliesToTeams reports whether the fault can be injected into a team's run.
func (f Fault) AppliesToTeams() bool { return !slices.Contains(teamUnfitFaults[:], f) }

// applyTeam puts the team into the plan. The plan gets the limits of the team, or the
// defaults. Only PassivateAfter, SnapshotBytes and RememberBytes keep their drawn
// values, because a team does not rely on them.
func (p *Plan) applyTeam(t *Team) {
	drawn := p.Limits
	if p.Limits = t.Limits; p.Limits == (dispatcher.Limits{}) {
		p.Limits = dispatcher.DefaultLimits()
	}
	p.Limits.PassivateAfter, p.Limits.SnapshotBytes, p.Limits.RememberBytes = drawn.PassivateAfter, drawn.SnapshotBytes, drawn.RememberBytes
	p.Patience = upstream.AttemptLimits{}
	p.ArrivalInterval, p.Span, p.Keys = 10*p.ArrivalInterval, 10*p.Span, 2*p.Keys // arrivals at a human pace, not as load
	p.Agents = append([]actor.Definition(nil), t.Agents...)
	p.Targets, p.Specs = len(p.Agents), nil
	for _, f := range teamUnfitFaults {
		p.Odds[f] = 0
	}
}

// timeLeftMax returns the maximum time left that a client gives its run.
func (w *Simulation) timeLeftMax() actor.Duration {
	if w.team != nil {
		return TeamLeftMax
	}
	return clientLeftMax
}

// drawTeamAsk draws a client request and its session.
func (d generator) drawTeamAsk() (actor.ID, TeamAsk) {
	w := d.w
	a := w.team.Asks[w.entropy.Int(len(w.team.Asks))]
	if a.Left == 0 {
		a.Left = clientLeftMax
	}
	return d.actor(a.Agent, w.drawKey()), a
}

// teamMessageFor returns a message that clients send to the agent, or a short default
// if there is none.
func (w *Simulation) teamMessageFor(agent string) string {
	for _, a := range w.team.Asks {
		if a.Agent == agent {
			return a.Message
		}
	}
	return "hello"
}

// modelCompletion returns the answer of a model.
func (w *Simulation) modelCompletion(s *upstreamConn, p upstream.Prompt) upstream.Completion {
	if w.team != nil && w.team.Model != nil {
		return w.team.Model(w.entropy, s.exchange.call.To.Agent, p)
	}
	return w.scriptedCompletion(p)
}

// agentCompletion returns the behavior of an external agent for a message: the calls
// that it makes in sequence, and its final text.
func (w *Simulation) agentCompletion(agent, message string) upstream.Completion {
	if w.team != nil && w.team.Service != nil {
		return w.team.Service(w.entropy, agent, message)
	}
	return w.scriptedCompletion(upstream.Prompt{Messages: []upstream.Message{{Role: upstream.User, Text: message}},
		Tools: []upstream.ToolSpec{{Name: tools.CallAgent}}})
}

// scriptedCompletion returns the answer of the built-in model, and judges it.
func (w *Simulation) scriptedCompletion(p upstream.Prompt) upstream.Completion {
	c := upstream.Script(p)
	w.judgeScript(p, c)
	return c
}

// randKey is the context key of the Rand of a stand-in tool.
type randKey struct{}

// StandIn returns a team's tool that calls the function answer and replies with the
// result. The tool faults apply to the tool.
func StandIn(t tools.Tool, answer func(c Rand, input []byte) string) tools.Tool {
	if t.Schema == "" {
		t.Schema = anyObject
	}
	t.Handler = func(ctx context.Context, input []byte) tools.Result {
		c, ok := ctx.Value(randKey{}).(Rand)
		if !ok {
			c = zeroRand{}
		}
		return toolResult(ctx, answer(c, input))
	}
	return t
}

// Local returns a team's tool that a function of the user performs. Its results MUST depend on its input
// alone. The tool faults apply to it.
func Local(t tools.Tool) tools.Tool {
	perform := t.Handler
	t.Declared = nil // neither a policy nor a person decides about its calls
	t.Handler = func(ctx context.Context, input []byte) tools.Result {
		result := perform(ctx, input)
		if result.Refusal != nil {
			return result
		}
		var text []byte
		for _, p := range result.Parts {
			text = append(text, p.Bytes...)
		}
		return toolResult(ctx, string(text))
	}
	return t
}
