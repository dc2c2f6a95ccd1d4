// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"maps"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/tools"
)

// CallCycles returns the call cycles among declared agents, to warn their authors: at
// run time the call that closes a cycle is refused. Each cycle is a path from an
// agent back to itself, such as "a -> b -> a".
//
// An agent that may call any agent is ignored. For each agent that is not part of a
// cycle found before, the shortest cycle through that agent is returned.
func CallCycles(specs []Spec) []string {
	calls := map[string][]string{}
	for i := range specs {
		s := &specs[i]
		if s.Kind == KindDeclared && slices.Contains(s.Tools, tools.CallAgent) {
			calls[s.ID] = s.Agents
		}
	}
	var cycles []string
	listed := map[string]bool{}
	for _, from := range slices.Sorted(maps.Keys(calls)) {
		if listed[from] {
			continue
		}
		if path := shortestCycle(calls, from); path != nil {
			cycles = append(cycles, strings.Join(path, " -> "))
			for _, a := range path {
				listed[a] = true
			}
		}
	}
	return cycles
}

// shortestCycle returns the shortest path from an agent back to itself, or nil.
func shortestCycle(calls map[string][]string, from string) []string {
	parent := map[string]string{}
	for level := []string{from}; len(level) > 0; {
		var next []string
		for _, a := range level {
			for _, to := range calls[a] {
				if to == from {
					path := []string{from}
					for ; a != from; a = parent[a] {
						path = append(path, a)
					}
					slices.Reverse(path[1:])
					return append(path, from)
				}
				if _, seen := parent[to]; !seen {
					parent[to] = a
					next = append(next, to)
				}
			}
		}
		level = next
	}
	return nil
}
