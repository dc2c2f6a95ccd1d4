// SPDX-License-Identifier: Apache-2.0

// Package client performs the requests of clients about runs, messages, tool calls, approvals and
// transcripts, once for all faces. HTTP, the channel and the Go API decode a request, call a method of
// Client and render its result.
//
// A method returns once its effect is durable. Its error is a refusal of the protocol, a Forbidden,
// or an error of the node (see command.Node). No method keeps its context.
//
// What a client waits for, it waits for with a Watch: new events, the return of a node that is away,
// the loss of its key and the end of the server are one call of Wait.
//
// # Files
//
//	client.go     Client, Request and Forbidden
//	limited.go    what a client that is limited to agents may see and change
//	memory.go     what agents remember: changes and questions
//	messages.go   messages that begin a run, and those that do not
//	tasks.go      calls without waiting and reminders: one that is pending, cancellation
//	runs.go       signals to runs, retries of parked runs, cancellation, the end of a run
//	partial.go    what a run had produced when its time ran out
//	sessions.go   deletion of sessions
//	toolcalls.go  tool calls and their results
//	approvals.go  approvals, and who may decide about them
//	capabilities.go  requests of the contract between agents
//	models.go     requests of external agents to models, as their runs record them
//	watch.go      Watch
//	stream.go     streams of events
package client
