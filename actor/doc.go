// SPDX-License-Identifier: Apache-2.0

// Package actor defines the values shared by all packages, and their wire codec.
// Among them are ID, Call, Reply, Refusal, Part, Action, Ask, Answer, Behavior and
// Time.
//
// Everything here is a value. The package does not know the location of an actor,
// the transport of a message, or the disk. A value that leaves a cell is encoded
// by Encode and parsed by Decode. Decode rejects unknown input and reports the
// offset of the offending byte.
//
// It is a part of the server without a promise of compatibility: programs use package troupe.
package actor
