// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/internal/shares"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

// A builtin performs a tool that a configuration has switched on, for a run.
type builtin func(ctx context.Context, c *Commands, by *engine.ToolCall, input []byte) ([]byte, error)

var builtins = map[string]builtin{
	tools.AgentsCreate: agentsCreate,
	tools.AgentsDelete: agentsDelete,
	tools.AgentsList:   agentsList,
	tools.AgentsShow:   agentsShow,
	tools.MetricsQuery: metricsQuery,
	tools.WorkspaceGet: workspaceGet,
	tools.WorkspacePut: workspacePut,
}

// registerBuiltins adds the tools that the configuration has switched on.
func (c *catalogSync) registerBuiltins(names []string) error {
	for _, name := range names {
		if err := tools.CheckBuiltin(name); err != nil {
			return err
		}
		t := invariant.Must(tools.Builtin(name, c.forRun(c.listing(name))))
		if name == tools.AgentsCreate {
			t.Check = agents.CheckNew
		}
		if err := c.tools.Register(t); err != nil {
			return err
		}
	}
	return nil
}

// listing returns a tool for those agents alone whose current definition lists it.
func (c *catalogSync) listing(tool string) builtin {
	return func(ctx context.Context, commands *Commands, by *engine.ToolCall, input []byte) ([]byte, error) {
		agent := by.Call.To.Agent
		spec, _, _, ok := c.spec(agent)
		if !ok {
			spec = agents.Spec{ID: agent, Tools: c.offered[agent], Memory: c.grants[agent]}
		}
		if !slices.Contains(spec.Tools, tool) {
			return nil, actor.Refuse(actor.Rejected, "agent %s may not use %s: its definition has to list it in tools", agent, tool)
		}
		if r := c.checkMade(&spec, tool, input); r != nil {
			return nil, r
		}
		return builtins[tool](ctx, commands, by, input)
	}
}

// reading calls a function with the log, once everything that it shows is durable.
func (c *Commands) reading(ctx context.Context, read func(store.Reader) error) error {
	return errorOf(c.engine.Read(ctx, func(log store.Reader) error {
		c.store.RLock()
		defer c.store.RUnlock()
		if c.closed {
			return engine.ErrClosed
		}
		return read(log)
	}))
}

// stateOf returns the state of an actor of the runtime.
func (c *Commands) stateOf(ctx context.Context, id actor.ID) (items []actor.StateItem, err error) {
	err = c.reading(ctx, func(log store.Reader) error {
		j, err := View{Log: log}.journal(id)
		items = j.ActorState
		return err
	})
	if errors.As(err, new(store.Gone)) {
		return nil, actor.SessionNotFound(id.Key)
	}
	return items, err
}

// toolReads bounds the uses of a tool that read much. Users take turns.
type toolReads struct{ queue shares.Queue }

// toolReadsWaiting bounds the uses that wait, and those of one user.
const toolReadsWaiting, toolReadsEach = 256, 64

// begin waits until fewer than most uses are under way. The caller MUST call done at the end of its own.
func (r *toolReads) begin(ctx context.Context, by *engine.ToolCall, most int) (done func(), _ *actor.Refusal) {
	tenant := by.Call.To.Tenant
	if err := r.queue.Acquire(ctx, tenant, shares.QueueBounds{Open: most, Waiting: toolReadsWaiting, Each: toolReadsEach}); err != nil {
		return nil, actor.RefuseBusy(actor.ScopeNode, time.Second, "%d uses of this tool are under way, and more wait: retry later", most)
	}
	return func() { r.queue.Release(tenant) }, nil
}

// workspaceReadsMax is the maximum number of workspaces that are read at the same time: each takes memory for all its documents.
const workspaceReadsMax = 4

func workspaceGet(ctx context.Context, c *Commands, by *engine.ToolCall, input []byte) ([]byte, error) {
	var in struct {
		Key     string `json:"key"`
		Version uint64 `json:"version"`
		After   string `json:"after"`
	}
	if err := json.Unmarshal(input, &in); err != nil {
		return nil, actor.Refuse(actor.Invalid, "%s: %v", tools.WorkspaceGet, err)
	}
	if in.Key == "" && in.Version != 0 || in.Key != "" && in.After != "" {
		return nil, actor.Refuse(actor.Invalid, "%s: want a key, with a version or without, or neither for a list, with after or without", tools.WorkspaceGet)
	}
	done, refusal := c.workspaceReads.begin(ctx, by, workspaceReadsMax)
	if refusal != nil {
		return nil, refusal
	}
	defer done()
	items, err := c.stateOf(ctx, agents.WorkspaceID(by.Call.To.Tenant))
	if err != nil {
		return nil, err
	}
	if in.Key == "" {
		return agents.WorkspaceList(items, in.After), nil
	}
	result, refusal := agents.WorkspaceDocument(items, in.Key, in.Version)
	if refusal != nil {
		return nil, refusal
	}
	return result, nil
}

// workspacePut writes a document. A repeat after a crash is answered as the call before it, and writes nothing.
func workspacePut(ctx context.Context, c *Commands, by *engine.ToolCall, input []byte) ([]byte, error) {
	var in agents.WorkspacePut
	if err := json.Unmarshal(input, &in); err != nil {
		return nil, actor.Refuse(actor.Invalid, "%s: %v", tools.WorkspacePut, err)
	}
	of := &by.Call
	in.By = agents.WorkspaceBy{Agent: of.To.Agent, Run: of.ID.String()}
	in.By.Session, _ = of.To.Session()
	return c.askActor(ctx, by, tools.WorkspacePut, agents.WorkspaceID(of.To.Tenant), agents.OpWorkspacePut, actor.Part{Media: agents.MediaWorkspace, Bytes: in.Encode()})
}

// askActor has an actor of the runtime perform an operation once, for a tool that a run uses.
func (c *Commands) askActor(ctx context.Context, by *engine.ToolCall, tool string, to actor.ID, operation string, body actor.Part) ([]byte, error) {
	of := &by.Call
	if c.storage != nil {
		if r := c.storage.admit(of.To.Tenant, len(body.Bytes)); r != nil {
			return nil, r
		}
	}
	a, err := c.engine.Ask(ctx, actor.Call{ID: c.engine.NewCallID(), To: to, Operation: operation, Principal: of.Principal, Origin: actor.System, Left: noteTimeout, Parts: []actor.Part{body},
		Idempotency: actor.Idempotency{Principal: of.Principal, Route: tool, Key: by.ID.String(), Body: actor.HashOf(body.Bytes)}})
	switch {
	case err != nil:
		return nil, errorOf(err)
	case a.Reply.Refusal != nil:
		return nil, a.Reply.Refusal
	case len(a.Reply.Parts) != 1:
		return nil, actor.Refuse(actor.Unavailable, "%s: no answer in time; repeat it: it is performed once", tool)
	}
	return a.Reply.Parts[0].Bytes, nil
}
