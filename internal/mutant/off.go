// SPDX-License-Identifier: Apache-2.0

//go:build !mutants

package mutant

// On is constant false in a normal build: the compiler removes the code it guards.
func On(string) bool { return false }
