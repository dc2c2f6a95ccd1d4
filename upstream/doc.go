// SPDX-License-Identifier: Apache-2.0

// Package upstream speaks with what stands behind us: models and external agents.
// It turns a request into bytes, streamed bytes into deltas and tool calls, and says when to try again. It never dials.
//
// What comes from there is hostile until read. Whatever bytes arrive, in
// whatever pieces, end as a value or as a refusal that names what was wrong and
// where; nothing is unbounded, and nothing is done by halves in silence: a
// stream that stops early leaves its text so far, marked incomplete.
//
//	Prompt, Invocation ─▶ Request           bytes and headers for a world to send
//	Parser                                  Server-Sent Events: runs.Frame, read
//	ModelDecoder, AgentDecoder              bytes of an answer ─▶ deltas, one Completion
//	Cutter                                  deltas no longer or older than clients are promised
//	Backoff                                 what all calls to one upstream know of its health
//	Exchange                                one request with all its attempts
//	Health                                  whether an external agent is there
//	Target, Egress                          where it is, and which addresses may be reached
//	Script                                  a model without a model: no key, no network
//
// An Exchange is a state machine that a world drives: it is given the time, one
// input and a drawn number, and says what to send, close or pass on, and by its
// NextDeadline when to come back.
//
//	         ┌────────── Again ◀───────────┐
//	         ▼                             │
//	Begin ─ waiting ─ Send ─▶ out ─ Head ─▶ reading ─▶ End
//
// It tries again only while no token was passed on, while its own count and the
// upstream's retry budget last, and while there is time. An agent that has not
// said that asking twice is safe is not asked twice: once the request may have
// reached it, what became of it is Unknown.
package upstream
