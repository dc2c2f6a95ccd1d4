// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"fmt"
	"slices"

	"github.com/troupe-run/troupe/actor"
)

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
