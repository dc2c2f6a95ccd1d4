// SPDX-License-Identifier: Apache-2.0

// Package contract holds the contract between agents: the envelopes in which one agent asks
// another for a capability and gets its result, the catalog of capabilities, the object that hands
// work over, and what a user reads of all that. It decides and never delivers.
//
//	Request, Response   the envelopes, their rules and their JSON Schemas
//	Catalog             who owns a capability, and which owner gets a request
//	Intent              what an orchestrator has understood of a message
//	Handoff             what a callee is told of the work so far
//	UserText            codes of agents and capabilities, and words of their machinery, in texts for users
//	Join                one answer from several, with their conflicts
//	Invocation          a detached call for a skill, and the messages of its outcome
//
// Decoding differs by sender. A request is an input of the server: strict JSON, and every member is
// known. A response was written by an agent, often by a model: what can be understood is
// understood, and Response.Notes says what was mended. Encoding is strict, numbers keep the
// digits in which they were written. A broken rule is a Violation, which names the member.
//
// POST /v1/agents/{id}:invoke carries the envelopes. Orchestrators of package agents use Intent, Handoff and
// Join, and package runtime UserText.
//
// It is a part of the server without a promise of compatibility: programs use package troupe.
package contract
