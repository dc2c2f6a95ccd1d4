// SPDX-License-Identifier: Apache-2.0

//go:build mutants

package mutant

import (
	"os"
	"strconv"
	"strings"
)

// Now is the name of the enabled mutant; "" is the unmutated program. It exists
// only in the mutants build, where the command mutants sets it between runs.
var Now = os.Getenv("MUTANT")

// On reports whether the named mutant is enabled.
func On(name string) bool { return Now == name }

// drawn is the number of the enabled drawn mutant; -1 enables none.
var drawn = drawnNumber(Now)

// drawnNumber returns the number n of the name drawn:n, or -1.
func drawnNumber(name string) int {
	text, ok := strings.CutPrefix(name, "drawn:")
	n, err := strconv.Atoi(text)
	if !ok || err != nil {
		return -1
	}
	return n
}

// Only the sources that test/mutation writes call Drawn, Selected and Differs.

// Drawn reports whether the drawn mutant with this number is enabled.
func Drawn(n int) bool {
	if Reached != nil {
		Reached[n] = true
	}
	return n == drawn
}

// Selected is Drawn for a mutant whose value Differs compares.
func Selected(n int) bool { return n == drawn }

// Differs returns the original value of an expression. A mutant whose value equals it
// changes nothing here and is not reached. The function mutated has no side effect. If it
// panics, the mutant differs.
func Differs[T comparable](n int, original T, mutated func() T) T {
	if Reached != nil && !Reached[n] {
		Reached[n] = true
		func() {
			defer func() { _ = recover() }()
			Reached[n] = mutated() != original
		}()
	}
	return original
}

// Reached records the drawn mutants that can have changed the behaviour of the program;
// nil records none. It holds one element per mutant. A program that sets it runs one
// simulation at a time.
var Reached []bool
