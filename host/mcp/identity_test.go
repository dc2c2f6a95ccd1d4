// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"fmt"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/tools"
)

// A server gets the user of each call only if its configuration demands it.
func TestMetaHasIdentityIfAskedFor(t *testing.T) {
	call := engine.ToolCall{ID: runs.ToolCallID{Run: actor.NewCallID(1, 2, 3)}, Call: actor.Call{ID: actor.NewCallID(1, 2, 3), Principal: "alice", To: actor.NewID("front", "s-1")}}
	for _, identity := range []string{"", tools.IdentityHeaders} {
		s := &server{config: Config{Identity: identity}}
		meta := s.metaFor(&call)
		for name, want := range map[string]string{"user": "alice", "session": "s-1", "agent": "front", "run": call.Call.ID.String()} {
			if got := meta["troupe.run/"+name]; (identity != "") != (got == want) || identity == "" && got != nil {
				t.Errorf("identity %q: %s is %v, want %s", identity, name, got, want)
			}
		}
	}
}

// With traces a call names the span of this server, in the trace of its client.
func TestMetaHasSpan(t *testing.T) {
	const client = "4bf92f3577b34da6a3ce929d0e0e4736"
	call := engine.ToolCall{ID: runs.ToolCallID{Run: actor.NewCallID(1, 2, 3), Step: 2, Index: 1}, Call: actor.Call{ID: actor.NewCallID(1, 2, 3), To: actor.NewID("front", "s-1"), Trace: "00-" + client + "-00f067aa0ba902b7-01 vendor=1"}}
	for spans, want := range map[bool]string{false: "00-" + client + "-00f067aa0ba902b7-01", true: fmt.Sprintf("00-%s-%x-01", client, runs.SpanOfAsk(call.ID.Run, 2, 1))} {
		s := &server{config: Config{Spans: spans}}
		if meta := s.metaFor(&call); meta["traceparent"] != want || meta["tracestate"] != "vendor=1" {
			t.Errorf("spans %v: got %v, want %s", spans, meta, want)
		}
	}
}
