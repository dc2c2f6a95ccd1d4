// SPDX-License-Identifier: Apache-2.0

// Package tools defines the tools that agents may request by name. Each has a JSON
// schema of its input. One of them is call_agent. (Build tools are in
// internal/tools.)
//
// Plan validates each ask of an agent before it takes effect. It returns an
// immediate result or an operation to perform. An immediate result is mostly a
// refusal that names the invalid field. The operations are:
//
//	call_agent  {"agent_id", "message", "timeout_ms"?} → a call, for which the turn waits
//	other tools {…}                                    → the tool, executed by the host
//
// There are two kinds of handler. A Handler is ordinary code, which the host runs
// with Execute. It may block and fail. A ContextHandler knows the calling agent
// and returns the ask to make instead. It runs within a step of a cell, so it MUST
// be a pure function of its arguments.
//
// Input is strict JSON: no duplicate names, nothing after the value, only numbers
// that a float can represent, at most DepthMax levels. The schema decides whether
// unknown members are allowed. Error messages are deterministic. Schemas MUST NOT
// refer to external documents.
//
// It is a part of the server without a promise of compatibility: programs use package troupe.
package tools
