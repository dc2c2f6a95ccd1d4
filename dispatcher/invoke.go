// SPDX-License-Identifier: Apache-2.0

package dispatcher

import "github.com/troupe-run/troupe/actor"

// AgentDispatcher converts the arguments of a call to an agent into an ask of a turn.
// It separates tools from effects, so tools are testable without a runtime. The turn
// waits for the answer; InvokeWithTimeout does not.
type AgentDispatcher interface {
	InvokeWithTimeout(target, operation string, parts []actor.Part, timeout actor.Duration) actor.Ask
}

// Asks is the AgentDispatcher of the runtime. It performs no effect.
type Asks struct{}

// InvokeWithTimeout returns the ask of a waiting call to target.
func (Asks) InvokeWithTimeout(target, operation string, parts []actor.Part, timeout actor.Duration) actor.Ask {
	return actor.Ask{Kind: actor.AskCall, Name: target, Operation: operation, Parts: parts, Timeout: timeout}
}
