// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
)

// DebateCall is the name of the tool with which agents ask several others about one topic, without waiting.
const DebateCall = "debate_call"

// ParticipantsMax is the maximum number of agents in a debate.
const ParticipantsMax = 16

// debateSkill is what participants are asked for if the call names no skill.
const debateSkill = "debate"

const debateCallSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "properties": {
    "participants": {
      "type": "array",
      "items": {"type": "string"},
      "minItems": 1,
      "maxItems": 16,
      "description": "The agents to ask, by agent_id or by a name that no other agent has; agent/session names a session."
    },
    "topic": {
      "type": "string",
      "minLength": 1,
      "description": "What they are to judge: in a later round with what the others have said."
    },
    "skill": {
      "type": "string",
      "description": "debate if absent."
    },
    "mode": {
      "enum": ["critique", "execute"],
      "description": "critique if absent."
    },
    "rounds": {
      "type": "integer",
      "minimum": 1,
      "maximum": 8,
      "description": "How many rounds the debate may have, this one included: a debate_call in the turn of an outcome begins the next one. 8 if absent."
    },
    "timeout": {
      "type": "integer",
      "minimum": 1,
      "description": "How long the answers are awaited, in milliseconds; 60000 if absent, at most 300000."
    }
  },
  "required": ["participants", "topic"],
  "additionalProperties": false
}`

const debateCallDescription = "Ask several agents about one topic and go on without waiting. Each of them has a correlationId, and each answer, or its absence, comes later by itself as a message of this conversation, as with agent_call."

func debateCall() Tool {
	return Tool{Name: DebateCall, Description: debateCallDescription, Schema: debateCallSchema, accepts: accepting(debateCallSchema), ContextHandler: planDebateCall}
}

func planDebateCall(input []byte, ec ExecutionContext) (actor.Ask, *Result) {
	var in struct {
		Participants []string `json:"participants"`
		Topic        string   `json:"topic"`
		Skill        string   `json:"skill"`
		Rounds       float64  `json:"rounds"`
		detachedInput
	}
	if err := json.Unmarshal(input, &in); err != nil {
		return refuse(invalid(DebateCall, "", "want an object")) // unreachable: the schema has accepted the input
	}
	in.Skill = cmp.Or(in.Skill, debateSkill)
	if err := actor.CheckName(in.Skill); err != nil {
		return refuse(invalid(DebateCall, "skill", err.Error()))
	}
	for i, name := range in.Participants {
		if _, err := Target(name, ec.Call.To); err != nil {
			return refuse(invalid(DebateCall, "participants", err.Error()))
		}
		if slices.Contains(in.Participants[:i], name) {
			return refuse(invalid(DebateCall, "participants", fmt.Sprintf("%s is named twice", name)))
		}
	}
	timeout, refusal := in.check(DebateCall, &ec)
	if refusal != nil {
		return actor.Ask{}, refusal
	}
	topic := invariant.Must(json.Marshal(struct {
		Topic        string   `json:"topic"`
		Participants []string `json:"participants"`
		Rounds       int      `json:"rounds,omitzero"`
	}{in.Topic, in.Participants, int(in.Rounds)}))
	return detachedAsk(in.Participants[0], in.Skill, timeout, topic, Detached{Tool: DebateCall, Mode: cmp.Or(in.Mode, "critique"), Client: in.Correlation,
		Participants: in.Participants, Rounds: int(in.Rounds), Forget: in.forgets()}), nil
}
