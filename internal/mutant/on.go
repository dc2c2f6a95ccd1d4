// SPDX-License-Identifier: Apache-2.0

//go:build mutants

package mutant

import "os"

// Now names the mutant that is switched on; "" is the unmutated program.
// Only the mutants build has it; the lane sets it between runs.
var Now = os.Getenv("MUTANT")

// On tells whether the named mutant is switched on.
func On(name string) bool { return Now == name }
