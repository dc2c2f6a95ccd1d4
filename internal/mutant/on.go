// SPDX-License-Identifier: Apache-2.0

//go:build mutants

package mutant

import "os"

// Now is the name of the enabled mutant; "" is the unmutated program. The command
// mutants sets it between runs.
var Now = os.Getenv("MUTANT")

// On reports whether the named mutant is enabled.
func On(name string) bool { return Now == name }
