// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/tools"
)

// stepsPerPrompt is the maximum number of actions for a prompt of a model and the calls of its answer: each may be made
// in place of another one.
const stepsPerPrompt = 3 + 2*tools.PipelineStepsMax

// toolRuns are the tool calls of one action that need further calls: of a fallback if the tool is not available, or of
// the steps of a pipeline. The recorded answers say which calls these are, so a replay does not depend on the
// definitions of the tools.
type toolRuns struct {
	answers []actor.Answer
	open    []*toolRun
}

// toolRun is a call that needs further ones.
type toolRun struct {
	place    int            // of the ask and its answer
	ask      actor.Ask      // as the agent has made it
	current  actor.Ask      // the last call
	away     *actor.Refusal // of the tool in whose place the current one is called; nil: it is called for itself
	awayName string
	answer   actor.Answer

	steps    []tools.PipelineStep // nil: it is no pipeline
	results  []jsontext.Value
	warnings []string
}

func newToolRuns(asks []actor.Ask, answers []actor.Answer) toolRuns {
	r := toolRuns{answers: answers}
	for i := range min(len(asks), len(answers)) {
		if asks[i].Kind != actor.AskTool || !tools.CanStandIn(asks[i].Name) {
			continue
		}
		if _, planned := tools.ReadPlan(&answers[i]); planned || answers[i].Refusal.Fallback() != "" {
			r.open = append(r.open, &toolRun{place: i, ask: asks[i], current: asks[i], answer: answers[i]})
		}
	}
	if len(r.open) > 0 {
		r.answers = slices.Clone(answers)
	}
	return r
}

// asks returns the next calls; nil: there are none.
func (r *toolRuns) asks() (all []actor.Ask) {
	r.open = slices.DeleteFunc(r.open, func(run *toolRun) bool {
		more := run.next()
		if more {
			all = append(all, run.current)
		} else {
			r.answers[run.place] = run.answer
		}
		return !more
	})
	return all
}

// take takes the answers to the calls that asks has returned.
func (r *toolRuns) take(answers []actor.Answer) {
	for i, run := range r.open {
		if i >= len(answers) {
			continue
		}
		run.answer = answers[i]
		if run.away != nil {
			run.answer = inPlaceOf(run.away, run.answer, run.awayName, run.current.Name)
			run.away = nil
		}
	}
}

// next sets the next call, or the answer of the whole if there is none.
func (r *toolRun) next() bool {
	if other := r.answer.Refusal.Fallback(); other != r.current.Name && tools.CanStandIn(other) {
		r.away, r.awayName, r.current.Name = r.answer.Refusal, r.current.Name, other
		return true
	}
	steps, planned := tools.ReadPlan(&r.answer)
	switch {
	case planned && r.steps == nil:
		r.steps = steps
	case r.steps == nil:
		return false
	case r.answer.Refusal != nil:
		return r.fail(r.answer.Refusal)
	case planned:
		return r.fail(actor.Refuse(actor.Rejected, "it is a pipeline itself"))
	default:
		r.warnings = append(r.warnings, r.answer.Warnings...)
		r.results = append(r.results, tools.ResultValue(&r.answer))
	}
	n := len(r.results)
	if n == len(r.steps) {
		r.answer.Warnings = r.warnings
		return false
	}
	r.current = r.ask
	r.current.Name = r.steps[n].Tool
	if !tools.CanStandIn(r.current.Name) {
		return r.fail(actor.Refuse(actor.Rejected, "it is a tool of this program"))
	}
	args, err := r.steps[n].Arguments(inputOf(r.ask), r.results)
	if err != nil {
		return r.fail(actor.Refuse(actor.Invalid, "%v", err))
	}
	r.current.Parts = []actor.Part{{Media: actor.MediaJSON, Bytes: args}}
	return true
}

// fail ends a pipeline with the failure of a step.
func (r *toolRun) fail(refusal *actor.Refusal) bool {
	n := len(r.results)
	failed := *refusal
	failed.Field = ""
	failed.Detail = actor.Refuse(failed.Reason, "%s: step %d (%s): %s", r.ask.Name, n+1, r.steps[n].Tool, refusal.Detail).Detail
	r.answer = actor.Answer{Refusal: &failed}
	return false
}
