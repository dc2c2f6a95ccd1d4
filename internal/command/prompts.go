// SPDX-License-Identifier: Apache-2.0

package command

import (
	"strconv"

	"github.com/troupe-run/troupe/actor"
)

// PromptsMax is the maximum number of recorded prompts of a page.
const PromptsMax = 100

type (
	// PromptsQuery asks for the recorded requests of a run to models that follow the one numbered After. It needs
	// ingress.ScopeOperator.
	PromptsQuery struct {
		Run   actor.CallID
		After uint64 // 0: from the first one
		Limit int
	}
	// Prompts is a page of them, in the order in which they ended.
	Prompts struct {
		Run     actor.CallID
		Records string // what is recorded now: off, failed or all
		All     []Prompt
		More    bool // there are others
	}
	// Prompt is a recorded request with its outcome.
	Prompt struct {
		Step uint64 // number in the run, from 1
		JSON []byte // an object with members; see prompts.Record
	}
)

func (PromptsQuery) query()          {}
func (PromptsQuery) returns(Prompts) {}
func (Prompts) result()              {}

// AppendJSON appends the page as JSON.
func (p *Prompts) AppendJSON(b []byte) []byte {
	b = append(append(b, `{"run_id":"`...), p.Run.String()...)
	b = append(append(b, `","recording":"`...), p.Records...)
	b = append(b, `","prompts":[`...)
	for i, one := range p.All {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(append(b, `{"step":`...), one.Step, 10)
		b = append(append(b, ','), one.JSON[1:]...)
	}
	b = append(b, ']')
	if n := len(p.All); p.More && n > 0 {
		b = strconv.AppendUint(append(b, `,"next_after":`...), p.All[n-1].Step, 10)
	}
	return append(b, '}')
}
