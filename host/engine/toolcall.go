// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"sync"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/runtime"
)

// ToolCall identifies a call of a tool for its handler.
type ToolCall struct {
	ID   runs.ToolCallID // the same if the call is repeated after a crash
	Call actor.Call      // call that the run answers
}

// toolCallKey is the context key of the ToolCall of a handler.
type toolCallKey struct{}

// withToolCall returns a context from which ToolCallOf returns the call.
func withToolCall(ctx context.Context, id actor.EffectID, op *runtime.Tool) context.Context {
	return context.WithValue(ctx, toolCallKey{}, ToolCall{runs.ToolCallID{Run: id.Run, Step: id.Step, Index: id.Index}, op.Context.Call})
}

// ToolCallOf returns the call that the handler of a tool performs, by its context.
func ToolCallOf(ctx context.Context) (ToolCall, bool) {
	call, ok := ctx.Value(toolCallKey{}).(ToolCall)
	return call, ok
}

// emitKey is the context key of the emitter of work.
type emitKey struct{}

// emitter passes pieces of the answer of an effect, one after the other.
type emitter struct {
	mu   sync.Mutex
	pass func(actor.Piece)
}

// withEmitter returns a context for Emit.
func withEmitter(ctx context.Context, pass func(actor.Piece)) context.Context {
	return context.WithValue(ctx, emitKey{}, &emitter{pass: pass})
}

// Emit passes a piece of text to the run of work, by its context, and waits until the cell has recorded it.
// It reports false for another context.
func Emit(ctx context.Context, text string) bool {
	e, ok := ctx.Value(emitKey{}).(*emitter)
	if ok {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.pass(actor.Piece{Text: text})
	}
	return ok
}
