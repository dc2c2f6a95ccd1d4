// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
)

// CallAgent is the name of the tool with which agents call each other.
const CallAgent = "call_agent"

// callAgentSchema is the input schema: the agent, the message and an optional
// timeout.
const callAgentSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "properties": {
    "agent_id": {
      "type": "string",
      "description": "The agent to call, by agent_id or by a name that no other agent has. Its session is the caller's own; agent/session names another one."
    },
    "message": {
      "type": "string",
      "description": "The message for the agent."
    },
    "timeout_ms": {
      "type": "integer",
      "minimum": 1,
      "description": "How long to wait for the answer, in milliseconds; 30000 if absent, at most 300000, and never longer than the caller's own time."
    }
  },
  "required": ["agent_id", "message"],
  "additionalProperties": false
}`

const callAgentDescription = "Call another agent and wait for its answer."

func callAgent() Tool {
	return Tool{
		Name:        CallAgent,
		Description: callAgentDescription,
		Schema:      callAgentSchema,
		// A repeated ask has the same call id and therefore the same outcome.
		Idempotent:     true,
		ContextHandler: planCallAgent,
	}
}

func planCallAgent(input []byte, ec ExecutionContext) (actor.Ask, *Result) {
	var in struct {
		AgentID   string  `json:"agent_id"`
		Message   string  `json:"message"`
		TimeoutMS float64 `json:"timeout_ms"`
	}
	if err := json.Unmarshal(input, &in); err != nil {
		return refuse(invalid(CallAgent, "", "want an object")) // unreachable: the schema has accepted the input
	}
	if ec.Dispatcher == nil {
		return refuse(actor.Refuse(actor.Unavailable, "%s: no dispatcher in this context, agents cannot be called", CallAgent))
	}
	return ec.Dispatcher.InvokeWithTimeout(in.AgentID, actor.HandleMessageFull, actor.Text(in.Message), millis(in.TimeoutMS)), nil
}

// millis converts milliseconds to a duration. A value that overflows becomes the
// largest duration.
func millis(ms float64) actor.Duration {
	const maxDuration = 1<<63 - 1
	if ms >= maxDuration/float64(time.Millisecond) {
		return maxDuration
	}
	return actor.Duration(ms) * time.Millisecond
}

// checkCall validates a call that a tool or the code of an agent requests. Its error
// texts are those of call_agent. The dispatcher decides later whether the call may be
// made.
func checkCall(ask actor.Ask, ec ExecutionContext) (actor.Ask, *Result) {
	if refusal := ec.Check(); refusal != nil {
		return refuse(refusal)
	}
	if ec.Agents != nil {
		target, refusal := ec.Agents.Resolve(ask.Name, ec.Callees)
		if refusal != nil {
			return refuse(refusal)
		}
		ask.Name = target
	}
	return PlanCall(ask, ec.Call.To)
}

// PlanCall is like Plan, for a call that a turn requests directly. Instead of an
// ExecutionContext it needs only the ID of the caller.
func PlanCall(ask actor.Ask, self actor.ID) (actor.Ask, *Result) {
	if ask.Timeout < 0 {
		return refuse(invalid(ask.Kind.String(), "timeout", "want a timeout of at least 0"))
	}
	if _, err := Target(ask.Name, self); err != nil {
		return refuse(invalid(CallAgent, "agent_id", err.Error()))
	}
	if n := actor.SizeOf(ask.Parts); n > actor.MessageBytesMax {
		return refuse(invalid(CallAgent, "message", fmt.Sprintf("%d bytes exceed the maximum of %d", n, actor.MessageBytesMax)))
	}
	if ask.Operation == "" {
		ask.Operation = actor.HandleMessageFull
	}
	return ask, nil
}

// Target returns the ID of the actor with the given name. The name has the form
// agent/key or agent. Without a key, the actor has the caller's own key. The tenant is
// always the tenant of the caller: calls into another tenant are impossible.
func Target(name string, caller actor.ID) (actor.ID, error) {
	agent, key, outright := strings.Cut(name, "/")
	id := actor.ID{Tenant: caller.Tenant, Agent: agent, Key: key}
	if !outright && actor.CheckName(agent) == nil { // the other parts come from the caller, so they are valid
		id.Key = caller.Key
		return id, nil
	}
	return id, id.Check()
}
