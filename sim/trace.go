// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/history"
)

// traceWriter writes the history of a run as lines of JSON for an external checker.
type traceWriter struct {
	to  io.Writer
	buf []byte
}

func (t *traceWriter) begin(w *Simulation) {
	l := w.specLimits()
	h := history.TraceHeader{Source: fmt.Sprintf("sim seed %d", w.seed), Limits: history.TraceLimits{
		AgentCallDepthMax: l.AgentCallDepthMax, AgentConcurrentCallsMax: l.AgentConcurrentCallsMax,
		MaxPendingPerActor: l.MaxPendingPerActor, AgentCallTimeoutMax: l.AgentCallTimeoutMax}}
	for _, name := range slices.Sorted(maps.Keys(l.Agents)) {
		a := l.Agents[name]
		h.Agents = append(h.Agents, history.TraceAgent{Name: name, Volatile: a.Volatile, Interleaved: a.Interleaved, ByActor: a.ByActor})
	}
	t.write(h.AppendTo(t.buf[:0]))
}

func (t *traceWriter) event(_ actor.Time, e *history.Event) { t.write(e.AppendJSON(t.buf[:0])) }

func (t *traceWriter) fault(actor.Time, Fault, string) {}

func (t *traceWriter) write(line []byte) {
	t.to.Write(line) //nolint:errcheck // the owner of the writer checks its errors
	t.buf = line
}

// A traceChecker encodes the first part of a history and decodes it again. Each line
// MUST represent its event.
type traceChecker struct {
	w     *Simulation
	lines int
}

// One in traceCheckEvery seeds has a traceChecker. It checks the first
// traceCheckLinesMax events.
const (
	traceCheckEvery    = 16
	traceCheckLinesMax = 400
)

func (t *traceChecker) begin(w *Simulation) {
	var b bytes.Buffer
	(&traceWriter{to: &b}).begin(w)
	var h history.TraceHeader
	if err := json.Unmarshal(b.Bytes(), &h); err != nil || h.Trace != history.TraceVersion || len(h.Agents) != len(w.specLimits().Agents) {
		w.fail(CodecRoundTrip, fmt.Sprintf("trace header %s does not match the run, %v", b.Bytes(), err))
	}
}

func (t *traceChecker) event(_ actor.Time, e *history.Event) {
	if t.lines++; t.lines > traceCheckLinesMax {
		return
	}
	line := e.AppendJSON(nil)
	var is struct {
		Kind, Actor, Call, What, Status, Reason string
		Chain                                   []string
		N                                       uint64
	}
	name := func(zero bool, text fmt.Stringer) string {
		if zero {
			return ""
		}
		return text.String()
	}
	err := json.Unmarshal(line, &is)
	same := is.Kind == e.Kind.String() && is.Actor == name(e.Actor == actor.ID{}, e.Actor) && is.Call == name(e.Call.IsZero(), e.Call) &&
		is.Status == name(e.Status == 0, e.Status) && is.Reason == name(e.Reason == 0, e.Reason) && is.What == e.What && len(is.Chain) == len(e.Chain) && is.N == e.N
	if err != nil || !same || bytes.Count(line, []byte("\n")) != 1 {
		t.w.fail(CodecRoundTrip, fmt.Sprintf("trace line %s does not match the event %s, %v", line, e, err))
	}
}

func (t *traceChecker) fault(actor.Time, Fault, string) {}

// Upper bounds of a plain run.
const (
	plainCalls = 6
	plainSteps = 250
)

// makePlain reduces the plan to what tla/Trace.tla can check: equal clocks, only
// journaled agents with serial turns, and small bounds.
func (p *Plan) makePlain(c Entropy) {
	for i := range p.Agents {
		p.Agents[i].Durability, p.Agents[i].Turns = actor.Journaled, actor.Serial
	}
	clear(p.Drift)
	clear(p.Offset)
	for _, f := range []Fault{ClockSkew, ClockAhead, ClockBehind, ClockDrift, AgentNotFound, AgentBusy, AgentPanic, ClientDuplicate, LoadPoison, LoadRetryStorm} {
		p.Odds[f] = 0
	}
	p.Agents = p.Agents[:4]
	p.Targets = len(p.Agents)
	p.Keys, p.Namespaces, p.Plain = 1, 1, true
	p.Calls = min(p.Calls, plainCalls)
	p.ArrivalInterval, p.FaultInterval = 400*time.Millisecond, 300*time.Millisecond // short, so that calls are still open when a node crashes
	if c.Int(3) > 0 {
		p.Odds[NodeCrash] = oddsScale / 4
	}
	if p.Limits.MaxPendingPerActor = 8; c.Int(2) == 1 {
		p.Limits.MaxPendingPerActor = 1
	}
	if p.Limits.AgentCallDepthMax = 8; c.Int(2) == 1 {
		p.Limits.AgentCallDepthMax = 2
	}
	p.Limits.AgentConcurrentCallsMax = p.Limits.AgentCallDepthMax / 2
	p.Limits.StrikesMax = dispatcher.DefaultLimits().StrikesMax // Calls.tla has no action for giving up a call before it begins
}
