// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/memory"
	"github.com/troupe-run/troupe/tools"
)

// memoryInput is the input of each of the tools with which agents remember.
type memoryInput struct {
	Scope string `json:"scope"`

	Query      string  `json:"query"`
	Limit      float64 `json:"limit"`
	Superseded bool    `json:"superseded"`

	Entity     string              `json:"entity"`
	Content    string              `json:"content"`
	Relations  []memory.RelationTo `json:"relations"`
	Supersedes string              `json:"supersedes"`
	Reason     string              `json:"reason"`

	From     string  `json:"from"`
	Relation string  `json:"relation"`
	Depth    float64 `json:"depth"`
}

// memoryTool returns the handler of a tool. What an agent may do is decided by its current definition.
func (c *catalogSync) memoryTool(tool string) tools.Handler {
	return func(ctx context.Context, input []byte) tools.Result {
		select {
		case <-c.attached:
		case <-ctx.Done():
			return tools.Refused(actor.Refuse(actor.Unavailable, "%v", ctx.Err()))
		}
		var in memoryInput
		if err := json.Unmarshal(input, &in); err != nil {
			return tools.Refused(actor.Refuse(actor.Invalid, "%s: %v", tool, err))
		}
		call, ok := engine.ToolCallOf(ctx)
		m := c.memories
		if !ok || m == nil {
			return tools.Refused(MemoryOff())
		}
		grants := c.grants[call.Call.To.Agent]
		if spec, _, _, ok := c.spec(call.Call.To.Agent); ok {
			grants = spec.Memory
		}
		scope, refusal := grants.ScopeFor(call.Call.To.Agent, tool, in.Scope)
		if refusal != nil {
			return tools.Refused(refusal)
		}
		key := ""
		switch scope {
		case memory.Agent:
			key = call.Call.To.Agent
		case memory.Session:
			key = call.Call.To.Key
		}
		id, err := scope.ID(call.Call.To.Tenant, key)
		if err != nil {
			return tools.Refused(actor.Refuse(actor.Invalid, "%s: %v", tool, err))
		}
		result, err := m.perform(ctx, tool, scope, id, &call, &in)
		var r *actor.Refusal
		switch {
		case errors.As(err, &r):
			return tools.Refused(r)
		case err != nil:
			return tools.Refused(actor.Refuse(actor.Unavailable, "%s: %v", tool, err))
		}
		return tools.JSON(result)
	}
}

// perform performs a tool for a run.
func (m *memories) perform(ctx context.Context, tool string, scope memory.Scope, id actor.ID, by *engine.ToolCall, in *memoryInput) ([]byte, error) {
	q := command.MemoryQuery{Kind: command.MemorySearch, Text: in.Query, Superseded: in.Superseded, Limit: int(in.Limit)}
	change := memory.Change{Entity: in.Entity, Content: in.Content, Relations: in.Relations, Supersedes: in.Supersedes, Reason: in.Reason}
	operation := memory.OpCreate
	switch tool {
	case tools.MemoryTraverse:
		q = command.MemoryQuery{Kind: command.MemoryTraverse, Text: in.From, Relation: in.Relation, Depth: int(in.Depth)}
		fallthrough
	case tools.MemorySearch:
		found, err := m.ask(ctx, id, scope, q)
		if err != nil {
			return nil, err
		}
		return found.(command.Memory).JSON, nil
	case tools.MemoryForget:
		operation, change = memory.OpForget, memory.Change{Entity: in.Entity, Reason: in.Reason}
	}
	of := &by.Call
	change.Source = memory.Source{Run: of.ID.String(), Call: by.ID.String(), Agent: of.To.Agent, User: of.Principal}
	change.Source.Session, _ = of.To.Session()
	if r := m.commands.admitStorage(of.To.Tenant, &change, operation); r != nil {
		return nil, r
	}
	answer, err := m.change(ctx, actor.Call{ID: m.commands.engine.NewCallID(), To: id, Operation: operation, Principal: of.Principal, Origin: actor.System}, change)
	switch {
	case err != nil:
		return nil, err
	case answer.Reply.Refusal != nil:
		return nil, answer.Reply.Refusal
	case len(answer.Reply.Parts) != 1:
		return nil, actor.Refuse(actor.Unavailable, "%s: no answer in time; repeat it: it is performed once", tool)
	}
	return answer.Reply.Parts[0].Bytes, nil
}

// registerMemory adds the tools with which agents remember.
func (c *catalogSync) registerMemory(enabled bool) error {
	if !enabled {
		return nil
	}
	for _, t := range tools.Memory(c.memoryTool) {
		if err := c.tools.RegisterBuiltin(t); err != nil {
			return err
		}
	}
	return nil
}
