// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
)

// AgentCall is the name of the tool with which agents make detached calls.
const AgentCall = "agent_call"

// agentCallSchema is the input schema as models see it. The identifiers and the return address of a call are
// made by the server.
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

// detachedMembers are members of the input of a detached call that callers know from other systems, and that models
// are not told of.
const detachedMembers = `
    "timeout_ms": {"type": "integer", "minimum": 1},
    "timeoutSeconds": {"type": "number", "minimum": 0},
    "correlationId": {"type": "string", "minLength": 1},
    "returnTo": {"type": "string"},`

// accepting returns the schema with the hidden members.
func accepting(schema string) string {
	const at = `"properties": {`
	return strings.Replace(schema, at, at+detachedMembers, 1)
}

const agentCallDescription = "Ask another agent and go on without waiting. The result says pending; the answer, or its absence, comes later by itself as a message of this conversation (skill_response or skill_timeout with the same correlationId): do not ask again meanwhile. To wait for an answer, use call_agent instead."

func agentCall() Tool {
	return Tool{Name: AgentCall, Description: agentCallDescription, Schema: agentCallSchema, accepts: accepting(agentCallSchema), ContextHandler: planAgentCall}
}

// ClientCorrelationMax is the maximum length of Detached.Client in bytes.
const ClientCorrelationMax = 128

// ReturnAddress returns the address of an actor as other agents see it.
func ReturnAddress(of actor.ID) string { return "agent:" + of.Agent + ":" + of.Key }

// Detached is what a tool asks of the runtime about detached calls. The ask of kind AskDetach has it as its second
// part, after the input. The Name of an ask that makes calls is the callee, that of others a task.
type Detached struct {
	Poll   bool   `json:"poll,omitzero"` // what is pending is asked for, and no call is made
	Tool   string `json:"tool,omitzero"` // that makes the calls
	Mode   string `json:"mode,omitzero"`
	Client string `json:"client,omitzero"` // correlation that the agent has given as its own
	Forget bool   `json:"forget,omitzero"` // the outcome is not delivered

	Remind string `json:"remind,omitzero"` // text of a reminder, which has no callee
	At     int64  `json:"at,omitzero"`     // time of the reminder in ms since 1970; 0: that of the ask from now on

	Participants []string `json:"participants,omitzero"` // all callees of a debate
	Rounds       int      `json:"rounds,omitzero"`       // maximum number of outcomes that may follow from each other, this one included; 0 is that of the runtime
}

// DetachedOf returns what an ask of kind AskDetach has.
func DetachedOf(ask *actor.Ask) (input []byte, d Detached) {
	invariant.Check(len(ask.Parts) == 2 && json.Unmarshal(ask.Parts[1].Bytes, &d) == nil, "a detached call with the parts %v", ask.Parts)
	return ask.Parts[0].Bytes, d
}

// detachedInput are the members that the tools for detached calls have in common.
type detachedInput struct {
	Timeout     *float64 `json:"timeout"`
	TimeoutMS   *float64 `json:"timeout_ms"`
	TimeoutS    *float64 `json:"timeoutSeconds"`
	Correlation string   `json:"correlationId"`
	ReturnTo    *string  `json:"returnTo"`
	Mode        string   `json:"mode"`
}

// forgets reports whether the outcome is not wanted: only this spelling says so.
func (in *detachedInput) forgets() bool { return in.TimeoutS != nil && *in.TimeoutS == 0 }

// check validates the members, and returns the time that they state.
func (in *detachedInput) check(tool string, ec *ExecutionContext) (actor.Duration, *Result) {
	if own := ReturnAddress(ec.Call.To); in.ReturnTo != nil && *in.ReturnTo != own {
		_, r := refuse(invalid(tool, "returnTo", fmt.Sprintf("outcomes come back to the asking session, which is %s", own)))
		return 0, r
	}
	if len(in.Correlation) > ClientCorrelationMax {
		_, r := refuse(invalid(tool, "correlationId", fmt.Sprintf("want at most %d bytes", ClientCorrelationMax)))
		return 0, r
	}
	var left actor.Duration
	first := ""
	for _, given := range [...]struct {
		name  string
		value *float64
		scale float64
	}{{"timeout", in.Timeout, 1}, {"timeout_ms", in.TimeoutMS, 1}, {"timeoutSeconds", in.TimeoutS, 1000}} {
		if given.value == nil {
			continue
		}
		if in.forgets() {
			if first != "" {
				_, r := refuse(invalid(tool, given.name, fmt.Sprintf("0 is another time than that in %s", first)))
				return 0, r
			}
			first = given.name
			continue
		}
		d := max(millis(*given.value*given.scale), 1)
		if first != "" && d != left {
			_, r := refuse(invalid(tool, given.name, fmt.Sprintf("it is another time than that in %s", first)))
			return 0, r
		}
		left, first = d, given.name
	}
	return left, nil
}

// planAgentCall returns the ask of a detached call: the callee is its Name, the skill its Operation. The runtime
// answers it at once.
func planAgentCall(input []byte, ec ExecutionContext) (actor.Ask, *Result) {
	var in struct {
		Agent string         `json:"agent"`
		Skill string         `json:"skill"`
		Input jsontext.Value `json:"input"`
		detachedInput
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
	timeout, refusal := in.check(AgentCall, &ec)
	if refusal != nil {
		return actor.Ask{}, refusal
	}
	if in.Input == nil {
		in.Input = jsontext.Value("{}")
	}
	if err := in.Input.Compact(); err != nil {
		return refuse(invalid(AgentCall, "input", "want a JSON object"))
	}
	return detachedAsk(in.Agent, in.Skill, timeout, in.Input, Detached{Tool: AgentCall, Mode: cmp.Or(in.Mode, "execute"), Client: in.Correlation, Forget: in.forgets()}), nil
}

func detachedAsk(agent, skill string, timeout actor.Duration, input jsontext.Value, d Detached) actor.Ask {
	return actor.Ask{Kind: actor.AskDetach, Name: agent, Operation: skill, Timeout: timeout,
		Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: input}, {Media: actor.MediaJSON, Bytes: invariant.Must(json.Marshal(d))}}}
}

// checkDetached validates a detached call: its context, and the name of its callee.
func checkDetached(ask actor.Ask, ec ExecutionContext) (actor.Ask, *Result) {
	if refusal := ec.Check(); refusal != nil {
		return refuse(refusal)
	}
	return ask, nil
}
