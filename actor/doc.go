// SPDX-License-Identifier: Apache-2.0

// Package actor holds the words everyone speaks: ID, Call, Reply, Refusal, Part, Action, Ask, Answer, Behavior, Time; and the wire codec.
//
// Everything here is a value. Nothing knows where an actor lives, who carries a
// message, or what a disk is. A word that leaves a cell is encoded by Encode and
// read back by Decode, which refuses what it does not know and names the byte.
package actor
