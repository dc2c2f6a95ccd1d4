// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// fillPrompt returns a prompt with {{user}}, {{session}} and {{date}} replaced: the user for whom the run works, its
// session, and the day on which the message was accepted, in UTC. All of them are recorded with the
// message, so a turn that is repeated on another day has the same prompt.
func fillPrompt(prompt string, request *actor.Begin) string {
	if !strings.Contains(prompt, "{{") {
		return prompt
	}
	day, _, _ := strings.Cut(runs.FormatTime(request.At), "T")
	return strings.NewReplacer("{{user}}", request.Call.Principal, "{{session}}", request.Call.To.Key, "{{date}}", day).Replace(prompt)
}
