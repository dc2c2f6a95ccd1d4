// SPDX-License-Identifier: Apache-2.0

package tools

import "github.com/troupe-run/troupe/actor"

// Names of the tools with which an orchestrator enters a decision in the record of its run. They do nothing
// else: the input is what is recorded, and the events of the run show it.
const (
	RecordRoute = "troupe.route" // what a message was understood as, with the scores
	RecordJoin  = "troupe.join"  // how results were joined, with their conflicts
)

func record(name, description string) Tool {
	return Tool{
		Name:        name,
		Description: description,
		Schema:      `{"type":"object"}`,
		Idempotent:  true,
		ContextHandler: func([]byte, ExecutionContext) (actor.Ask, *Result) {
			result := JSON([]byte(`{"recorded":true}`))
			return actor.Ask{}, &result
		},
	}
}
