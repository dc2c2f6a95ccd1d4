// SPDX-License-Identifier: Apache-2.0

// Package invariant checks invariants of the program and panics when one is violated.
//
// A violated invariant is a bug in this program. Outcomes that the protocol
// foresees are values (actor.Refusal); failures of the environment are errors.
// The checks are cheap and stay enabled in production.
package invariant

import "fmt"

// Check panics with the formatted message unless ok is true.
func Check(ok bool, format string, args ...any) {
	if !ok {
		panic(fmt.Sprintf(format, args...))
	}
}

// Must returns v, or panics if err is not nil. It is for calls that cannot fail
// on data this program produced itself.
func Must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
