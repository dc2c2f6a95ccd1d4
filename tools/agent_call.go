// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"cmp"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
)

// AgentCall is the name of the tool with which agents make detached calls.
const AgentCall = "agent_call"

// agentCallSchema is the input schema. The identifiers and the return address of a call are made by
// the server, so they are no properties.
const agentCallSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "properties": {
    "agent": {
      "type": "string",
      "description": "The agent to ask, by agent_id or by a name that no other agent has. Its session is the caller's own; agent/session names another one."
    },
    "skill": {
      "type": "string",
      "description": "What the agent is asked to do, such as research."
    },
    "input": {
      "type": "object",
      "description": "The input of the skill."
    },
    "mode": {
      "enum": ["execute", "critique"],
      "description": "execute if absent."
    },
    "timeout": {
      "type": "integer",
      "minimum": 1,
      "description": "How long the answer is awaited, in milliseconds; 60000 if absent, at most 300000."
    }
  },
  "required": ["agent", "skill"],
  "additionalProperties": false
}`

const agentCallDescription = "Ask another agent and go on without waiting. The result says pending; the answer, or its absence, comes later by itself as a message of this conversation (skill_response or skill_timeout with the same correlationId): do not ask again meanwhile. To wait for an answer, use call_agent instead."

func agentCall() Tool {
	return Tool{Name: AgentCall, Description: agentCallDescription, Schema: agentCallSchema, ContextHandler: planAgentCall}
}

// planAgentCall returns the ask of a detached call: the callee is its Name, the skill its Operation, and its
// Parts are the input and the mode. The runtime answers it at once.
func planAgentCall(input []byte, ec ExecutionContext) (actor.Ask, *Result) {
	var in struct {
		Agent   string         `json:"agent"`
		Skill   string         `json:"skill"`
		Input   jsontext.Value `json:"input"`
		Mode    string         `json:"mode"`
		Timeout float64        `json:"timeout"`
	}
	if err := json.Unmarshal(input, &in); err != nil {
		return refuse(invalid(AgentCall, "", "want an object")) // unreachable: the schema has accepted the input
	}
	if err := actor.CheckName(in.Skill); err != nil {
		return refuse(invalid(AgentCall, "skill", err.Error()))
	}
	if _, err := Target(in.Agent, ec.Call.To); err != nil {
		return refuse(invalid(AgentCall, "agent", err.Error()))
	}
	if in.Input == nil {
		in.Input = jsontext.Value("{}")
	}
	if err := in.Input.Compact(); err != nil {
		return refuse(invalid(AgentCall, "input", "want a JSON object"))
	}
	return actor.Ask{Kind: actor.AskDetach, Name: in.Agent, Operation: in.Skill, Timeout: millis(in.Timeout),
		Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: in.Input}, {Media: actor.MediaText, Bytes: []byte(cmp.Or(in.Mode, "execute"))}}}, nil
}

// checkDetached validates a detached call: its context, and the name of its callee.
func checkDetached(ask actor.Ask, ec ExecutionContext) (actor.Ask, *Result) {
	if refusal := ec.Check(); refusal != nil {
		return refuse(refusal)
	}
	return ask, nil
}
