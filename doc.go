// SPDX-License-Identifier: Apache-2.0

// Package troupe is the root of a runtime for AI agents. Agents are virtual
// actors that call each other safely. An agent always exists by name, is
// activated by its first message, processes one turn at a time and survives a
// kill -9. It may call other agents with a call chain, a depth, a deadline and a
// budget that it cannot forge. A simulator with seeded random input tests the
// same code that runs in production. This package exports nothing: the packages
// below implement the runtime, cmd/troupe is the command, and arch_test.go
// checks the import table.
package troupe
