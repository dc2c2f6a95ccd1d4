// SPDX-License-Identifier: Apache-2.0

package gateway

import "github.com/troupe-run/troupe/internal/command"

// agentNames finds the agents of one list by their display names. The names are in the
// specs, so the index is built once for each list.
type agentNames struct {
	of     []command.Agent
	byName map[string][]int // positions in the list, without system agents
}

// namesOf returns the index of a list of agents.
func (s *Server) namesOf(all []command.Agent) *agentNames {
	if n := s.agentNames.Load(); n != nil && n.isOf(all) {
		return n
	}
	n := &agentNames{all, make(map[string][]int, len(all))}
	for i := range all {
		if !all[i].System {
			name := displayName(all[i])
			n.byName[name] = append(n.byName[name], i)
		}
	}
	s.agentNames.Store(n)
	return n
}

// isOf reports whether the index was built for this list. The index keeps its list
// reachable, so that no other can have the same address.
func (n *agentNames) isOf(all []command.Agent) bool {
	return len(n.of) == len(all) && (len(all) == 0 || &n.of[0] == &all[0])
}
