// SPDX-License-Identifier: Apache-2.0

// Package must states what cannot be otherwise: a broken one is our own bug, and a panic.
//
// What the protocol foresees is a value (actor.Refusal), what the world does to
// us is an error; only what we ourselves did wrong ends here. The checks are
// cheap and stay on in production.
package must

import "fmt"

// Be panics with the sentence unless ok.
func Be(ok bool, format string, args ...any) {
	if !ok {
		panic(fmt.Sprintf(format, args...))
	}
}

// Do returns v, or panics with err: for calls that cannot fail on our own bytes.
func Do[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
