// SPDX-License-Identifier: Apache-2.0

package mcp

import (
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
