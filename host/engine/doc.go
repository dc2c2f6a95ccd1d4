// SPDX-License-Identifier: Apache-2.0

// Package engine runs the cells of one node. It feeds them inputs, appends
// their entries to the node's log, and performs their effects. It makes no
// decisions about actors.
//
// Each cell is a protoactor actor with its own Mailbox and Dispatcher:
//
//	clients ──────────▶ queue ──┐                           ┌──▶ entries ─▶ log
//	cells ───messages──▶  ┘     │                           │
//	effects ──▶ completions ────┼─▶ one goroutine ─▶ Step ──┼──▶ messages ─▶ queues
//	timer ───────────▶ tick ────┘    at a time              └──▶ effects; gated ones
//	                                                            once the log is durable
//
// The goroutine that steps a cell holds it: it has set the running flag of the
// cell's mailbox. The holder is the cell's own worker, or the goroutine of a
// client that found the cell idle. A call that does not wait for the disk is
// therefore served without waking another goroutine. After the cell of its own
// call, the client's goroutine continues with the cells that received messages.
// It stops once its answer has arrived or its time is used up. A goroutine
// never holds two cells.
//
// Cells are stepped on a coroutine. Agent code that ends the coroutine with
// runtime.Goexit does not end the goroutine that holds the cell.
//
// The package guarantees:
//
//  1. A step's entries are appended before any of its messages is delivered. A
//     gated effect is performed only once the log is durable up to that step.
//  2. A cell is stepped by one goroutine at a time, one input at a time. No
//     other cell, client or disk can block the cell. Exception: a full log.
//  3. Messages between two cells keep their order and are lost only when a cell
//     fails. A message that finds a queue full waits at its sender, in order.
//     The sender refuses clients while it has such messages. Two cells that send to
//     each other cannot deadlock, because neither blocks.
//  4. A cell whose step panicked, or whose agent called runtime.Goexit, is
//     never stepped again. Neither failure ends the goroutine that ran the
//     step. The supervisor starts the next incarnation under new epochs. That
//     incarnation loads the open work. The other cells are notified, and the
//     calls of waiting clients are delivered again. A client gets one answer:
//     the goroutine that removes its waiter from the table resolves it.
//  5. Each result of an effect is stepped exactly once and in order: no piece
//     of an answer is lost or repeated, across any number of incarnations. A
//     result that the cell does not await yet is kept until the cell awaits it.
//  6. A step that takes too long is reported while it runs, with the message it
//     handles. An idle cell runs nothing.
//  7. After Close no goroutine is left, except for an agent's own work that ignores
//     its context.
//
// The bounds are: QueueSlots for each queue, ClientsMax for waiting clients,
// EffectsMax for running effects, overflowMax for messages that wait for a full
// queue, helpRoundsMax and helpTimeMax for the time one goroutine spends on
// other cells. The number of completions is bounded by the requests of the
// cell. Work above a bound is refused as Busy. Exception: a cell with more than
// overflowMax undelivered messages restarts.
//
// Ask steps cells on the caller's goroutine. The caller MUST NOT hold a lock
// that an effect may need. It MUST NOT be locked to an OS thread either: turns
// are coroutines, and resuming one from a locked thread ends the process. The
// host's goroutines meet both conditions. An API for embedders would have to
// enqueue its calls and leave them to the cell's worker.
//
// It is a part of the server without a promise of compatibility: programs use package troupe.
package engine
