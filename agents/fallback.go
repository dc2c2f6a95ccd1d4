// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"fmt"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/tools"
)

// fallbackAsks returns the asks for the tools that can be called in place of those that were not performed, and the
// places of these. The answers name them, so a replay does not depend on the definitions of the tools.
func fallbackAsks(asks []actor.Ask, answers []actor.Answer) (again []actor.Ask, places []int) {
	for i := range min(len(asks), len(answers)) {
		ask := asks[i]
		if ask.Name = answers[i].Refusal.Fallback(); ask.Kind == actor.AskTool && asks[i].Name != ask.Name && tools.CanStandIn(ask.Name) {
			again, places = append(again, ask), append(places, i)
		}
	}
	return again, places
}

// withFallbacks returns the answers with those to the fallback asks in their places.
func withFallbacks(asks []actor.Ask, answers []actor.Answer, again []actor.Ask, places []int, fallbacks []actor.Answer) []actor.Answer {
	answers = slices.Clone(answers)
	for n, i := range places {
		if n < len(fallbacks) {
			answers[i] = inPlaceOf(answers[i].Refusal, fallbacks[n], asks[i].Name, again[n].Name)
		}
	}
	return answers
}

// inPlaceOf returns the answer of a tool that was called because another one was not available.
func inPlaceOf(first *actor.Refusal, answer actor.Answer, name, other string) actor.Answer {
	if answer.Refusal == nil {
		answer.Warnings = append(slices.Clip(answer.Warnings), fmt.Sprintf("%s is not available (%s), so this is the result of %s", name, actor.FitText(first.Detail, summaryBytesMax), other))
		return answer
	}
	refusal := *answer.Refusal
	if refusal.Fallback() != "" { // its own one is not called
		refusal.Field = ""
	}
	refusal.Detail = actor.Refuse(refusal.Reason, "%s; then %s", actor.FitText(first.Detail, summaryBytesMax), refusal.Detail).Detail
	answer.Refusal = &refusal
	return answer
}
