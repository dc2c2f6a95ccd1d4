// SPDX-License-Identifier: Apache-2.0

// Package specs says what must always be true, in Go: each spec is the twin of a TLA+ property.
//
// A Checker reads histories. It derives what it needs from events alone: who
// waits for whom, how deep, with how much time, how many messages stand in a
// mailbox, and what a crash may take back. What the code under test says of
// itself is compared with that, never believed.
//
// A world owes the checker this:
//
//  1. Observe gets all events of one step of one cell together, in their order,
//     and behind them the Append of that step if it wrote entries. What the world
//     itself does (Claim, Lose, Sync, Perform, Crash, Restart) comes in the order
//     in which it happens, one or many at a time.
//  2. Append: From, Pos the log's end behind the step, Wrote its entries.
//  3. Sync: From.Node, Synced how far the log is truly durable.
//  4. Perform, as an effect leaves the node (a message to another cell of the
//     same node does not): From; What respond, send, publish, tool or work; Call
//     the run, of send the message's call, of respond the client's; Why the
//     message's name (request, answered, …); Pos the log's end right behind the
//     step that wanted it; Synced; Status and Reason of an answer, told or sent;
//     Step, Index, Attempt of tool and work.
//  5. Crash: From.Node, Synced the end of what its disk kept. Restart of a cell
//     whose node lives on names the new incarnation; of a node it says nothing new.
//  6. Claim and Lose: From, Epoch, the shards.
package specs
