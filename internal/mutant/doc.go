// SPDX-License-Identifier: Apache-2.0

// Package mutant removes one guard at a time, so that the simulator can be shown to miss it.
//
// A guard in floors 0-2 that the simulator promises to find reads
//
//	if !mutant.On("cycle-check") && cycle(...) { refuse }
//
// In a normal build On is constant false and costs nothing. A build with the
// tag "mutants" chooses one name at run time.
package mutant
