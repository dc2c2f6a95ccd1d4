// SPDX-License-Identifier: Apache-2.0

// Package linear asks whether a history could be that of one machine: of idempotency keys, of owners, of what actors keep.
//
// The other specs read what cells tell of themselves. These read what can be
// seen from outside: what clients asked and were told, and when; what the shared
// store was asked to write, and whether it did. A history holds if its operations
// can be put in one order in which each takes effect at some instant between its
// beginning and its end, and a machine that did them one by one would have said
// the same (porcupine looks for that order). What never came back may have been
// done then, later, or not at all.
//
//	Keys     all asks under one idempotency key, and what runs did for them
//	Owners   all claims of a group of shards, and all writes and turns under them
//	Kept     all messages to one actor that keeps a value: each leaves one, and is
//	         told the one that was left before
//
// Histories are cut up by key, group and actor, and made smaller where that
// provably changes no verdict; so a world's are judged within milliseconds. One
// that is not judged within its bound of time is counted as undecided, which is
// no pass.
package linear
