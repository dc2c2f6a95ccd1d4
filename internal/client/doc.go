// SPDX-License-Identifier: Apache-2.0

// Package client has what a client of a server may do, once for all faces. HTTP, the channel, the
// OpenAI API and the Go API decode a request, call a method of Client and render its result.
//
// A method returns once its effect is durable. Its error is a refusal of the protocol, a Forbidden,
// or an error of the node (see command.Node). No method keeps its context.
//
// # Files
//
//	client.go     Client, and what a request says besides its content
//	approvals.go  approvals, and who may decide about them
//	toolcalls.go  tool calls and their results
//	runs.go       signals to runs, retries of parked runs, cancellation
//	messages.go   messages, and those that start no run
package client
