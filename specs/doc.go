// SPDX-License-Identifier: Apache-2.0

// Package specs checks the safety and liveness properties of histories. Each spec is the Go
// counterpart of the TLA+ property of the same name.
//
// A Checker reads histories. It derives the state it needs from events alone: the wait-for edges,
// the depth of calls, their time left, the messages in mailboxes, and the changes that a crash
// may undo. State reported by the code under test is compared with the derived state and never
// trusted.
//
// A simulation MUST meet these conditions:
//
//  1. Observe receives all events of one step of one cell together and in order,
//     followed by the Append of that step if it wrote entries. Events of the
//     environment (Claim, Lose, Sync, Perform, Crash, Restart) are passed in the
//     order in which they happen, one or several at a time.
//  2. An Append sets From, Pos and Wrote. Pos is the end of the log after the step.
//     Wrote is the number of entries the step wrote.
//  3. A Sync sets From.Node and Synced, the position up to which the log is durable.
//  4. A Perform is observed when an effect leaves the node. A message to another cell
//     of the same node does not leave it. Perform sets From and these fields:
//     What is respond, send, publish, tool or work. Call is the call of the message
//     for send, the call of the client for respond, otherwise the run. Why is the name
//     of the message (request, answered, …). Pos is the end of the log right after
//     the step that requested the effect. Synced is as in Sync. Status and Reason
//     are set for a reply to an actor or a client. Step, Index and Attempt are set
//     for tool and work.
//  5. A Crash sets From.Node and Synced, the end of the log that the disk kept. A
//     Restart of a cell whose node is still up sets the new incarnation. A Restart
//     of a node sets no further fields.
//  6. Claim and Lose set From, Epoch and the range of shards.
//
// It is a part of the server without a promise of compatibility: programs use package troupe.
package specs
