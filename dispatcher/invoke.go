// SPDX-License-Identifier: Apache-2.0

package dispatcher

import "github.com/troupe-run/troupe/actor"

// AgentDispatcher turns a wish to call an agent into the ask that a turn makes.
// It stands where values become effects, so that tools are testable without a
// runtime; the turn waits, not the function.
type AgentDispatcher interface {
	InvokeWithTimeout(target, operation string, parts []actor.Part, timeout actor.Duration) actor.Ask
}

// Asks is the AgentDispatcher of the runtime: the ask goes out as a value.
type Asks struct{}

// InvokeWithTimeout is a call to target, which a turn may make and wait for.
func (Asks) InvokeWithTimeout(target, operation string, parts []actor.Part, timeout actor.Duration) actor.Ask {
	return actor.Ask{Kind: actor.AskCall, Name: target, Operation: operation, Parts: parts, Timeout: timeout}
}
