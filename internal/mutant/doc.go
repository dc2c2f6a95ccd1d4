// SPDX-License-Identifier: Apache-2.0

// Package mutant removes one guard at a time, to show that the simulator detects its absence.
//
// A guard in layers 0-2 whose removal the simulator must detect reads
//
//	if !mutant.On("cycle-check") && cycle(...) { refuse }
//
// In a normal build On is constant false and costs nothing. A build with the tag
// "mutants" selects one name at run time.
package mutant
