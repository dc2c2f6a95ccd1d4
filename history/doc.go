// SPDX-License-Identifier: Apache-2.0

// Package history says what happened, in order: one event per protocol step, and the whole state as a value.
//
// An event is named like the TLA+ action it is an instance of, and carries what
// the specs need to judge it without asking anybody. Histories are for specs,
// columns and trace validation; they are not durable and no client sees them.
package history
