// SPDX-License-Identifier: Apache-2.0

// Package troupe is the root of a runtime in which AI agents live as virtual
// actors and call each other safely. Every agent always exists by name, is
// activated by its first message, does one turn at a time, survives a kill -9,
// and may call other agents with a call chain, a depth, a deadline and a budget
// that it cannot forge. The code that serves production is the code that a
// seeded simulator tests. Nothing is exported here: the rooms below are the
// house, cmd/troupe is the command, and arch_test.go checks the import table.
package troupe
