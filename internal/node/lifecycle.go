// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"slices"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/tools"
)

// askerOf returns the agent of a run, as one that asks for others on behalf of the user of the run.
func (c *Commands) askerOf(by *engine.ToolCall) tools.Asker {
	asker := tools.Asker{Agent: by.Call.To.Agent, User: by.Call.Principal}
	all := c.listAgents().of
	i := slices.IndexFunc(all, func(d actor.Definition) bool { return d.Name == asker.Agent })
	if i < 0 {
		asker.Callees = []string{}
		return asker
	}
	var spec struct {
		Agents []string `json:"agents"`
	}
	if def := &all[i]; def.Spec == nil {
		asker.Callees = def.Callees
	} else if json.Unmarshal(def.Spec, &spec) == nil { // those that it names, also if it has no tool to call them
		asker.Callees = spec.Agents
	}
	return asker
}

func agentsList(_ context.Context, c *Commands, by *engine.ToolCall, input []byte) ([]byte, error) {
	var in struct {
		After string `json:"after"`
	}
	if err := json.Unmarshal(input, &in); err != nil {
		return nil, actor.Refuse(actor.Invalid, "%s: %v", tools.AgentsList, err)
	}
	return agents.ListAgents(c.listAgents().table, c.askerOf(by), in.After), nil
}

func agentsShow(_ context.Context, c *Commands, by *engine.ToolCall, input []byte) ([]byte, error) {
	var in struct {
		Agent string `json:"agent_id"`
	}
	if err := json.Unmarshal(input, &in); err != nil {
		return nil, actor.Refuse(actor.Invalid, "%s: %v", tools.AgentsShow, err)
	}
	asker := c.askerOf(by)
	def, refusal := c.listAgents().table.Find(asker, in.Agent)
	if refusal != nil {
		return nil, refusal
	}
	return agents.ViewAgent(def, asker.User), nil
}
