// SPDX-License-Identifier: Apache-2.0

// Package command defines the commands that a node accepts and their results.
// The gateway sends every request of a client as one of them, and so does a
// program that embeds a node. Commands and results are values: they hold no
// callback, lock or reference to the node, and can be encoded: queries and results by their
// fields, so a new one needs a line in wire.go and no code.
//
// There are seven commands:
//
//	Invoke   call an actor and wait for the outcome
//	Signal   deliver a signal to an open run
//	Cancel   cancel a run
//	Forget   delete a session
//	Follow   subscribe to the new events of a run
//	Lookup   read one thing: an agent, a run, events, statistics
//	Do       change something else: begin a request to a model, make a backup
//
// Serve performs the commands of a connection, and Dial returns the node at its
// other end. Neither knows what the connection is: internal/link opens those between
// processes.
//
// Every command carries the principal that made it, and is refused if it names an
// actor of another tenant. Every list in
// a result is bounded by a constant of this package, and a result shows durable
// state only.
package command
