// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// Names of agents. A call addresses an agent by ID or by a unique name. The caller's
// cell resolves the name once: the recorded ask holds the callee, and a replay does not
// resolve it again.

// callees returns the agents that the turn may call; nil: any.
func (t *turn) callees() []string {
	if t.def == nil {
		return nil
	}
	return t.def.Callees
}

// requests returns the agents for whose capabilities the turn may ask; nil: any.
func (t *turn) requests() []string {
	if t.def == nil {
		return nil
	}
	return t.def.Requests
}

// planCall resolves the target of a call that a turn requests directly, and validates
// the call.
func (t *turn) planCall(c *Cell, ask actor.Ask) (actor.Ask, *tools.Result) {
	target, refusal := c.callable.Resolve(ask.Name, t.callees())
	if refusal != nil {
		return actor.Ask{}, &tools.Result{Refusal: refusal}
	}
	ask.Name = target
	return tools.PlanCall(ask, t.run.Call.To)
}

// callTools returns the tools with which a declared agent calls others. Their
// descriptions list the agents that it may call now.
func (v *env) callTools(def *actor.Definition) (specs []upstream.ToolSpec) {
	if def == nil || def.Kind != actor.Declared {
		return nil
	}
	if request, ok := v.tools.Tool(tools.RequestCapability); ok && (def.Requests == nil || len(def.Requests) > 0) {
		specs = append(specs, upstream.ToolSpec{Name: request.Name, Description: v.callable.DescribeCapabilities(def.Name, def.Requests), Schema: request.Schema})
	}
	if def.Callees != nil && len(def.Callees) == 0 {
		return specs
	}
	call, ok := v.tools.Tool(tools.CallAgent)
	if !ok {
		return specs
	}
	description, all := v.callable.Describe(def.Name, def.Callees)
	specs = append(specs, upstream.ToolSpec{Name: call.Name, Description: description, Schema: call.Schema})
	if list, ok := v.tools.Tool(tools.ListAgents); ok && !all {
		specs = append(specs, upstream.ToolSpec{Name: list.Name, Description: list.Description, Schema: list.Schema})
	}
	return specs
}

// resolveTargets replaces names of agents by IDs in the tool calls of a completion, if
// the agent may call certain agents only. Its turn compares the targets with their IDs
// and is replayed, so the IDs are recorded with the completion.
func (t *turn) resolveTargets(c *Cell, answer actor.Answer) actor.Answer {
	def := t.def
	if def == nil {
		def = c.definitions.of(t.run)
	}
	if def == nil || len(def.Callees) == 0 || answer.Refusal != nil || len(answer.Parts) != 1 {
		return answer
	}
	completion, err := upstream.DecodeCompletion(answer.Parts[0].Bytes)
	if err != nil {
		return answer
	}
	changed := false
	for i := range completion.Calls {
		call := &completion.Calls[i]
		if call.Name != tools.CallAgent {
			continue
		}
		input, ok := tools.ReplaceTarget([]byte(call.Arguments), func(target string) string {
			if to, refusal := c.callable.Resolve(target, def.Callees); refusal == nil {
				return to
			}
			return target
		})
		if ok {
			call.Arguments, changed = string(input), true
		}
	}
	if changed {
		answer.Parts = []actor.Part{{Media: answer.Parts[0].Media, Bytes: completion.Encode()}}
	}
	return answer
}
