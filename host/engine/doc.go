// SPDX-License-Identifier: Apache-2.0

// Package engine turns the cells of one node: it feeds them inputs, appends
// their entries to the node's log, and performs their effects. It decides
// nothing about actors.
//
// Each cell is a protoactor actor with a Mailbox and a Dispatcher of our own:
//
//	clients, cells ─bytes▶ ring ─┐
//	effects done ──────▶ answers ─┼─▶ one goroutine ─▶ Step ─▶ entries ─▶ log
//	time ──────────────▶ tick   ─┘                      └──▶ effects, gated ones
//	                                                          once the log says so
//
// What is promised:
//
//  1. A step's entries are appended before any of its messages is handed over.
//     A gated effect is performed only when the log is durable up to there.
//  2. A cell is stepped by its own goroutine, one input at a time; no other
//     cell, client or disk can make it wait but the log, when that is full.
//  3. Messages from one cell to another keep their order and are never lost
//     but with a cell. What finds a ring full waits with its sender, in order;
//     clients are refused meanwhile. Two cells that send to each other cannot
//     lock up, because neither waits.
//  4. A cell that panicked in Step is never stepped again. The supervisor makes
//     its next incarnation, under new epochs, which loads what was open; its
//     neighbours are told, and clients that wait are asked for again.
//  5. After Close no goroutine is left, but for work of an agent's own that
//     does not heed its context.
//
// What is bounded: a ring by its slots, waiting clients by ClientsMax, effects
// under way by EffectsMax, what waits for a full ring by spillMax. A cell's
// answers are bounded by what it asked for. Whatever is over a bound is refused
// as Busy, and a cell with more than spillMax messages to hand over begins anew.
package engine
