// SPDX-License-Identifier: Apache-2.0

// Package engine turns the cells of one node: it feeds them inputs, appends
// their entries to the node's log, and performs their effects. It decides
// nothing about actors.
//
// Each cell is a protoactor actor with a Mailbox and a Dispatcher of our own:
//
//	clients ──────────▶ ring ─┐                       ┌──▶ entries ─▶ log
//	cells ───messages──▶  ┘    │                       │
//	effects done ──▶ answers ──┼─▶ one thread ─▶ Step ─┼──▶ messages ─▶ rings
//	time ─────────────▶ tick ──┘   at a time           └──▶ effects, gated ones
//	                                                        once the log says so
//
// A cell's thread is whoever holds its flag: its own goroutine, or that of a
// client who finds the cell idle and steps it at once, so that a call that need
// not wait for the disk wakes no goroutine. It steps on a stack of its own, a
// coroutine, which agents' code may end without ending whoever lent the thread. From there the client's goroutine
// goes on to the cells that were sent something, until its answer is in or its
// time is over; it never holds two flags.
//
// What is promised:
//
//  1. A step's entries are appended before any of its messages is handed over.
//     A gated effect is performed only when the log is durable up to there.
//  2. A cell is stepped by one goroutine at a time, one input at a time; no other
//     cell, client or disk can make it wait but the log, when that is full.
//  3. Messages from one cell to another keep their order and are never lost
//     but with a cell. What finds a ring full waits with its sender, in order;
//     clients are refused meanwhile. Two cells that send to each other cannot
//     lock up, because neither waits.
//  4. A cell whose step panicked, or whose agent called runtime.Goexit, is never
//     stepped again; neither ends the goroutine it ran on. The supervisor makes
//     the next incarnation, under new epochs, which loads what was open; its
//     neighbours are told, and clients that wait are asked for again. A client
//     gets one answer: whoever takes its waiter off the list gives it.
//  5. What comes of an effect is taken in once: pieces of an answer one after the
//     other, none lost and none twice, over any number of incarnations. Who is
//     not ready yet finds it kept.
//  6. A step that takes too long is named while it does, with the message that it
//     is about. When nothing is stepped, nothing runs.
//  7. After Close no goroutine is left, but for work of an agent's own that
//     does not heed its context.
//
// What is bounded: a ring by its slots, waiting clients by ClientsMax, effects
// under way by EffectsMax, what waits for a full ring by spillMax, what one
// goroutine does for others by helpRounds and helpFor. A cell's answers are
// bounded by what it asked for. Whatever is over a bound is refused as Busy, and a
// cell with more than spillMax messages to hand over begins anew.
//
// Who calls Ask lends its goroutine: it holds no lock that an effect may want, and
// is not locked to its thread, for turns are coroutines, and those end the process
// there. That is so for host's own goroutines; a door to Go programs would have to
// put its calls into the ring and leave them to the cell's goroutine.
package engine
