// SPDX-License-Identifier: Apache-2.0

// Package dispatcher decides where an actor lives and whether it may take one more message. It decides; it never delivers.
//
// Route holds the checks at the caller's cell, in their order: target exists,
// depth, cycle, time left, outstanding calls, budget. Mailbox holds the last
// one at the callee's: room by count, bytes and age. Table says who owns a
// shard, under which epoch. A "no" is an actor.Refusal.
package dispatcher
