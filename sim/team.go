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
	Model   func(c Lots, agent string, p upstream.Prompt) upstream.Completion
	Service func(c Lots, agent, message string) upstream.Completion
	// Signal is what a person says to who waits for a signal of that name.
	Signal func(c Lots, name string) string
}

// TeamAsk is something that a client asks.
type TeamAsk struct {
	Agent   string
	Message string
	Left    actor.Duration // at most TeamLeftMax; 0: 20 s
}

// Lots are what a stand-in draws: 0 <= Int(n) < n, where 0 is what is usual.
type Lots interface{ Int(n int) int }

// calmLots are always 0.
type calmLots struct{}

func (calmLots) Int(int) int { return 0 }

// TeamLeftMax is how long a client may give its run at most.
const TeamLeftMax = time.Minute

// unfit are the faults that speak the language of the simulator's own agents.
var unfit = [...]Fault{AgentPanic, LoadPoison, LoadFanOut, LoadDeadlocks, LoadDeadlineStorm}

// Fits tells whether a fault can befall a team.
func (f Fault) Fits() bool { return !slices.Contains(unfit[:], f) }

// play puts a team into a plan: what is drawn of limits that a team has set, or
// could rely on, is undone.
func (p *Plan) play(t *Team) {
	drawn := p.Limits
	if p.Limits = t.Limits; p.Limits == (dispatcher.Limits{}) {
		p.Limits = dispatcher.DefaultLimits()
	}
	p.Limits.PassivateAfter, p.Limits.SnapshotBytes, p.Limits.RememberBytes = drawn.PassivateAfter, drawn.SnapshotBytes, drawn.RememberBytes
	p.Patience = upstream.Patience{}
	p.Gap, p.Span, p.Keys = 10*p.Gap, 10*p.Span, 2*p.Keys // as people come, not as load
	p.Agents = append([]actor.Definition(nil), t.Agents...)
	p.Targets = len(p.Agents)
	for _, f := range unfit {
		p.Odds[f] = 0
	}
}

// leftMax is the longest that a client gives its run.
func (w *World) leftMax() actor.Duration {
	if w.team != nil {
		return TeamLeftMax
	}
	return clientLeftMax
}

// teamAsk draws what a client comes with, and for which session.
func (d drawer) teamAsk() (actor.ID, TeamAsk) {
	w := d.w
	a := w.team.Asks[w.choose.Int(len(w.team.Asks))]
	if a.Left == 0 {
		a.Left = clientLeftMax
	}
	return actor.NewID(a.Agent, "s"+strconv.Itoa(w.choose.Int(w.plan.Keys))), a
}

// teamMessage is what clients come to an agent with; something short if nobody does.
func (w *World) teamMessage(agent string) string {
	for _, a := range w.team.Asks {
		if a.Agent == agent {
			return a.Message
		}
	}
	return "hello"
}

// completion is what a model says.
func (w *World) completion(s *wire, p upstream.Prompt) upstream.Completion {
	if w.team != nil && w.team.Model != nil {
		return w.team.Model(w.choose, s.x.call.To.Agent, p)
	}
	return upstream.Script(p)
}

// service is what an external agent does with a message: the calls that it
// makes, one after the other, and what it says in the end.
func (w *World) service(agent, message string) upstream.Completion {
	if w.team != nil && w.team.Service != nil {
		return w.team.Service(w.choose, agent, message)
	}
	return upstream.Script(upstream.Prompt{Messages: []upstream.Message{{Role: upstream.User, Text: message}},
		Tools: []upstream.ToolSpec{{Name: tools.CallAgent}}})
}

// chooserKey is under which a stand-in tool finds its lots.
type chooserKey struct{}

// StandIn is a tool of a team that answers as says does. The faults of tools befall it.
func StandIn(t tools.Tool, says func(c Lots, input []byte) string) tools.Tool {
	if t.Schema == "" {
		t.Schema = anyObject
	}
	t.Handler = func(ctx context.Context, input []byte) tools.Result {
		c, ok := ctx.Value(chooserKey{}).(Lots)
		if !ok {
			c = calmLots{}
		}
		return misbehave(ctx, says(c, input))
	}
	return t
}
