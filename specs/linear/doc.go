// SPDX-License-Identifier: Apache-2.0

// Package linear checks that histories are linearizable: those of idempotency keys, of shard
// owners, and of actors that hold a value.
//
// The specs of package specs read events reported by cells. The specs of this package read only
// what is visible from outside: the requests and responses of clients, with their times, and the
// writes requested from the shared store, with their results. A history is linearizable if its
// operations can be put in one order that meets two conditions. Each operation takes effect at an
// instant between its call and its return, and a sequential machine that executes them in this
// order returns the same results. Porcupine searches for such an order. An operation that never
// returned may have taken effect at any time after its call, or not at all.
//
//	Keys     all requests under one idempotency key, and the effects of their runs
//	Owners   all claims of a group of shards, and all writes and turns under them
//	Kept     all messages to one actor that holds a value: each stores a new value
//	         and returns the previous one
//
// Histories are partitioned by key, group and actor. They are reduced where the reduction
// provably preserves the verdict. The histories of a simulation are thus checked within
// milliseconds. A history that is not decided within the time limit counts as undecided, which is
// not a pass.
//
// It is a part of the server without a promise of compatibility: programs use package troupe.
package linear
