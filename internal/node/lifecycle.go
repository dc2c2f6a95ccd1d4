// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/tools"
)

// askerOf returns the agent of a run as the Asker of other agents, on behalf of the user of the run.
func (c *Commands) askerOf(by *engine.ToolCall) tools.Asker {
	asker := tools.Asker{Agent: by.Call.To.Agent, User: by.Call.Principal}
	def := c.definitionOf(asker.Agent)
	if def == nil {
		asker.Callees = []string{}
		return asker
	}
	var spec struct {
		Agents []string `json:"agents"`
	}
	if def.Spec == nil {
		asker.Callees = def.Callees
	} else if json.Unmarshal(def.Spec, &spec) == nil { // those that it names, also if it has no tool to call them
		asker.Callees = spec.Agents
	}
	return asker
}

// definitionOf returns the present definition of an agent; nil if it has none.
func (c *Commands) definitionOf(agent string) *actor.Definition {
	all := c.listAgents().of
	if i := slices.IndexFunc(all, func(d actor.Definition) bool { return d.Name == agent }); i >= 0 {
		return &all[i]
	}
	return nil
}

// checkMade refuses a definition that exceeds that of the agent that makes it, unless an approval was required: then a person has
// seen it.
func (c *catalogSync) checkMade(maker *agents.Spec, tool string, input []byte) *actor.Refusal {
	if tool != tools.AgentsCreate {
		return nil
	}
	caller := tools.Caller{Agent: maker.ID}
	if def := c.commands.definitionOf(maker.ID); def != nil && def.OfOperator() {
		caller.Owner = agents.Operator
	} else if def != nil {
		caller.Owner = def.Owner
	}
	if t, ok := c.own.Tool(tool); ok && c.own.Policy().Decide(caller, &t, input).Decision != runs.Allow {
		return nil
	}
	spec, err := agents.ReadJSON(input)
	if err != nil {
		return nil // the registry refuses it
	}
	return spec.CheckMade(maker, func(name string) bool {
		t, ok := c.registered(name)
		if !ok {
			return false
		}
		before, after := c.own.Policy().Possible(caller, &t), c.own.Policy().Possible(tools.Caller{Agent: spec.ID}, &t)
		return !slices.Equal(before, after) && slices.ContainsFunc(before, func(v tools.Verdict) bool { return v.Decision != runs.Allow })
	})
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

func agentsCreate(ctx context.Context, c *Commands, by *engine.ToolCall, input []byte) ([]byte, error) {
	return c.changeAgents(ctx, by, tools.AgentsCreate, agents.OpPut, input)
}

func agentsDelete(ctx context.Context, c *Commands, by *engine.ToolCall, input []byte) ([]byte, error) {
	return c.changeAgents(ctx, by, tools.AgentsDelete, agents.OpDelete, input)
}

// changeAgents has the registry perform an operation for the user of a run, as for a client with a key of this user that has no
// further rights. A repeat after a crash is answered as the call before it.
func (c *Commands) changeAgents(ctx context.Context, by *engine.ToolCall, tool, operation string, body []byte) ([]byte, error) {
	of := &by.Call
	if of.Principal == "" || of.Principal == agents.Operator {
		return nil, actor.Refuse(actor.Rejected, "%s: the run acts for no user to whom an agent could belong", tool)
	}
	a, err := c.Invoke(ctx, command.Invoke{By: actor.Principal{Tenant: of.To.Tenant, User: of.Principal}, Call: actor.Call{ID: c.NewCallID(), To: agents.RegistryID, Operation: operation,
		Principal: of.Principal, Origin: actor.System, Left: RegistryTimeout, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: body}},
		Idempotency: actor.Idempotency{Principal: of.Principal, Route: tool, Key: by.ID.String(), Body: actor.HashOf(body)}}}, nil)
	switch {
	case err != nil:
		return nil, err
	case a.Reply.Refusal != nil:
		return nil, a.Reply.Refusal
	case len(a.Reply.Parts) != 1:
		return nil, actor.Refuse(actor.Unavailable, "%s: no answer in time; repeat it: it is performed once", tool)
	}
	return json.Marshal(struct {
		Answer   jsontext.Value `json:",embed"`
		Warnings []string       `json:"warnings,omitempty"`
	}{a.Reply.Parts[0].Bytes, a.Reply.Warnings}, json.Deterministic(true))
}
