// SPDX-License-Identifier: Apache-2.0

package troupe

import (
	"context"
	"encoding/json"
	"strconv"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
)

// Step is one action of an agent in a run, between two states of its turn.
type Step struct {
	N             int // from 1
	AnswersBefore int // number of answers that the turn had
	BytesBefore   int // size of the message and these answers
	AnswersAfter  int // once all actions are answered
	BytesAfter    int
	Actions       []StepAction
}

// StepAction is what an agent asked for, and the answer.
type StepAction struct {
	Action     string          // RequestToolCall, RequestMemorySearch, …; Complete or Fail at the end
	Parameters json.RawMessage // an object
	Prompt     json.RawMessage // what a model was sent; nil for other actions
	Answer     string
	Error      string
}

// StepPage is a part of the steps of a run.
type StepPage struct {
	Agent string // actor of the run
	All   []Step
	Note  string // reason why prompts of models are missing; empty if none are
	Next  string // cursor of the next page; empty if this is the last one
}

// Inspect returns steps of a run, the first ones first. Prompts are made again from the definition of the agent and the recorded
// answers: nothing is called. Agents that are programs have none. The records of an ended run go with a later
// snapshot of its actor; then the call is refused with CodeRejected. Its option is User.
func (s *Server) Inspect(ctx context.Context, run string, p Page, opts ...Option) (StepPage, error) {
	o, err := collect("Inspect", opts, optionUser)
	if err != nil {
		return StepPage{}, err
	}
	id, err := actor.ParseCallID(run)
	if err != nil {
		return StepPage{}, invalid("run_id", "%v", err)
	}
	q := command.StepsQuery{Run: id, Prompts: true}
	if q.Limit, err = p.limit(); err != nil {
		return StepPage{}, err
	}
	if p.Cursor != "" {
		if q.After, err = strconv.ParseUint(p.Cursor, 10, 64); err != nil {
			return StepPage{}, invalid("cursor", "Cursor: got %.80q, want StepPage.Next of the page before", p.Cursor)
		}
	}
	by := o.principal()
	by.Scopes = []string{string(ingress.ScopeOperator)}
	found, err := s.client(by).Steps(ctx, q)
	if err != nil {
		return StepPage{}, s.failed(err)
	}
	out := StepPage{Agent: found.Agent, Note: found.Note}
	for _, f := range found.All {
		step := Step{f.N, f.Before.Answers, f.Before.Bytes, f.After.Answers, f.After.Bytes, nil}
		for _, a := range f.Actions {
			step.Actions = append(step.Actions, StepAction{a.Action, json.RawMessage(a.Parameters), json.RawMessage(a.Prompt), a.Answer, a.Error})
		}
		out.All = append(out.All, step)
	}
	if found.Next != 0 {
		out.Next = strconv.FormatUint(found.Next, 10)
	}
	return out, nil
}
