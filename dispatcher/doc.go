// SPDX-License-Identifier: Apache-2.0

// Package dispatcher validates calls, admits messages to mailboxes and maps actors to owners.
//
// It decides and never delivers. Route performs the checks at the caller's cell, in
// this order: target exists, depth, cycle, time left, outstanding calls, budget.
// Mailbox performs the last check at the callee's cell: capacity by count, bytes and
// age. Table maps each shard to its owner and epoch. Breaker refuses calls to what has
// failed, for package upstream. A failed check is an actor.Refusal.
//
// It is a part of the server without a promise of compatibility: programs use package troupe.
package dispatcher
