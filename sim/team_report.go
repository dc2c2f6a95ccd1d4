// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
)

// Report is what became of a team in one world.
type Report struct {
	Asked      int // clients that asked
	Succeeded  int
	Partial    int
	Refused    int // that were told no, the last time they asked
	Held       int // that were told to come back for the answer: their run waited for a person
	Unanswered int // that gave up, or were cut off, without an answer
	Depth      int // of the deepest call that was taken
	FanOut     int // most calls made at once
	Refusals   []RefusalCount
	// Unfinished are the runs that had not ended when the world was at rest.
	Unfinished []string
	Agents     []AgentCount
}

// RefusalCount is how often calls were refused in one way.
type RefusalCount struct {
	Reason       actor.Reason
	Scope        actor.Scope
	Agent        string // that was called
	Caller       string // the calling agent; "": a client
	Count        int
	FirstExample string // the chain of the first of them, and when it was
}

// AgentCount is what clients got of one agent.
type AgentCount struct {
	Agent     string
	Asked     int
	Succeeded int // or partial
}

// reporter follows the history of a world that a team plays in.
type reporter struct {
	report  Report
	chains  map[actor.CallID]string // the way to a run
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
		way := make([]string, 0, len(e.Chain)+1)
		for _, id := range append(slices.Clone(e.Chain), e.Actor) {
			way = append(way, id.String())
		}
		r.chains[e.Call] = strings.Join(way, " → ")
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
	case history.Answer, history.Refuse: // a call that is refused before it is made has no answer
		if e.What == "call" && e.Reason != 0 {
			r.report.AddRefusals(RefusalCount{Reason: e.Reason, Scope: e.Scope, Agent: e.Peer.Agent, Caller: e.Actor.Agent, Count: 1,
				FirstExample: r.chains[e.Parent] + " → " + e.Peer.String() + " at " + now.Sub(Origin).String()})
		}
	}
}

// AddRefusals counts refusals of one way with those before.
func (r *Report) AddRefusals(c RefusalCount) {
	for i := range r.Refusals {
		if o := &r.Refusals[i]; o.Reason == c.Reason && o.Scope == c.Scope && o.Agent == c.Agent && o.Caller == c.Caller {
			o.Count += c.Count
			return
		}
	}
	r.Refusals = append(r.Refusals, c)
}

// AddAgentCount counts what clients got of an agent with what they got before.
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

// teamReport is what became of the team.
func (w *Simulation) teamReport() *Report {
	if w.reporter == nil {
		return nil
	}
	r := &w.reporter.report
	for _, c := range w.clients {
		r.Asked++
		one := AgentCount{Agent: c.to.Agent, Asked: 1}
		switch {
		case c.reply == nil && c.held:
			r.Held++
		case c.reply == nil:
			r.Unanswered++
		case c.reply.Refusal != nil:
			r.Refused++
			r.AddRefusals(RefusalCount{Reason: c.reply.Refusal.Reason, Scope: c.reply.Refusal.Scope, Agent: c.to.Agent, Count: 1,
				FirstExample: fmt.Sprintf("%s is asked %q", c.to, c.text)})
		case c.reply.Status == actor.Partial:
			r.Partial++
			one.Succeeded = 1
		default:
			r.Succeeded++
			one.Succeeded = 1
		}
		r.AddAgentCount(one)
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
