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
	Asked     int // clients that asked
	Succeeded int
	Partial   int
	Refused   int // that were told no, the last time they asked
	Held      int // that were told to come back for the answer: their run waited for a person
	Silent    int // that gave up, or were cut off, without an answer
	Depth     int // of the deepest call that was taken
	FanOut    int // most calls made at once
	Refusals  []RefusalCount
	// Unfinished are the runs that had not ended when the world was at rest.
	Unfinished []string
	Agents     []AgentCount
}

// RefusalCount is how often calls were refused in one way.
type RefusalCount struct {
	Reason actor.Reason
	Scope  actor.Scope
	Agent  string // that was called
	Caller string // the calling agent; "": a client
	Times  int
	First  string // the chain of the first of them, and when it was
}

// AgentCount is what clients got of one agent.
type AgentCount struct {
	Agent     string
	Asked     int
	Succeeded int // or partial
}

// reporter follows the history of a world that a team plays in.
type reporter struct {
	r     Report
	chain map[actor.CallID]string // the way to a run
	fan   map[actor.CallID]fan
}

type fan struct {
	step  uint32
	calls int
}

func newReporter() *reporter {
	return &reporter{chain: map[actor.CallID]string{}, fan: map[actor.CallID]fan{}}
}

func (r *reporter) begin(*World) {}

func (r *reporter) fault(actor.Time, Fault, string) {}

func (r *reporter) event(now actor.Time, e *history.Event) {
	switch e.Kind {
	case history.Admit:
		way := make([]string, 0, len(e.Chain)+1)
		for _, id := range append(slices.Clone(e.Chain), e.Actor) {
			way = append(way, id.String())
		}
		r.chain[e.Call] = strings.Join(way, " → ")
		r.r.Depth = max(r.r.Depth, len(e.Chain))
	case history.Ask:
		if e.What != "call" {
			return
		}
		f := r.fan[e.Parent]
		if f.step != e.Step {
			f = fan{step: e.Step}
		}
		f.calls++
		r.fan[e.Parent] = f
		r.r.FanOut = max(r.r.FanOut, f.calls)
	case history.Answer, history.Refuse: // a call that is refused before it is made has no answer
		if e.What == "call" && e.Reason != 0 {
			r.r.Refuse(RefusalCount{Reason: e.Reason, Scope: e.Scope, Agent: e.Peer.Agent, Caller: e.Actor.Agent, Times: 1,
				First: r.chain[e.Parent] + " → " + e.Peer.String() + " at " + now.Sub(Origin).String()})
		}
	}
}

// Refuse counts refusals of one way with those before.
func (r *Report) Refuse(c RefusalCount) {
	for i := range r.Refusals {
		if o := &r.Refusals[i]; o.Reason == c.Reason && o.Scope == c.Scope && o.Agent == c.Agent && o.Caller == c.Caller {
			o.Times += c.Times
			return
		}
	}
	r.Refusals = append(r.Refusals, c)
}

// Count counts what clients got of an agent with what they got before.
func (r *Report) Count(a AgentCount) {
	for i := range r.Agents {
		if o := &r.Agents[i]; o.Agent == a.Agent {
			o.Asked += a.Asked
			o.Succeeded += a.Succeeded
			return
		}
	}
	r.Agents = append(r.Agents, a)
}

// report is what became of the team.
func (w *World) report() *Report {
	if w.reporter == nil {
		return nil
	}
	r := &w.reporter.r
	for _, c := range w.clients {
		r.Asked++
		one := AgentCount{Agent: c.to.Agent, Asked: 1}
		switch {
		case c.reply == nil && c.held:
			r.Held++
		case c.reply == nil:
			r.Silent++
		case c.reply.Refusal != nil:
			r.Refused++
			r.Refuse(RefusalCount{Reason: c.reply.Refusal.Reason, Scope: c.reply.Refusal.Scope, Agent: c.to.Agent, Times: 1,
				First: fmt.Sprintf("%s is asked %q", c.to, c.text)})
		case c.reply.Status == actor.Partial:
			r.Partial++
			one.Succeeded = 1
		default:
			r.Succeeded++
			one.Succeeded = 1
		}
		r.Count(one)
	}
	for _, n := range w.nodes {
		for _, c := range n.cells {
			if c.gone {
				continue
			}
			for _, a := range c.core.State().Actors {
				for _, t := range a.Turns {
					r.Unfinished = append(r.Unfinished, w.reporter.chain[t.Run]+", run "+t.Run.String())
				}
			}
		}
	}
	slices.Sort(r.Unfinished)
	return r
}
