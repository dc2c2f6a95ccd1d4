// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"maps"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/tools"
)

// CallCycles finds the calls that could go round among agents that name whom they may
// call: each as the path from an agent back to it, "a -> b -> a". At run time
// such a call is refused; who writes the files may want to know before.
//
// Of each agent that stands in no loop told already the shortest is told.
func CallCycles(specs []Spec) []string {
	calls := map[string][]string{}
	for i := range specs {
		s := &specs[i]
		if s.Kind == KindDeclared && slices.Contains(s.Tools, tools.CallAgent) {
			calls[s.ID] = s.Agents
		}
	}
	var loops []string
	told := map[string]bool{}
	for _, from := range slices.Sorted(maps.Keys(calls)) {
		if told[from] {
			continue
		}
		if path := shortestCycle(calls, from); path != nil {
			loops = append(loops, strings.Join(path, " -> "))
			for _, a := range path {
				told[a] = true
			}
		}
	}
	return loops
}

// shortestCycle is the shortest way from an agent back to itself, or nil.
func shortestCycle(calls map[string][]string, from string) []string {
	before := map[string]string{}
	for level := []string{from}; len(level) > 0; {
		var next []string
		for _, a := range level {
			for _, to := range calls[a] {
				if to == from {
					path := []string{from}
					for ; a != from; a = before[a] {
						path = append(path, a)
					}
					slices.Reverse(path[1:])
					return append(path, from)
				}
				if _, seen := before[to]; !seen {
					before[to] = a
					next = append(next, to)
				}
			}
		}
		level = next
	}
	return nil
}
