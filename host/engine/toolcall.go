// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"

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
