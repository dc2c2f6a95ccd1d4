// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runtime"
)

// checkMeasures compares the figures for statistics with the operations of the step.
func (s *judgedStep) checkMeasures() {
	var got, want [runtime.MeasureRoute + 1]int
	type endedRun struct {
		agent  string
		reason actor.Reason
	}
	var gotRuns, wantRuns []endedRun
	for i := range s.ready.Measures {
		m := &s.ready.Measures[i]
		if got[m.Kind]++; m.Kind == runtime.MeasureRun {
			gotRuns = append(gotRuns, endedRun{m.Name, m.Reason})
		}
		if m.Took < 0 {
			s.fail("measures a duration of %v", m.Took)
		}
	}
	for i := range s.ready.Events {
		switch e := &s.ready.Events[i]; {
		case e.Kind == history.Reply && !actor.IsSystemAgent(e.Actor.Agent):
			want[runtime.MeasureRun]++
			wantRuns = append(wantRuns, endedRun{e.Actor.Agent, e.Reason})
		case e.Kind == history.Cancel, e.Kind == history.Answer && e.What == "call":
			want[runtime.MeasureCall]++
		case e.Kind == history.Answer && e.What == "model":
			want[runtime.MeasureModel]++
		case e.Kind == history.Answer && e.What == "wait":
			want[runtime.MeasureWait]++
		}
	}
	// A tool may be measured as a call too. The tokens of a claim are those of the agent's answer, whose event is judged. A
	// decision of an orchestrator is a tool call with an immediate result.
	got[runtime.MeasureTool], got[runtime.MeasureOutstanding], got[runtime.MeasureClaim], got[runtime.MeasureRoute] = 0, 0, 0, 0
	if got != want || !slices.Equal(gotRuns, wantRuns) {
		s.fail("measures %v %v, want %v %v", got, gotRuns, want, wantRuns)
	}
}
