// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"slices"

	"github.com/troupe-run/troupe/actor"
)

// Dispatcher turns the wish to call an agent into the ask that a turn makes. In
// the runtime it is a dispatcher.AgentDispatcher.
type Dispatcher interface {
	InvokeWithTimeout(target, operation string, parts []actor.Part, timeout actor.Duration) actor.Ask
}

// ExecutionContext is who asks for a tool: what the runtime knows of the turn,
// and no agent can forge.
type ExecutionContext struct {
	AgentID    string
	ProjectID  string
	CallDepth  int
	CallChain  []string       // the actors above, oldest first, without the one that asks
	Call       actor.Call     // the call that the turn answers
	Left       actor.Duration // of the turn's time
	Dispatcher Dispatcher     // nil where no agent can be called
}

// NewContext is the context of a turn that answers call and has left to go. It
// is made here and nowhere else, so that no place can forget a wire.
func NewContext(call actor.Call, left actor.Duration, dispatcher Dispatcher) ExecutionContext {
	return ExecutionContext{
		AgentID:    call.To.Agent,
		ProjectID:  call.Project,
		CallDepth:  call.Depth(),
		CallChain:  chainOf(call),
		Call:       call,
		Left:       left,
		Dispatcher: dispatcher,
	}
}

func chainOf(call actor.Call) []string {
	chain := make([]string, 0, len(call.Chain))
	for _, id := range call.Chain {
		chain = append(chain, id.String())
	}
	return chain
}

// Check finds the wire that was cut: a context that does not say what its call says.
func (ec *ExecutionContext) Check() *actor.Refusal {
	cut := func(wire string) *actor.Refusal {
		return actor.Refuse(actor.Unavailable, "the tool context has no %s: the place that made it left it out", wire)
	}
	switch {
	case ec.Call.To == actor.ID{}:
		return cut("call")
	case ec.AgentID != ec.Call.To.Agent:
		return cut("agent_id")
	case ec.ProjectID != ec.Call.Project:
		return cut("project_id")
	case ec.CallDepth != ec.Call.Depth():
		return cut("call_depth")
	case !slices.Equal(ec.CallChain, chainOf(ec.Call)):
		return cut("call_chain")
	}
	return nil
}
