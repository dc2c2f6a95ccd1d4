// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/contract"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

// Measure is one figure for the driver's statistics.
type Measure struct {
	Kind   MeasureKind
	Name   string          // agent, tool or model; empty for calls and waits
	Took   actor.Duration  // time from the request to the answer or end
	Reason actor.Reason    // 0 means success
	Change int             // of MeasureOutstanding: change of the agent's unanswered calls
	Usage  actor.Usage     // of MeasureClaim: tokens that an external agent reported
	Route  *contract.Route // of MeasureRoute
}

// MeasureKind is the kind of a Measure.
type MeasureKind uint8

// The kinds of measures. An ask counts with the time and the reason that its turn
// saw. A tool that makes a call counts as both.
const (
	MeasureRun         MeasureKind = iota + 1 // ended run of an agent
	MeasureCall                               // answered or cancelled call
	MeasureTool                               // answered or refused tool call
	MeasureModel                              // answered request to a model
	MeasureWait                               // wait that was signalled or expired
	MeasureOutstanding                        // change of an agent's unanswered calls
	MeasureClaim                              // tokens in the answer of an external agent
	MeasureRoute                              // decision of an orchestrator, with its agent as Name
)

// UnknownTool is the name under which calls of unregistered tools are measured. It
// is not a valid name of a tool.
const UnknownTool = "(unknown)"

func (v *env) measure(m Measure) { v.ready.Measures = append(v.ready.Measures, m) }

// measureCall measures a call that was answered or cancelled.
func (v *env) measureCall(a *store.Asked) {
	v.measure(Measure{Kind: MeasureCall, Took: max(v.now.Sub(a.Stamp), 0)})
}

// measureAnswer measures an ask that was answered.
func (v *env) measureAnswer(a *store.Asked, refusal *actor.Refusal) {
	if a.IsCall() {
		v.measureCall(a)
	}
	m := Measure{Name: a.Ask.Name, Took: max(v.now.Sub(a.Stamp), 0)}
	if refusal != nil {
		m.Reason = refusal.Reason
	}
	switch a.Ask.Kind {
	case actor.AskTool:
		m.Kind = MeasureTool
	case actor.AskModel:
		m.Kind = MeasureModel
	case actor.AskWait:
		m.Kind, m.Name = MeasureWait, ""
	default:
		return
	}
	v.measure(m)
}

// measurePlanned measures a tool that was answered before it was performed: the
// request was invalid, its call was refused, or its result is immediate.
func (v *env) measurePlanned(agent string, ask *actor.Ask, answer *actor.Answer) {
	if ask.Kind != actor.AskTool {
		return
	}
	m := Measure{Kind: MeasureTool, Name: ask.Name}
	if _, ok := v.tools.Tool(ask.Name); !ok {
		m.Name = UnknownTool
	}
	if answer.Refusal != nil {
		m.Reason = answer.Refusal.Reason
	}
	v.measure(m)
	if ask.Name == tools.RecordRoute && answer.Refusal == nil {
		if route, ok := contract.ReadRoute(inlineBytes(ask.Parts)); ok {
			v.measure(Measure{Kind: MeasureRoute, Name: agent, Route: &route})
		}
	}
}

// measureRun measures an ended run, unless its agent is a part of the runtime.
func (v *env) measureRun(agent string, run *store.Run, reply *actor.Reply) {
	if actor.IsSystemAgent(agent) {
		return
	}
	m := Measure{Kind: MeasureRun, Name: agent, Took: max(v.now.Sub(run.At), 0)}
	if reply.Refusal != nil {
		m.Reason = reply.Refusal.Reason
	}
	v.measure(m)
}

// measureOutstanding measures a change of an agent's unanswered calls. A call within
// the cell begins and ends in one step, so the latest changes of the step are
// searched for one to add it to.
func (v *env) measureOutstanding(agent string, change int) {
	latest := v.ready.Measures[max(len(v.ready.Measures)-8, 0):]
	for i := range latest {
		if m := &latest[i]; m.Kind == MeasureOutstanding && m.Name == agent {
			m.Change += change
			return
		}
	}
	v.measure(Measure{Kind: MeasureOutstanding, Name: agent, Change: change})
}
