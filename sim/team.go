// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// Team is somebody's own agents, whom worlds have instead of theirs. All that
// stands behind and before them is played by stand-ins, each of which answers by
// what it is asked and by the chooser that it is given, and by nothing else.
// Worlds run side by side, so a team is only read.
type Team struct {
	Agents []actor.Definition
	Tools  *tools.Registry   // made of StandIn; nil: call_agent alone
	Limits dispatcher.Limits // the zero value: the defaults
	// Asks are what clients come with. One of them is drawn each time.
	Asks []TeamAsk
	// Model answers for the model of an agent, Service for an external agent.
	Model   func(c Rand, agent string, p upstream.Prompt) upstream.Completion
	Service func(c Rand, agent, message string) upstream.Completion
	// Signal is what a person says to who waits for a signal of that name.
	Signal func(c Rand, name string) string
}

// TeamAsk is something that a client asks.
type TeamAsk struct {
	Agent   string
	Message string
	Left    actor.Duration // at most TeamLeftMax; 0: 20 s
}

// Rand are what a stand-in draws: 0 <= Int(n) < n, where 0 is what is usual.
type Rand interface{ Int(n int) int }

// zeroRand are always 0.
type zeroRand struct{}

func (zeroRand) Int(int) int { return 0 }

// TeamLeftMax is how long a client may give its run at most.
const TeamLeftMax = time.Minute

// teamUnfitFaults are the faults that speak the language of the simulator's own agents.
var teamUnfitFaults = [...]Fault{AgentPanic, LoadPoison, LoadFanOut, LoadDeadlocks, LoadDeadlineStorm}

// AppliesToTeams tells whether a fault can befall a team.
func (f Fault) AppliesToTeams() bool { return !slices.Contains(teamUnfitFaults[:], f) }

// applyTeam puts a team into a plan: what is drawn of limits that a team has set, or
// could rely on, is undone.
func (p *Plan) applyTeam(t *Team) {
	drawn := p.Limits
	if p.Limits = t.Limits; p.Limits == (dispatcher.Limits{}) {
		p.Limits = dispatcher.DefaultLimits()
	}
	p.Limits.PassivateAfter, p.Limits.SnapshotBytes, p.Limits.RememberBytes = drawn.PassivateAfter, drawn.SnapshotBytes, drawn.RememberBytes
	p.Patience = upstream.Patience{}
	p.ArrivalInterval, p.Span, p.Keys = 10*p.ArrivalInterval, 10*p.Span, 2*p.Keys // as people come, not as load
	p.Agents = append([]actor.Definition(nil), t.Agents...)
	p.Targets = len(p.Agents)
	for _, f := range teamUnfitFaults {
		p.Odds[f] = 0
	}
}

// timeLeftMax is the longest that a client gives its run.
func (w *Simulation) timeLeftMax() actor.Duration {
	if w.team != nil {
		return TeamLeftMax
	}
	return clientLeftMax
}

// drawTeamAsk draws what a client comes with, and for which session.
func (d generator) drawTeamAsk() (actor.ID, TeamAsk) {
	w := d.w
	a := w.team.Asks[w.entropy.Int(len(w.team.Asks))]
	if a.Left == 0 {
		a.Left = clientLeftMax
	}
	return actor.NewID(a.Agent, "s"+strconv.Itoa(w.entropy.Int(w.plan.Keys))), a
}

// teamMessageFor is what clients come to an agent with; something short if nobody does.
func (w *Simulation) teamMessageFor(agent string) string {
	for _, a := range w.team.Asks {
		if a.Agent == agent {
			return a.Message
		}
	}
	return "hello"
}

// modelCompletion is what a model says.
func (w *Simulation) modelCompletion(s *upstreamConn, p upstream.Prompt) upstream.Completion {
	if w.team != nil && w.team.Model != nil {
		return w.team.Model(w.entropy, s.exchange.call.To.Agent, p)
	}
	return upstream.Script(p)
}

// agentCompletion is what an external agent does with a message: the calls that it
// makes, one after the other, and what it says in the end.
func (w *Simulation) agentCompletion(agent, message string) upstream.Completion {
	if w.team != nil && w.team.Service != nil {
		return w.team.Service(w.entropy, agent, message)
	}
	return upstream.Script(upstream.Prompt{Messages: []upstream.Message{{Role: upstream.User, Text: message}},
		Tools: []upstream.ToolSpec{{Name: tools.CallAgent}}})
}

// randKey is under which a stand-in tool finds its lots.
type randKey struct{}

// StandIn is a tool of a team that answers as says does. The faults of tools befall it.
func StandIn(t tools.Tool, says func(c Rand, input []byte) string) tools.Tool {
	if t.Schema == "" {
		t.Schema = anyObject
	}
	t.Handler = func(ctx context.Context, input []byte) tools.Result {
		c, ok := ctx.Value(randKey{}).(Rand)
		if !ok {
			c = zeroRand{}
		}
		return toolResult(ctx, says(c, input))
	}
	return t
}
