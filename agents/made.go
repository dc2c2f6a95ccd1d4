// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"slices"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/tools"
)

// CheckMade refuses a definition that an agent makes without a person's approval if it grants more than the maker has: other
// tools, scopes of memory or agents to call. A prompt could otherwise reach through the new agent what its own lacks. The argument
// laxer reports whether the policy is stricter with calls of a tool by the maker than by the new agent. An agent with a schedule acts without being asked.
func (s *Spec) CheckMade(maker *Spec, laxer func(tool string) bool) *actor.Refusal {
	exceeds := func(field, name string, has []string) *actor.Refusal {
		want := "want none"
		if len(has) > 0 {
			want = "want some of " + strings.Join(has, ", ")
		}
		r := actor.Refuse(actor.Rejected, "%s: %s may not give %s, which it lacks: %s; or have the policy require an approval of %s", field, maker.ID, name, want, tools.AgentsCreate)
		r.Field = field
		return r
	}
	needs := s.offered()
	if s.Kind == KindOrchestrator {
		needs = append(needs, tools.RequestCapability)
	}
	for _, name := range needs {
		if !slices.Contains(maker.offered(), name) {
			return exceeds("tools", name, maker.offered())
		}
	}
	for _, name := range needs {
		if laxer(name) {
			r := actor.Refuse(actor.Rejected, "tools: rules of the policy hold for %s when %s calls it, and not when %s does: have the policy require an approval of %s", name, maker.ID, s.ID, tools.AgentsCreate)
			r.Field = "tools"
			return r
		}
	}
	if len(s.Schedules) > 0 {
		r := actor.Refuse(actor.Rejected, "schedule: an agent that is made without an approval has none; have the policy require an approval of %s", tools.AgentsCreate)
		r.Field = "schedule"
		return r
	}
	for _, name := range s.Memory.Scope {
		if !slices.Contains(maker.Memory.Scope, name) {
			return exceeds("memory.scope", name, maker.Memory.Scope)
		}
	}
	if maker.Agents == nil {
		return nil
	}
	if s.Agents == nil && len(needs) > 0 {
		return exceeds("agents", "all agents", maker.Agents)
	}
	for _, name := range s.Agents {
		if !slices.Contains(maker.Agents, name) {
			return exceeds("agents", name, maker.Agents)
		}
	}
	return nil
}
