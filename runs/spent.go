// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"cmp"
	"slices"

	"github.com/troupe-run/troupe/actor"
)

// Spent is what a run itself used, by model in the order of their names: the sum of their usages is Record.Usage.
type Spent []Spending

// Spending is the use of one model by a run. The usage that an external agent reports of itself has no model.
type Spending struct {
	Model      string // name in the configuration; "": claimed by an external agent; SpentOther: of several models
	Answers    uint64 // complete answers
	Unmeasured uint64 // those of them whose model reported no usage
	Usage      Usage
}

// Bounds of Spent. The models beyond the maximum share the last place.
const (
	SpentMax   = 16
	SpentOther = "other models"
)

// Add returns s with one more answer.
func (s Spent) Add(model string, u Usage) Spent {
	model, _ = cutText(model, NameBytesMax)
	at, found := s.find(model)
	if !found && len(s) >= SpentMax-1 {
		model = SpentOther
		at, found = s.find(model)
	}
	all := slices.Clone(s) // shared with summaries
	if !found {
		all = slices.Insert(all, at, Spending{Model: model})
	}
	one := Spending{Answers: 1, Usage: u}
	if u == (Usage{}) {
		one.Unmeasured = 1
	}
	all[at].Add(&one)
	return all
}

func (s Spent) find(model string) (at int, found bool) {
	return slices.BinarySearchFunc(s, model, func(one Spending, model string) int { return cmp.Compare(one.Model, model) })
}

// Add adds the counts of another one.
func (s *Spending) Add(o *Spending) {
	s.Answers, s.Unmeasured, s.Usage = s.Answers+o.Answers, s.Unmeasured+o.Unmeasured, s.Usage.Add(o.Usage)
}

// addAnswer adds the answer that an event shows.
func (s Spent) addAnswer(e *Event) Spent {
	switch {
	case e.Type == LLMCallDone && e.Status != actor.Failed:
		return s.Add(e.Name, e.Usage)
	case e.Type == AgentInvokeDone && e.Usage != (Usage{}):
		return s.Add("", e.Usage)
	}
	return s
}
