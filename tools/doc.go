// SPDX-License-Identifier: Apache-2.0

// Package tools knows what an agent may ask for: each tool by name, with the
// schema of its input, and call_agent among them. (Build tools live in internal/tools.)
//
// An agent's wish passes through Plan before anything comes of it. Plan either
// says what to ask of the world, or answers at once, mostly with a refusal that
// names the input's field:
//
//	call_agent  {"agent_id", "message", "timeout_ms"?} → a call, which the turn waits for
//	other tools {…}                                    → the tool, which the world runs
//
// There are two kinds of handler. A Handler is ordinary code that the world runs
// with Execute; it may take its time and fail. A ContextHandler knows who is
// asking, and returns what to ask instead as a value: it is called inside a
// cell, so it must be a pure function of its arguments.
//
// Input is strict JSON: no duplicate names, no unknown members, nothing after
// the value, numbers that a float can hold, at most DepthMax levels. The same
// bad input gets the same sentence, always. No schema refers to anything outside itself.
package tools
