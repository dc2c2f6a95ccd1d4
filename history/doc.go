// SPDX-License-Identifier: Apache-2.0

// Package history defines the protocol steps of an execution, their trace format and the state of a cell.
//
// An event is named after the TLA+ action that it is an instance of. It carries
// all data that the specs need to check it. Histories are the input of the specs, of
// trace validation and of the columns that a simulation prints. They are not durable,
// and clients never see them.
package history
