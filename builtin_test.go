// SPDX-License-Identifier: Apache-2.0

package troupe_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/troupe-run/troupe"
)

// An agent in Go uses the built-in tools that it lists, if the program switches them on.
func TestAgentInGoUsesBuiltinTools(t *testing.T) {
	for _, c := range []struct {
		builtin, tools []string
		want           string
	}{
		{[]string{"workspace_put"}, []string{"workspace_put"}, `"status":"created"`},
		{[]string{"workspace_put"}, nil, "agent clerk may not use workspace_put: its definition has to list it in tools"},
		{nil, []string{"workspace_put"}, "workspace_put"},
	} {
		clerk := remembering(troupe.Memory{})
		clerk.Tools = c.tools
		s := openWith(t, troupe.Config{Temporary: true, Builtin: c.builtin, Agents: []troupe.Agent{clerk}})
		reply, err := s.Call(t.Context(), "clerk", `workspace_put {"key":"a","content":"b"}`)
		got := reply.Text
		var r *troupe.Refusal
		if errors.As(err, &r) {
			got = r.Detail
		}
		if !strings.Contains(got, c.want) || c.builtin == nil && err == nil {
			t.Errorf("%v %v: got %s %v, want %s", c.builtin, c.tools, got, err, c.want)
		}
	}
	if _, err := troupe.Open(troupe.Config{Temporary: true, Builtin: []string{"workspace"}}); err == nil || !strings.Contains(err.Error(), "want some of agents_create, agents_delete, agents_list, agents_show, metrics_query, workspace_get, workspace_put") {
		t.Errorf("an unknown tool: %v", err)
	}
}
