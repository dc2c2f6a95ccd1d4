// SPDX-License-Identifier: Apache-2.0

package command

import (
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
)

// Bounds of a page of steps. Its last step may exceed the bytes.
const (
	StepsMax      = 200
	stepsBytesMax = 4 << 20
)

type (
	// StepsQuery asks for the steps of a run after the one numbered After. It needs ingress.ScopeOperator.
	StepsQuery struct {
		Run     actor.CallID
		After   uint64 // 0: from the first one
		Limit   int
		Prompts bool // also what models were sent
	}
	// Steps is a page of a run as its agent has seen it, step by step.
	Steps struct {
		Run   string `json:"run_id"`
		Agent string `json:"agent"`
		All   []Step `json:"steps"`
		Note  string `json:"note,omitzero"`       // why prompts of models are missing; "" if none are
		Next  uint64 `json:"next_after,omitzero"` // number to continue after; 0: these are the last ones
	}
	// Step is one action of an agent, between two states of its turn.
	Step struct {
		N       int          `json:"n"` // from 1
		Before  StepState    `json:"state_before"`
		Actions []StepAction `json:"actions"`
		After   StepState    `json:"state_after"` // once all actions are answered
	}
	// StepState is what an agent has gathered in a turn.
	StepState struct {
		Answers int `json:"answers"`
		Bytes   int `json:"bytes"` // of the request and the answers
	}
	// StepAction is an action by its name, with its parameters and its answer.
	StepAction struct {
		Action     string         `json:"action"`
		Parameters jsontext.Value `json:"parameters"`
		Prompt     jsontext.Value `json:"prompt,omitzero"` // of a model
		Answer     string         `json:"answer,omitzero"`
		Error      string         `json:"error,omitzero"`
	}
)

func (StepsQuery) query()        {}
func (StepsQuery) returns(Steps) {}
func (Steps) result()            {}

// Cut leaves the page of the steps after the one of a number.
func (s *Steps) Cut(after uint64, limit int) {
	s.All = s.All[min(after, uint64(len(s.All))):]
	bytes := 0
	for i := range s.All {
		if i == limit || bytes > stepsBytesMax {
			s.All, s.Next = s.All[:i], after+uint64(i)
			return
		}
		for _, a := range s.All[i].Actions {
			bytes += len(a.Parameters) + len(a.Prompt) + len(a.Answer) + len(a.Error)
		}
	}
}
