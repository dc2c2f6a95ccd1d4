// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
)

// Report is the outcome of one run for a team.
type Report struct {
	Asked      int // clients that sent a request
	Succeeded  int
	Partial    int
	Refused    int // clients whose last attempt was refused
	Held       int // clients that have to fetch the reply later, because their run is held for a person
	Unanswered int // clients that gave up or were disconnected without a reply
	Depth      int // maximum depth of the accepted calls
	FanOut     int // maximum number of calls made in one action
	Refusals   []RefusalCount
	// Unfinished lists the runs that had not ended when the simulation became idle.
	Unfinished []string
	Agents     []AgentCount
}

// RefusalCount is the number of refusals with the same reason, scope, agent and
// caller.
type RefusalCount struct {
	Reason       actor.Reason
	Scope        actor.Scope
	Agent        string // the called agent
	Caller       string // the calling agent; "": a client
	Count        int
	FirstExample string // call chain and time of the first refusal
}

// AgentCount counts the client requests to one agent.
type AgentCount struct {
	Agent     string
	Asked     int
	Succeeded int // succeeded or partial
}

// reporter builds the Report of a team from the history of a run.
type reporter struct {
	report  Report
	chains  map[actor.CallID]string // call chain that led to a run, formatted
	fanOuts map[actor.CallID]fanOut
}

type fanOut struct {
	step  uint32
	calls int
}

func newReporter() *reporter {
	return &reporter{chains: map[actor.CallID]string{}, fanOuts: map[actor.CallID]fanOut{}}
}

func (r *reporter) begin(*Simulation) {}

func (r *reporter) fault(actor.Time, Fault, string) {}

func (r *reporter) event(now actor.Time, e *history.Event) {
	switch e.Kind {
	case history.Admit:
		chain := make([]string, 0, len(e.Chain)+1)
		for _, id := range append(slices.Clone(e.Chain), e.Actor) {
			chain = append(chain, id.String())
		}
		r.chains[e.Call] = strings.Join(chain, " → ")
		r.report.Depth = max(r.report.Depth, len(e.Chain))
	case history.Ask:
		if e.What != "call" {
			return
		}
		f := r.fanOuts[e.Parent]
		if f.step != e.Step {
			f = fanOut{step: e.Step}
		}
		f.calls++
		r.fanOuts[e.Parent] = f
		r.report.FanOut = max(r.report.FanOut, f.calls)
	case history.Answer, history.Refuse: // a call refused before it was sent has no Answer event
		if e.What == "call" && e.Reason != 0 {
			r.report.AddRefusals(RefusalCount{Reason: e.Reason, Scope: e.Scope, Agent: e.Peer.Agent, Caller: e.Actor.Agent, Count: 1,
				FirstExample: r.chains[e.Parent] + " → " + e.Peer.String() + " at " + now.Sub(Origin).String()})
		}
	}
}

// AddRefusals adds c to the entry with the same reason, scope, agent and caller.
func (r *Report) AddRefusals(c RefusalCount) {
	for i := range r.Refusals {
		if o := &r.Refusals[i]; o.Reason == c.Reason && o.Scope == c.Scope && o.Agent == c.Agent && o.Caller == c.Caller {
			o.Count += c.Count
			return
		}
	}
	r.Refusals = append(r.Refusals, c)
}

// AddAgentCount adds a to the entry of the same agent.
func (r *Report) AddAgentCount(a AgentCount) {
	for i := range r.Agents {
		if o := &r.Agents[i]; o.Agent == a.Agent {
			o.Asked += a.Asked
			o.Succeeded += a.Succeeded
			return
		}
	}
	r.Agents = append(r.Agents, a)
}

// teamReport returns the report of the team, or nil if the run has none.
func (w *Simulation) teamReport() *Report {
	if w.reporter == nil {
		return nil
	}
	r := &w.reporter.report
	for _, c := range w.clients {
		r.Asked++
		count := AgentCount{Agent: c.to.Agent, Asked: 1}
		switch {
		case c.reply == nil && c.held:
			r.Held++
		case c.reply == nil:
			r.Unanswered++
		case c.reply.Refusal != nil:
			r.Refused++
			r.AddRefusals(RefusalCount{Reason: c.reply.Refusal.Reason, Scope: c.reply.Refusal.Scope, Agent: c.to.Agent, Count: 1,
				FirstExample: fmt.Sprintf("client request to %s: %q", c.to, c.text)})
		case c.reply.Status == actor.Partial:
			r.Partial++
			count.Succeeded = 1
		default:
			r.Succeeded++
			count.Succeeded = 1
		}
		r.AddAgentCount(count)
	}
	for _, n := range w.nodes {
		for _, c := range n.cells {
			if c.stopped {
				continue
			}
			for _, a := range c.core.State().Actors {
				for _, t := range a.Turns {
					r.Unfinished = append(r.Unfinished, w.reporter.chains[t.Run]+", run "+t.Run.String())
				}
			}
		}
	}
	slices.Sort(r.Unfinished)
	return r
}
