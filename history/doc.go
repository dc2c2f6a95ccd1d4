// SPDX-License-Identifier: Apache-2.0

// Package history defines the protocol steps of an execution, their trace format and the state of a cell.
//
// An event is one instance of a TLA+ action and has the name of that action. It
// carries all data that the specs need to check the event. Histories are the input of
// the specs, of trace validation and of the columns that a simulation prints.
// Histories are not durable, and clients never see them.
//
// It is a part of the server without a promise of compatibility: programs use package troupe.
package history
