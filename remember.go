// SPDX-License-Identifier: Apache-2.0

package troupe

import (
	"slices"

	"github.com/troupe-run/troupe/agents"
)

// Memory grants an agent the tools memory_search, memory_create, memory_traverse and memory_forget. Turn.Model offers
// them to models, and [Turn.Tool] calls them: each takes the members of the request of the HTTP API with its name, and
// returns the JSON of its answer.
//
//	found, err := t.Tool("memory_search", map[string]any{"query": "tea"})
type Memory struct {
	Search, Create, Traverse, Forget bool

	// whose memory: "session", "agent", "workspace" (of the user) and "global" (read only). The first one is the
	// default of the tools; nil means that of the session
	Scope []string
}

// grants returns the grants for the runtime.
func (m *Memory) grants() (agents.MemoryGrants, error) {
	g := agents.MemoryGrants{Search: m.Search, Create: m.Create, Traverse: m.Traverse, Forget: m.Forget, Scope: slices.Clone(m.Scope)}
	g.SetDefaults()
	return g, g.Check()
}
