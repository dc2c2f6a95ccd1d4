// SPDX-License-Identifier: Apache-2.0

// Package client performs the requests of clients about runs, tool calls, approvals and transcripts,
// once for all faces. HTTP, the channel and the Go API decode a request, call a method of Client and
// render its result. Messages that start a run are not here yet: each face sends them itself.
//
// A method returns once its effect is durable. Its error is a refusal of the protocol, a Forbidden,
// or an error of the node (see command.Node). No method keeps its context.
//
// # Files
//
//	client.go     Client, Request and Forbidden
//	approvals.go  approvals, and who may decide about them
//	toolcalls.go  tool calls and their results
//	runs.go       signals to runs, retries of parked runs, cancellation
//	messages.go   messages that start no run
package client
