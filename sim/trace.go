// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/internal/must"
)

// tracer writes a world's history down, for who judges it elsewhere.
type tracer struct {
	to  io.Writer
	buf []byte
}

func (t *tracer) begin(w *World) {
	l := w.limits()
	h := history.TraceHeader{Source: fmt.Sprintf("sim seed %d", w.seed), Limits: history.TraceLimits{
		AgentCallDepthMax: l.AgentCallDepthMax, AgentConcurrentCallsMax: l.AgentConcurrentCallsMax,
		MaxPendingPerActor: l.MaxPendingPerActor, AgentCallTimeoutMax: l.AgentCallTimeoutMax}}
	for _, name := range slices.Sorted(maps.Keys(l.Agents)) {
		a := l.Agents[name]
		h.Agents = append(h.Agents, history.TraceAgent{Name: name, Volatile: a.Volatile, Interleaved: a.Interleaved, ByActor: a.ByActor})
	}
	t.write(h.AppendTo(t.buf[:0]))
}

func (t *tracer) event(_ actor.Time, e *history.Event) { t.write(e.AppendJSON(t.buf[:0])) }

func (t *tracer) fault(actor.Time, Fault, string) {}

func (t *tracer) write(line []byte) {
	must.Do(t.to.Write(line))
	t.buf = line
}

// A plain world has so many clients and steps at most.
const (
	plainCalls = 6
	plainSteps = 250
)

// plain makes a plan one that tla/Trace.tla can judge: all clocks tell one time,
// agents are journaled and keep their turn; and there is little of everything.
func (p *Plan) plain(c Chooser) {
	for i := range p.Agents {
		p.Agents[i].Durability, p.Agents[i].Turns = actor.Journaled, actor.Serial
	}
	clear(p.Drift)
	clear(p.Offset)
	for _, f := range []Fault{ClockSkew, ClockAhead, ClockBehind, ClockDrift, AgentBusy, AgentPanic, ClientDuplicate, LoadPoison, LoadRetryStorm} {
		p.Odds[f] = 0
	}
	p.Agents = p.Agents[:4]
	p.Targets = len(p.Agents)
	p.Keys, p.Plain = 1, true
	p.Calls = min(p.Calls, plainCalls)
	p.Gap = 400 * time.Millisecond // so that calls are open when a node dies
	if c.Int(3) > 0 {
		p.Odds[NodeCrash] = per / 2
	}
	if p.Limits.MaxPendingPerActor = 8; c.Int(2) == 1 {
		p.Limits.MaxPendingPerActor = 1
	}
	if p.Limits.AgentCallDepthMax = 8; c.Int(2) == 1 {
		p.Limits.AgentCallDepthMax = 2
	}
	p.Limits.AgentConcurrentCallsMax = p.Limits.AgentCallDepthMax / 2
	p.Limits.StrikesMax = dispatcher.DefaultLimits().StrikesMax // Calls has no word for what is given up before it begins
}
