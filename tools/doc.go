// SPDX-License-Identifier: Apache-2.0

// Package tools defines the tools that agents may request by name, each with a
// JSON schema of its input, including call_agent. (Build tools are in
// internal/tools.)
//
// Plan validates each ask of an agent before it takes effect. It returns either
// the operation to perform, or an immediate result. An immediate result is mostly
// a refusal that names the invalid field:
//
//	call_agent  {"agent_id", "message", "timeout_ms"?} → a call, for which the turn waits
//	other tools {…}                                    → the tool, executed by the host
//
// There are two kinds of handler. A Handler is ordinary code, which the host runs
// with Execute. It may block and fail. A ContextHandler knows the calling agent
// and returns the ask to make instead. It runs within a step of a cell, so it MUST
// be a pure function of its arguments.
//
// Input is strict JSON: no duplicate names, no unknown members, nothing after the
// value, only numbers that a float can represent, at most DepthMax levels. Error
// messages are deterministic. Schemas MUST NOT refer to external documents.
package tools
