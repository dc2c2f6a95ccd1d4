// SPDX-License-Identifier: Apache-2.0

package actor

// What is the thing that a NotFound refusal is about. A face adds how to find those that exist.
type What uint8

// The things. Refusals with other reasons, and some of earlier versions, have NoWhat.
const (
	NoWhat        What = iota
	WhatAgent          // no such agent
	WhatRun            // no such run
	WhatOpenRun        // the run does not exist, has ended, or waits for nothing of the kind
	WhatSession        // no such session
	WhatDeleted        // the session was deleted
	WhatApproval       // no such approval
	WhatToolCall       // no such tool call
	WhatModelCall      // no such open request to a model
	WhatTool           // no such declared tool
	WhatContext        // no such context
	WhatKey            // no such API key
	WhatEntity         // nothing is remembered about it
)

// whats lists the field and the names of a NotFound refusal by what it is about.
var whats = [...]struct {
	field, error, code string
	http               int
}{
	NoWhat:        {"", "AgentNotFound", "agent_not_found", 404},
	WhatAgent:     {"", "AgentNotFound", "agent_not_found", 404},
	WhatRun:       {"", "RunNotFound", "run_not_found", 404},
	WhatOpenRun:   {"", "RunNotFound", "run_not_found", 404},
	WhatSession:   {"session_id", "SessionNotFound", "session_not_found", 404},
	WhatDeleted:   {"session_id", "SessionDeleted", "session_deleted", 410},
	WhatApproval:  {"", "ApprovalNotFound", "approval_not_found", 404},
	WhatToolCall:  {"", "ToolCallNotFound", "tool_call_not_found", 404},
	WhatModelCall: {"llm_call_id", "AgentNotFound", "agent_not_found", 404},
	WhatTool:      {"tool_name", "ToolNotFound", "tool_not_found", 404},
	WhatContext:   {"context_key", "ContextNotFound", "context_not_found", 404},
	WhatKey:       {"key_id", "KeyNotFound", "key_not_found", 404},
	WhatEntity:    {"entity", "EntityNotFound", "entity_not_found", 404},
}

// RefuseNotFound returns a NotFound refusal with a formatted sentence.
func RefuseNotFound(what What, format string, args ...any) *Refusal {
	return &Refusal{Reason: NotFound, What: what, Field: whats[what].field, Detail: fitDetail(format, args...)}
}

// AgentNotFound returns the refusal for the name of no agent.
func AgentNotFound(name string) *Refusal {
	return RefuseNotFound(WhatAgent, "no agent is named %s", name)
}

// RunNotFound returns the refusal for the ID of no run.
func RunNotFound(id CallID) *Refusal { return RefuseNotFound(WhatRun, "run %s not found", id) }

// SessionNotFound returns the refusal for the name of no session.
func SessionNotFound(name string) *Refusal {
	return RefuseNotFound(WhatSession, "session %s not found", name)
}

// ApprovalNotFound returns the refusal for the ID of no approval.
func ApprovalNotFound(id string) *Refusal {
	return RefuseNotFound(WhatApproval, "no approval %.80s", id)
}

// ToolCallNotFound returns the refusal for the ID of no tool call.
func ToolCallNotFound(id string) *Refusal {
	return RefuseNotFound(WhatToolCall, "no tool call %.80s", id)
}

// ToolNotFound returns the refusal for the name of no declared tool.
func ToolNotFound(name string) *Refusal {
	return RefuseNotFound(WhatTool, "no declared tool is named %.80s", name)
}

// IsNotFound reports whether the refusal, which may be nil, states that something does not exist.
func (r *Refusal) IsNotFound(what What) bool {
	return r != nil && r.Reason == NotFound && r.What == what
}

// WhatOf returns what a NotFound refusal with a field is about. Refusals in events, and those of
// earlier versions, have only the field.
func WhatOf(field string) What {
	if field == "session_deleted" { // of an earlier version
		return WhatDeleted
	}
	for what := range whats {
		if field != "" && whats[what].field == field {
			return What(what)
		}
	}
	return NoWhat
}
