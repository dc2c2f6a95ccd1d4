// SPDX-License-Identifier: Apache-2.0

// Package mutant removes one guard at a time, to show that the simulator detects its absence.
//
// No source of the product imports it. The rows of test/mutants change the guards of layers 0
// to 2 to conditions such as
//
//	if !mutant.On("cycle-check") && cycle(...) { refuse }
//
// and test/internal/overlay compiles them with the tag "mutants". Without the tag, On is
// missing.
package mutant
