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

// Drawn reports whether the drawn mutant with this number is enabled. Only the
// sources that test/mutation writes call it.
func Drawn(n int) bool {
	if Reached != nil {
		Reached[n] = true
	}
	return n == drawn
}

// Reached records the drawn mutants that the program evaluated; nil records none. It
// holds one element per mutant. A program that sets it runs one simulation at a time.
var Reached []bool
