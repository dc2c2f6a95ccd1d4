// SPDX-License-Identifier: Apache-2.0

// Package webhooks sends notices to those who operate a server: a tool call waits for a person, a run has
// failed or is parked, the outcome of a call is unknown, an MCP server has changed its tools.
//
//	log ─▶ Source ─▶ outbox (at most 1,024 open deliveries) ─POST▶ receiver
//	                    └─▶ position: the batch up to which all is delivered, and deliveries beyond it
//
// The log of the node is the outbox. A notice is derived from its entry, so it cannot be lost between the two, and
// a webhook has a position that says how far its deliveries have come: a file, or a row of the database if that has
// the store. Guarantees:
//
//  1. A notice of an entry that was durable is delivered at least once, also after kill -9. A delivery has an id, by
//     which a receiver can drop repeats.
//  2. Notices of one object, which is the tree of a run or an MCP server, are delivered in the order of the log: the
//     next one is sent once the one before it is delivered or given up.
//  3. A log may move to another process, which continues where the one before has ended. That one stops at the latest
//     when it writes its position, which is refused. Deliveries that it made after its last write are repeated.
//  4. A notice is given up GiveUpAfter its event, with an error in the log. The log is not cut before.
//
// While the position cannot be written, deliveries go on and the write is tried again. It is written five times a
// second at most, for all logs of a process.
//
// A delivery is signed as Standard Webhooks describe it. It goes to allowed addresses only and follows no redirect.
// A receiver that is slow or away delays nothing but its own deliveries.
//
// It is a part of the server without a promise of compatibility: programs use package troupe.
//
// # Files
//
//	config.go    Config, the settings of a webhook
//	notice.go    Notice, Source, and the body of a delivery
//	position.go  how far a webhook has come
//	webhook.go   the deliveries of one webhook
//	webhooks.go  Webhooks, all of a node
package webhooks
