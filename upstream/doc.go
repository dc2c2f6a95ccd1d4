// SPDX-License-Identifier: Apache-2.0

// Package upstream implements the client side of the protocols of models and
// external agents. It encodes requests, decodes streamed responses and schedules
// retries. It opens no connection.
//
// Bytes from an upstream are untrusted until decoded. Any sequence of bytes, split
// anywhere, yields either a value or a refusal that names the fault and its
// position. All sizes are bounded. No data is dropped silently: a stream that ends
// early keeps its text and is marked incomplete.
//
//	Prompt, Invocation ─▶ Request           bytes and headers for the host to send
//	Parser                                  Server-Sent Events ─▶ runs.Frame
//	ModelDecoder, AgentDecoder              response bytes ─▶ deltas, one Completion
//	Chunker                                 deltas within the size and delay promised to clients
//	Backoff                                 health of one upstream, shared by its calls
//	Exchange                                one request with all its attempts
//	Health                                  liveness and circuit breaker of an external agent
//	Target, Egress                          address of an agent, and which addresses are allowed
//	Script                                  a built-in model: no key, no network
//	Price                                   what an answer of a model costs
//
// An Exchange is a state machine driven by the host. Step takes the time, one
// input and a random number, and returns the operations to perform. NextDeadline
// returns the time of the next step.
//
//	         ┌────────────── Retry ◀──────────────┐
//	         ▼                                    │
//	Begin ─ waiting ─ Send ─▶ awaitingHead ─ Head ─▶ readingBody ─▶ Ended
//
// An attempt is repeated only if all of these hold:
//
//   - neither its retry policy nor the upstream's retry budget is exhausted;
//   - the retry would start before the deadline;
//   - the request is idempotent, or certainly was not processed.
//
// A retry after a part of the response was forwarded voids that part.
//
// A request to an agent that did not declare retries safe is not repeated once the
// agent may have received it. Its outcome is then Unknown.
//
// It is a part of the server without a promise of compatibility: programs use package troupe.
package upstream
