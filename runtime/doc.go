// SPDX-License-Identifier: Apache-2.0

// Package runtime runs one cell, one step at a time. It has no clock and no threads; a world turns the crank.
//
// A Cell is a state machine: Step takes the time and one Input, and returns a
// Ready of entries to append to the node's log, effects to perform, and events
// for the specs. The same inputs in the same order give the same Readys. A
// world appends a Ready's entries before it hands over any of its effects, and
// holds back those that are Gated until the log is durable up to there.
package runtime
