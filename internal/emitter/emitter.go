// SPDX-License-Identifier: Apache-2.0

// Package emitter passes pieces of an answer from work to the host that performs it.
package emitter

import "context"

type key struct{}

// With returns the context of work, whose Emit calls the function emit.
func With(ctx context.Context, emit func(text string)) context.Context {
	return context.WithValue(ctx, key{}, emit)
}

// Emit passes a piece of text to the run of work, by its context. It returns once the run has
// recorded it, and reports false for another context.
func Emit(ctx context.Context, text string) bool {
	emit, ok := ctx.Value(key{}).(func(text string))
	if ok {
		emit(text)
	}
	return ok
}
