// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
)

// AgentPoll is the name of the tool with which agents read the state of their detached calls.
const AgentPoll = "agent_poll"

const agentPollSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "properties": {
    "taskId": {
      "type": "string",
      "description": "The taskId of an agent_call. If absent, the calls without an answer are listed."
    }
  },
  "additionalProperties": false
}`

const agentPollDescription = "Read the state of calls made with agent_call: working, or the outcome with status completed, error or timeout. Outcomes come by themselves as messages, so there is no need to poll for one; use it to read an answer that came after its timeout, or to list what is pending."

func agentPoll() Tool {
	return Tool{Name: AgentPoll, Description: agentPollDescription, Schema: agentPollSchema, ContextHandler: planAgentPoll}
}

func planAgentPoll(input []byte, _ ExecutionContext) (actor.Ask, *Result) {
	var in struct {
		Task string `json:"taskId"`
	}
	if err := json.Unmarshal(input, &in); err != nil {
		return refuse(invalid(AgentPoll, "", "want an object")) // unreachable: the schema has accepted the input
	}
	if in.Task != "" {
		if _, err := actor.ParseCallID(in.Task); err != nil {
			return refuse(invalid(AgentPoll, "taskId", err.Error()))
		}
	}
	return detachedAsk(in.Task, "", 0, jsontext.Value("{}"), Detached{Poll: true}), nil
}

// IsDetached reports whether a tool is one about detached calls, which the runtime answers at once.
func IsDetached(tool string) bool {
	return tool == AgentCall || tool == AgentPoll || tool == DebateCall || tool == Remind
}
