// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/host/devices"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/host/prompts"
	"github.com/troupe-run/troupe/host/traces"
	"github.com/troupe-run/troupe/host/webhooks"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/internal/shares"
	"github.com/troupe-run/troupe/memory"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/signals"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

// Commands performs commands on an engine. It implements command.Node.
type Commands struct {
	engine *engine.Engine
	agents atomic.Pointer[agentList]
	tools  func() []agents.DeclaredTool // sorted by name; nil: the node has none

	toolTimeout actor.Duration // of calls of tools without their own

	devices *devices.Devices          // nil: the node has none
	remote  func() []command.MCPStats // nil: the node has no MCP servers
	chats   *chats                    // nil: the node has no models

	currency string // of the prices of models

	workspaceReads, metricReads toolReads

	memories *memories // nil: the node does not remember

	schedules *schedules // nil: the node sends no messages

	definitions func() ([]actor.Definition, error) // of agents, former ones that open runs may use too

	circuits func() []outbound.CircuitStat // nil: the node has no external agents
	webhooks func() []webhooks.Stats       // nil: the node has no webhooks
	prompts  *prompts.Store                // nil: none are recorded
	traces   func() traces.Stats           // nil: none are sent
	database database

	members *membership // nil: the node belongs to no cluster

	registry      registryCalls
	subscriptions *shares.Shares[string]

	storage *storageShares // nil: users have no shares of the disk

	store  sync.RWMutex // held for reading while the store is read
	closed bool         // the store must not be read
}

// close waits until no command reads the store, and refuses later reads. The
// store MUST NOT be closed before: it panics when it is read then.
func (c *Commands) close() {
	c.store.Lock()
	defer c.store.Unlock()
	c.closed = true
}

// agentList is the result of an AgentsQuery for one set of definitions, and their table.
type agentList struct {
	of     []actor.Definition
	result command.Result
	table  *tools.Agents
}

// NewCommands returns the command.Node of an engine.
func NewCommands(e *engine.Engine) *Commands {
	return &Commands{engine: e, registry: newRegistryCalls(), subscriptions: shares.New[string](SubscriptionShares)}
}

// NewCallID implements command.Node.
func (c *Commands) NewCallID() actor.CallID { return c.engine.NewCallID() }

// Invoke implements command.Node.
func (c *Commands) Invoke(ctx context.Context, in command.Invoke, joined func(run actor.CallID)) (command.Answer, error) {
	if a, passed, err := c.members.passInvoke(ctx, &in, joined); passed {
		return a, err
	}
	return c.invoke(ctx, in, joined)
}

// invoke is Invoke on this node.
func (c *Commands) invoke(ctx context.Context, in command.Invoke, joined func(run actor.CallID)) (command.Answer, error) {
	if _, remembers := memory.ScopeOf(in.Call.To); remembers {
		return c.changeMemory(ctx, in)
	}
	if r := in.By.CheckTenant(in.Call.To); r != nil {
		return refused(in.Call.ID, r), nil
	}
	if in.Call.Kind == actor.Signal {
		return refused(in.Call.ID, actor.Refuse(actor.Invalid, "kind: %s is not invoked: send a Signal", in.Call.Kind)), nil
	}
	if in.Call.To == agents.RegistryID {
		if r := c.admitDefinition(&in); r != nil {
			return refused(in.Call.ID, r), nil
		}
		a, err := c.registry.invoke(ctx, c.engine, in.By, in.Call)
		if err == nil {
			err = c.members.catchUp(ctx)
		}
		return command.Answer(a), errorOf(err)
	}
	if c.storage != nil {
		if r := c.storage.admit(in.Call.To.Tenant, actor.SizeOf(in.Call.Parts)); r != nil {
			return refused(in.Call.ID, r), nil
		}
	}
	a, err := c.engine.AskStream(ctx, in.Call, joined)
	return command.Answer(a), errorOf(err)
}

// admitDefinition counts a new definition of an agent, a tool or a capability as written by its user, except
// those of administrators. The registry keeps definitions of a bounded size, but the log has each change.
func (c *Commands) admitDefinition(in *command.Invoke) *actor.Refusal {
	if c.storage == nil || ingress.Allows(in.By, ingress.ScopeAdmin) {
		return nil
	}
	switch in.Call.Operation {
	case agents.OpPut, agents.OpRegister, agents.OpPutTool, agents.OpPutCapability:
		return c.storage.admitDefinition(in.By.Tenant, actor.SizeOf(in.Call.Parts))
	}
	return nil
}

// Signal implements command.Node.
func (c *Commands) Signal(ctx context.Context, in command.Signal) (command.Answer, error) {
	if in.Call.Operation == signals.OpGiveResult { // the member that owns the run knows which device was asked
		if n, err := c.members.owner(ctx, in.Call.To); err != nil {
			return command.Answer{}, err
		} else if n != nil {
			if a, err := n.Signal(ctx, in); !hasGone(err) {
				return a, err
			}
			in.Call.Attempt = max(1, in.Call.Attempt) + 1
		}
	}
	return c.signal(ctx, in)
}

// signal is Signal on this node.
func (c *Commands) signal(ctx context.Context, in command.Signal) (command.Answer, error) {
	if r := in.By.CheckTenant(in.Call.To); r != nil {
		return refused(in.Call.ID, r), nil
	}
	if in.Call.Kind != actor.Signal {
		return refused(in.Call.ID, actor.Refuse(actor.Invalid, "kind: want %s", actor.Signal)), nil
	}
	if in.Call.Operation == signals.OpGiveResult {
		if r := c.checkDevice(&in.Call); r != nil {
			return refused(in.Call.ID, r), nil
		}
	}
	a, err := c.engine.Ask(ctx, in.Call)
	return command.Answer(a), errorOf(err)
}

// checkDevice refuses the result of a tool call from a device that was not asked.
func (c *Commands) checkDevice(call *actor.Call) *actor.Refusal {
	in, r := signals.Decode[signals.GiveResult](call)
	if c.devices == nil || r != nil {
		return nil // the run refuses it
	}
	id, err := runs.ParseToolCallID(in.ToolCall)
	if err != nil {
		return nil
	}
	return c.devices.Check(call.To.Tenant, call.Device(), id)
}

func refused(call actor.CallID, r *actor.Refusal) command.Answer {
	return command.Answer{Reply: actor.Fail(call, r)}
}

// Cancel implements command.Node.
func (c *Commands) Cancel(ctx context.Context, in command.Cancel) error {
	if n, err := c.members.owner(ctx, in.Actor); err != nil {
		return err
	} else if n != nil {
		if err := n.Cancel(ctx, in); !hasGone(err) {
			return err
		}
	}
	return c.cancel(in)
}

// cancel is Cancel on this node.
func (c *Commands) cancel(in command.Cancel) error {
	if r := in.By.CheckTenant(in.Actor); r != nil {
		return r
	}
	if r := c.engine.Cancel(in.Run, in.Actor, in.By.User); r != nil {
		return r
	}
	return nil
}

// Forget implements command.Node.
func (c *Commands) Forget(ctx context.Context, in command.Forget) error {
	if n, err := c.members.owner(ctx, sessionID(in.By.Tenant, in.Session)); err != nil {
		return err
	} else if n != nil {
		return passedError(n.Forget(ctx, in))
	}
	return c.forget(ctx, in)
}

// forget is Forget on this node.
func (c *Commands) forget(ctx context.Context, in command.Forget) error {
	err := c.engine.ForgetIf(ctx, in.By.Tenant, in.Session, func() error {
		c.prompts.Forgetting(in.By.Tenant, in.Session)
		return nil
	})
	if err == nil {
		c.forgot(in.By.Tenant, in.Session)
	}
	return errorOf(err)
}

// forgot drops what the node has of a session that was deleted.
func (c *Commands) forgot(tenant, session string) {
	c.memories.drop(tenant, session)
	c.prompts.Forget(tenant, session)
}

// Follow implements command.Node. It fails only if there are too many
// subscriptions, and updates is never closed.
func (c *Commands) Follow(_ context.Context, in command.Follow) (updates <-chan struct{}, stop func(), err error) {
	updates, stop, err = c.follow(in)
	if err == nil && c.members != nil {
		updates, stop = c.members.passFollow(in, updates, stop)
	}
	return updates, stop, err
}

// follow is Follow on this node.
func (c *Commands) follow(in command.Follow) (updates <-chan struct{}, stop func(), err error) {
	if in.Device != "" {
		if c.devices == nil {
			return nil, nil, actor.Refuse(actor.Rejected, "this node serves no devices")
		}
		return c.devices.Connect(in.By.Tenant, in.Device, in.Agents)
	}
	key := shareKey(&in.By)
	if scope := c.subscriptions.Take(key, 1, ingress.Allows(in.By, ingress.ScopeAdmin)); scope == actor.ScopeCaller {
		return nil, nil, actor.RefuseBusy(scope, time.Second, "%d subscriptions to runs and sessions of yours are open, which is the limit: close some streams", SubscriptionShares.Each)
	} else if scope != actor.NoScope {
		return nil, nil, actor.RefuseBusy(scope, time.Second, "%d subscriptions to runs and sessions are open at this node, which is the limit: retry later", c.subscriptions.Taken())
	}
	var unwatch func()
	if in.Session != "" {
		updates, unwatch, err = c.engine.WatchSession(in.By.Tenant, in.Session)
	} else {
		updates, unwatch, err = c.engine.Watch(in.Run)
	}
	if err != nil {
		c.subscriptions.Give(key, 1)
		return nil, nil, err
	}
	return updates, sync.OnceFunc(func() {
		unwatch()
		c.subscriptions.Give(key, 1)
	}), nil
}

// Lookup implements command.Node. A process of a cluster gives a result only while it has its lease: a
// frozen process has a successor, whose acknowledged changes are missing in its memory.
func (c *Commands) Lookup(ctx context.Context, in command.Lookup) (command.Result, error) {
	r, passed, err := c.passLookup(ctx, in)
	if !passed {
		r, err = c.lookup(ctx, in)
	}
	switch in.Query.(type) {
	case command.HealthQuery, command.StatsQuery: // of this process
		return r, err
	}
	return c.leased(r, err)
}

// Do implements command.Node. It gives a result under the same condition as Lookup.
func (c *Commands) Do(ctx context.Context, in command.Do) (command.Result, error) {
	return c.leased(c.chats.do(ctx, in))
}

func (c *Commands) leased(r command.Result, err error) (command.Result, error) {
	if lost := c.engine.AwaitLease(); lost != nil {
		return nil, errorOf(lost)
	}
	return r, err
}

func (c *Commands) lookup(ctx context.Context, in command.Lookup) (command.Result, error) {
	switch q := in.Query.(type) {
	case command.AgentsQuery:
		return c.listAgents().result, nil
	case command.OwnerQuery:
		if q.EveryUser && !ingress.Allows(in.By, ingress.ScopeOperator) {
			return nil, actor.Refuse(actor.Rejected, "the runs of all users need the scope %s", ingress.ScopeOperator)
		}
		return read(ctx, c, &in.By, func(v View) (command.Owner, error) {
			if q.EveryUser {
				return v.anyOwner(q.Run)
			}
			return v.Owner(q.Run)
		})
	case command.OpenRunQuery:
		return read(ctx, c, &in.By, func(v View) (command.Owner, error) { return v.OpenRun(q.Run) })
	case command.WorkingQuery:
		return c.working(ctx, q)
	case command.RunQuery:
		return read(ctx, c, &in.By, func(v View) (command.Run, error) { return v.Run(q.Run) })
	case command.RunsQuery:
		return read(ctx, c, &in.By, func(v View) (command.Runs, error) { return v.Runs(q) })
	case command.EveryRunQuery:
		if !ingress.Allows(in.By, ingress.ScopeOperator) {
			return nil, actor.Refuse(actor.Rejected, "the runs of all users need the scope %s", ingress.ScopeOperator)
		}
		return read(ctx, c, &in.By, func(v View) (command.EveryRun, error) { return v.EveryRun(q) })
	case command.UsageQuery:
		if q.EveryUser && !ingress.Allows(in.By, ingress.ScopeOperator) {
			return nil, actor.Refuse(actor.Rejected, "the usage of all users needs the scope %s", ingress.ScopeOperator)
		}
		return read(ctx, c, &in.By, func(v View) (command.Usage, error) {
			out, err := v.Usage(q)
			out.Currency = c.currency
			return out, err
		})
	case command.WaitingQuery:
		return read(ctx, c, &in.By, func(v View) (command.Waiting, error) { return v.Waiting(q.Run) })
	case command.EventsQuery:
		return read(ctx, c, &in.By, func(v View) (command.Events, error) { return v.Events(q) })
	case command.SessionsQuery:
		return read(ctx, c, &in.By, func(v View) (command.Sessions, error) { return v.Sessions(q) })
	case command.SessionQuery:
		return read(ctx, c, &in.By, func(v View) (command.Session, error) { return v.Session(q.Session) })
	case command.SessionEventsQuery:
		return read(ctx, c, &in.By, func(v View) (command.SessionEvents, error) { return v.SessionEvents(q) })
	case command.SessionEndQuery:
		return read(ctx, c, &in.By, func(v View) (command.SessionEnd, error) { return v.SessionEnd(q.Session) })
	case command.MessagesQuery:
		return read(ctx, c, &in.By, func(v View) (command.Messages, error) { return v.Messages(q) })
	case command.ContextQuery:
		return read(ctx, c, &in.By, func(v View) (command.Context, error) { return v.Context(q) })
	case command.SessionStateQuery:
		return read(ctx, c, &in.By, func(v View) (command.SessionState, error) {
			if q.Output != "" {
				value, err := v.SessionOutput(q.Session, q.Output)
				return command.SessionState{JSON: value}, err
			}
			s, err := v.SessionState(q.Session)
			return command.SessionState{JSON: s.Encode()}, err
		})
	case command.ToolCallQuery:
		return toolCommands{c}.call(ctx, &in.By, q.ID)
	case command.ApprovalsQuery:
		return toolCommands{c}.approvals(ctx, &in.By, q)
	case command.PromptsQuery:
		return c.recorded(ctx, &in.By, q)
	case command.StepsQuery:
		return c.steps(ctx, &in.By, q)
	case command.TasksQuery:
		return c.tasks(ctx, &in.By, q)
	case command.SchedulesQuery:
		return c.schedules.list(in.By.Tenant, q.EveryUser), nil
	case command.DeviceCallsQuery:
		return c.deviceCalls(in.By.Tenant, q), nil
	case command.ToolsQuery:
		return toolCommands{c}.list(), nil
	case command.ActorsQuery:
		return c.listActors(ctx, in.By.Tenant, q)
	case command.ModelsQuery:
		return c.chats.models()
	case command.MemoryQuery:
		return c.memories.find(ctx, &in.By, q)
	case command.HealthQuery:
		health := command.Health{Database: c.database.promise()}
		if err := c.engine.Ready(); err != nil {
			health.Reason = err.Error()
		} else if c.members != nil && !c.members.cluster.Serves() {
			health.Reason = "the lease of this process has run out, and is not renewed yet"
		}
		return health, nil
	case command.StatsQuery:
		stats := c.engine.Stats()
		if c.remote != nil {
			stats.MCP = c.remote()
		}
		if c.circuits != nil {
			for _, s := range c.circuits() {
				stats.Circuits = append(stats.Circuits, command.CircuitStats(s))
			}
		}
		if c.webhooks != nil {
			for _, w := range c.webhooks() {
				stats.Webhooks = append(stats.Webhooks, command.WebhookStats(w))
			}
		}
		if c.prompts != nil {
			p := c.prompts.Stats()
			stats.Prompts = command.PromptStats{On: true, Recorded: p.Recorded, Dropped: p.Dropped, Bytes: p.Bytes}
		}
		if c.traces != nil {
			t := c.traces()
			stats.Traces = command.TraceStats{On: true, Sent: t.Sent, Dropped: t.Dropped, Waiting: t.Waiting}
		}
		stats.Approvals = c.approvalStats(ctx)
		stats.Cluster = c.database.cluster()
		return stats, nil
	default:
		return nil, fmt.Errorf("lookup: unknown query %T", q)
	}
}

// approvalStatsTimeout is the maximum time to count the approvals that wait. The other figures wait for no cell.
const approvalStatsTimeout = time.Second

// approvalStats counts the approvals that wait.
func (c *Commands) approvalStats(ctx context.Context) (s command.ApprovalStats) {
	ctx, cancel := context.WithTimeout(ctx, approvalStatsTimeout)
	defer cancel()
	pending, err := c.engine.Approvals(ctx, "")
	if err != nil {
		return s
	}
	s.Known, s.Waiting = true, len(pending)
	for i := range pending {
		if at := pending[i].Created; s.Oldest == 0 || at < s.Oldest {
			s.Oldest = at
		}
	}
	return s
}

// read returns a result once everything that it shows is durable.
func read[R command.Result](ctx context.Context, c *Commands, by *actor.Principal, get func(View) (R, error)) (command.Result, error) {
	var r R
	if err := ctx.Err(); err != nil { // the client of a long scan has gone
		return nil, err
	}
	err := c.reading(ctx, func(log store.Reader) (err error) {
		r, err = get(View{clientReader{log, ctx}, by.Tenant, ingress.Allows(*by, ingress.ScopeAdmin)})
		return err
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// clientReader reads for a client until its context ends. A long run has many pages of
// events.
type clientReader struct {
	store.Reader
	ctx context.Context
}

// Events implements store.Reader.
func (r clientReader) Events(tenant string, run actor.CallID, after uint64, limit int) ([]store.RunEvent, error) {
	if err := r.ctx.Err(); err != nil {
		return nil, err
	}
	return r.Reader.Events(tenant, run, after, limit)
}

// errorOf returns the error of a command.
func errorOf(err error) error {
	var r *actor.Refusal
	var dropped store.EventsDropped
	switch {
	case errors.As(err, &r):
		return err
	case errors.As(err, &dropped):
		return command.EventsDropped(dropped)
	case errors.Is(err, engine.ErrClosed):
		return command.ErrClosed
	}
	return err
}

// deviceCalls returns the open calls of a device. They are durable: each was passed to the
// device after its entry.
func (c *Commands) deviceCalls(tenant string, q command.DeviceCallsQuery) (out command.DeviceCalls) {
	if c.devices == nil {
		return out
	}
	for _, call := range c.devices.Calls(tenant, q.Device) {
		out.All = append(out.All, command.DeviceCall(call))
	}
	return out
}

// listAgents returns the agents. Every message needs them, so the list is built
// once for each set of definitions.
func (c *Commands) listAgents() *agentList {
	definitions := c.engine.Agents()
	if l := c.agents.Load(); l != nil && sameSlice(l.of, definitions) {
		return l
	}
	var out command.Agents
	for i := range definitions {
		d := &definitions[i]
		out.All = append(out.All, command.Agent{Name: d.Name, Hash: d.Hash, Doc: d.Doc, Kind: d.Kind, Spec: d.Spec, System: d.System, Durability: d.Durability, OneSession: d.OneSession, Owner: d.Owner, Former: d.FormerOwners, Declares: agents.EncodeDeclaration(d)})
	}
	l := &agentList{definitions, out, tools.NewAgents(definitions)}
	c.agents.Store(l)
	return l
}

// sameSlice reports whether two slices share their elements. The list keeps its
// slice reachable, so that no other can have the same address.
func sameSlice(a, b []actor.Definition) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// listActors returns the actors of an agent that are in memory.
func (c *Commands) listActors(ctx context.Context, tenant string, q command.ActorsQuery) (command.Result, error) {
	if err := checkLimit(q.Limit, command.ActorsMax); err != nil {
		return nil, err
	}
	cells, err := c.engine.State(ctx)
	if err != nil {
		return nil, errorOf(err)
	}
	var out command.Actors
	for _, cell := range cells {
		for _, a := range cell.Actors {
			if a.ID.Tenant == tenant && a.ID.Agent == q.Agent && len(out.All) < q.Limit {
				out.All = append(out.All, a)
			}
		}
	}
	return out, nil
}

// working returns the runs on which external agents work. A run is invoked after its beginning is durable.
func (c *Commands) working(ctx context.Context, q command.WorkingQuery) (out command.Working, err error) {
	found, err := c.engine.WorkingRuns(ctx, q.Agents, command.WorkingMax)
	for _, owner := range found {
		out.All = append(out.All, command.Owner(owner))
	}
	return out, errorOf(err)
}

var _ command.Node = (*Commands)(nil)
