// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"slices"

	"github.com/troupe-run/troupe/actor"
)

// Dispatcher builds the ask for a call to another agent. The runtime passes a
// dispatcher.AgentDispatcher.
type Dispatcher interface {
	InvokeWithTimeout(target, operation string, parts []actor.Part, timeout actor.Duration) actor.Ask
}

// ExecutionContext describes the caller of a tool. The runtime fills it from the
// turn, so agents cannot forge it.
type ExecutionContext struct {
	AgentID    string
	ProjectID  string
	CallDepth  int
	CallChain  []string       // the callers, oldest first, without the current actor
	Call       actor.Call     // the call that the turn answers
	Left       actor.Duration // time left of the turn
	Dispatcher Dispatcher     // nil where no agent can be called
	Agents     *Agents        // resolves names of agents; nil where only IDs are known
	Callees    []string       // agents that the caller may call; nil: any
	Requests   []string       // agents for whose capabilities it may ask; nil: any
	// Result returns the whole of a result that the turn was given the head of, by its BlobRef; nil: no such result.
	// It is nil where there are none.
	Result func(ref string) []byte
}

// NewContext returns the context of a turn that answers call and has the given
// time left. All contexts MUST be created here, so that no field can be forgotten.
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

// Check returns a refusal if a field is missing or disagrees with Call.
func (ec *ExecutionContext) Check() *actor.Refusal {
	missing := func(field string) *actor.Refusal {
		return actor.Refuse(actor.Unavailable, "incomplete tool context: %s: missing or wrong", field)
	}
	switch {
	case ec.Call.To == actor.ID{}:
		return missing("call")
	case ec.AgentID != ec.Call.To.Agent:
		return missing("agent_id")
	case ec.ProjectID != ec.Call.Project:
		return missing("project_id")
	case ec.CallDepth != ec.Call.Depth():
		return missing("call_depth")
	case !slices.Equal(ec.CallChain, chainOf(ec.Call)):
		return missing("call_chain")
	}
	return nil
}
