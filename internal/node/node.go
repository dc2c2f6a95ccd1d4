// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"github.com/troupe-run/troupe/host/logs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/host/devices"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/host/postgres"
	"github.com/troupe-run/troupe/host/prompts"
	"github.com/troupe-run/troupe/host/traces"
	"github.com/troupe-run/troupe/host/webhooks"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// Config is the configuration of a node.
type Config struct {
	Data  string // folder of the store and of files beside it; created if it does not exist
	Store string // URL of a PostgreSQL database with the store; empty: the store is in the folder
	// Cluster is the cluster that the process belongs to, which owns the log of the store; nil: none. Open does
	// not close it.
	Cluster *postgres.Cluster
	// Connect returns the connections to the other members of the cluster.
	Connect func(MemberSide) Members
	Lease   engine.Lease // the right to serve of a process without one; nil: always
	Name    string       // name of the node; each store belongs to exactly one node
	Cells   int          // number of cells; 0 means one per processor. A store with several logs has one for each
	Limits  dispatcher.Limits
	Budget  Budget
	Routing dispatcher.Routing // parts of detached calls that are off
	// Outbound configures the egress. Open sets its token and its logger.
	Outbound outbound.Config
	Native   []actor.Definition // agents written in Go
	Reserved []string           // names of agents written in Go that the node does not serve; see agents.NativeNames
	Tools    []tools.Tool       // made with tools.Local
	Remote   []tools.Tool       // made with tools.OfServer; SetRemote replaces them
	// RemoteStats returns the figures of the MCP servers; nil: there are none.
	RemoteStats func() []command.MCPStats
	// Registry receives the tools of the node: before the cells start, and after each change. It may be nil.
	Registry *atomic.Pointer[tools.Registry]
	Policy   *tools.Policy // decides about calls of declared tools; nil: no rules
	Trace    string        // path of the history trace; empty for none
	Keys     Keys          // receives the API keys of the registry; may be nil
	// free space in bytes below which new work is refused; 0 means
	// disk.FreeFloor, 1 disables the limit
	FreeFloor uint64
	// space in bytes that is released if the disk is too full to open the store
	Ballast uint64
	// size of a write buffer in bytes; 0 means disk.WriteBuffer
	WriteBuffer uint64
	// tables of the store that stay open, and what frees descriptors when none is left; see disk.Options
	OpenFiles   int
	Descriptors func()
	// maximum delay of a sync, beyond which new work is refused; 0 means 2 s
	DiskLagMax time.Duration
	// folder in which backups are made; created by the first one
	Backups string
	// time after its last change at which a session is deleted and the log is cut, at least
	// KeepMin; 0 keeps everything
	Keep time.Duration
	// Webhooks receive notices; nil: none. Offers returns the lists of tools that wait for their acceptance, as
	// hashes by the names of MCP servers; nil: none.
	Webhooks []webhooks.Config
	Offers   func() map[string]string
	// Traces is the collector that gets the spans of runs; the zero value is none.
	Traces traces.Config
	// Record is what is recorded of requests to models; the zero value is nothing.
	Record prompts.Config
	// Memory switches on what agents remember. An agent uses it if its definition allows that as well.
	Memory bool
	// Remembering is what agents of Native may do with it, by name.
	Remembering map[string]agents.MemoryGrants
	// Builtin names the tools of tools.Builtins that the node has. An agent uses one if its definition lists it as well.
	Builtin []string
	// Offered are the tools that agents of Native list, by name.
	Offered map[string][]string
	// RegistryOnly leaves the open runs of all other actors in the log as they are: the node has no
	// configuration with which they could continue.
	RegistryOnly bool

	clock scheduleClock // of schedules; nil: that of the machine
}

// resumes returns which actors resume their open runs; nil means all.
func (c *Config) resumes() func(actor.ID) bool {
	if !c.RegistryOnly {
		return nil
	}
	return func(id actor.ID) bool { return id == agents.RegistryID }
}

// lease returns the right to serve, or nil.
func (c *Config) lease() engine.Lease {
	if c.Cluster == nil {
		return c.Lease
	}
	return c.Cluster
}

// Node is a running node: disk, log, agents, egress and cells. It has no
// gateway. It implements command.Node.
type Node struct {
	*Commands
	dir      string
	backups  string
	backup   sync.Mutex // held while a backup is made
	secret   []byte     // signing secret of run tokens
	store    storage
	log      *logs.Log
	catalog  *catalogSync
	outbound *outbound.Outbound
	trace    *traceFile
	retained *retention
	hooks    *logHooks
	prompts  *prompts.Store // nil: none are recorded
	forgets  *forgets
	traces   *logTraces

	closeOnce sync.Once
	closeErr  error // result of Close
}

// Open opens the store and starts the cells on it. The agents are loaded before
// the cells start, so that open runs resume with their definitions. The caller
// MUST close the node.
func Open(c Config, log *slog.Logger) (_ *Node, err error) {
	n := &Node{dir: c.Data, backups: c.Backups}
	if n.store, n.log, err = openStorage(&c, log); err != nil {
		return nil, err
	}
	if n.log.Count() > 1 || c.Cluster != nil {
		c.Cells = n.log.Count() // so that what a cell appends in a step is of one log, which store.Writers checks
	}
	c.Limits = boundMemory(c.Limits, c.Cells, os.DirFS("/"))
	defer func() {
		if err == nil {
			return
		}
		if n.outbound != nil {
			n.outbound.Close()
		}
		n.prompts.Close()
		err = errors.Join(err, n.forgets.close(), n.log.Close(), n.store.Close(), n.trace.Close())
	}()
	if err = n.log.Erase(); errors.Is(err, syscall.ENOSPC) { // no actor of a deleted session is loaded, erased or not
		log.Warn("the deletion of sessions is completed at the next start", "error", err.Error())
	} else if err != nil {
		return nil, fmt.Errorf("store %s: complete the deletion of sessions: %w", c.Data, err)
	}
	if n.secret, err = n.store.Secret(); err != nil {
		return nil, err
	}
	if err = checkExpiryIndex(n.store); err != nil {
		return nil, fmt.Errorf("store %s: %w", c.Data, err)
	}
	if n.catalog, err = loadCatalog(n.store, &c, log); err != nil {
		return nil, err
	}
	n.catalog.share(c.Registry)
	c.Outbound.Logger = log
	c.Outbound.Server = ingress.ServerMark(n.secret)
	c.Outbound.Sign = func(who *upstream.Identity, call upstream.SignedCall) string {
		return ingress.Signer{Secret: n.secret}.Sign(&ingress.SignedIdentity{User: who.User, Session: who.Session, Agent: who.Agent, Run: who.Run,
			Tool: call.Tool, URL: call.URL, Call: call.ID, Arguments: call.Arguments, Left: call.Left}, actor.Time(time.Now().UnixNano()))
	}
	c.Outbound.OpenAuth = func(url, sealed string) (upstream.Header, error) { return upstream.OpenAuth(n.secret, url, sealed) }
	c.Outbound.Token = func(run actor.CallID, invocation uint32, id actor.ID) string {
		return ingress.MintInvocationToken(n.secret, run, invocation, id)
	}
	n.forgets = &forgets{path: filepath.Join(c.Data, ForgetsFile), lines: -1}
	if n.prompts, err = openPrompts(&c, n.store, n.forgets, log); err != nil {
		return nil, err
	}
	if c.Record.On() && n.prompts != nil {
		c.Outbound.Record = n.prompts.Begin
	}
	if n.outbound, err = outbound.New(c.Outbound); err != nil {
		return nil, err
	}
	definitions, former := n.catalog.definitions()
	if c.Trace != "" {
		if n.trace, err = openTrace(c.Trace, c.Name, c.Limits, definitions, log); err != nil {
			return nil, err
		}
	}
	n.outbound.SetAgents(n.catalog.externalAgents())                                                    // before a run can call them
	if n.hooks, err = openWebhooks(&c, n.store, n.log, ingress.ServerMark(n.secret), log); err != nil { // before the start makes records
		return nil, err
	}
	if n.traces, err = openTraces(&c, n.store, n.log, ingress.ServerMark(n.secret), log); err != nil { // likewise
		return nil, err
	}
	var clock *retentionClock
	if c.Keep > 0 { // before the start makes records
		clock = newRetentionClock(n.store, n.log, c.Data, actor.Time(time.Now().UnixNano()), log)
	}
	newest, err := newestOf(n.store, n.log) // before the start makes records
	if err != nil {
		return nil, fmt.Errorf("store %s: the time of the newest record: %w", c.Data, err)
	}
	present := devices.New(func() actor.Time { return actor.Time(time.Now().UnixNano()) })
	start, _ := endsOf(n.log)
	members := newMembership(n, &c, log)
	e, err := engine.Start(engine.Config{
		Node: members.name(c.Name), Peers: members.peers(), Start: start, Log: n.log, Store: n.store, Queries: queriesOf(n.store), Sessions: n.log, Agents: definitions, Former: former,
		Tools: n.catalog.catalog.Registry, Outbound: n.outbound, Devices: present, Models: n.outbound.Models(), Limits: c.Limits, Spending: c.Budget.spending(n.outbound, &c.Outbound), Routing: c.Routing, Logger: log, Cells: c.Cells, DiskLagMax: c.DiskLagMax,
		Trace: n.trace.recorder(), Resumes: c.resumes(), Lease: c.lease(),
	})
	if err != nil {
		return nil, err
	}
	n.Commands = NewCommands(e)
	n.Commands.members = members
	n.catalog.commands = n.Commands
	n.Commands.definitions = n.catalog.published
	n.Commands.tools, n.Commands.devices, n.Commands.remote = n.catalog.listedTools, present, c.RemoteStats
	n.Commands.toolTimeout = c.Limits.ToolTimeoutDefault
	n.Commands.circuits = n.outbound.Circuits
	n.Commands.prompts = n.prompts
	n.Commands.database.of(n.store, c.Cluster)
	n.Commands.storage = newStorageShares(readUsage(n.store), log)
	n.Commands.currency = cmp.Or(c.Outbound.Currency, outbound.DefaultCurrency)
	n.Commands.chats = newChats(n.outbound, e, c.Limits.ModelTimeoutDefault)
	if c.Memory {
		n.Commands.memories = newMemories(n.Commands, n.forgets)
		n.catalog.memories = n.Commands.memories
		if err := errors.Join(n.Commands.memories.forgets.create(), n.repeatForgets(log)); err != nil { // no tool is performed before
			return nil, errors.Join(err, n.engine.Close(context.Background()))
		}
	}
	if !c.RegistryOnly {
		if c.clock == nil {
			c.clock = wallClock{}
		}
		n.Commands.schedules = newSchedules(n.Commands, c.clock, newest, log)
		n.catalog.schedules = n.Commands.schedules
		n.catalog.schedules.switchTo(members == nil, newest)
	}
	n.catalog.attach(e, n.outbound, n.trace)
	n.retained = &retention{engine: e, store: n.store, log: n.log, keep: c.Keep, logger: log}
	n.retained.clock, n.retained.hooks, n.retained.forgot, n.retained.forgetting = clock, n.hooks, n.Commands.forgot, n.prompts.Forgetting
	n.retained.start()
	if n.hooks != nil {
		n.Commands.webhooks = n.hooks.stats
		n.hooks.start()
	}
	if n.traces != nil {
		n.Commands.traces = n.traces.stats
		n.traces.start()
	}
	if members != nil {
		if err := members.begin(c.Connect); err != nil {
			n.Commands.schedules.close()
			n.retained.stop()
			n.hooks.close()
			n.traces.close()
			return nil, errors.Join(err, n.engine.Close(context.Background()))
		}
	}
	return n, nil
}

// Placed waits until each log of the node's cluster has an owner that the node reaches, or until ctx ends. Without a
// cluster it returns at once.
func (n *Node) Placed(ctx context.Context) error {
	if n.members == nil {
		return nil
	}
	return n.members.Placed(ctx)
}

// checkExpiryIndex checks that the expiry index can be read. The cells read it after the
// start, and a node that cannot read it ends. Clients MUST NOT see it ready before.
func checkExpiryIndex(log store.Reader) error {
	shards := make([]uint16, dispatcher.Shards)
	for i := range shards {
		shards[i] = uint16(i)
	}
	if err := log.Due(shards, func(actor.ID) {}); err != nil {
		return &disk.DamageError{Err: fmt.Errorf("expiry index: %w", err)}
	}
	return nil
}

// Dir returns the folder of the store.
func (n *Node) Dir() string { return n.dir }

// Secret returns the secret that signs run tokens, for the gateway.
func (n *Node) Secret() []byte { return n.secret }

// External returns the egress, which knows the health of external agents, for the
// gateway.
func (n *Node) External() External { return External{n.outbound, n.members} }

// End returns the number of batches and of entries in the logs.
func (n *Node) End() (batches, entries uint64) { return endsOf(n.log) }

// Done returns a channel that is closed once the node has failed or was closed.
// Err returns the reason.
func (n *Node) Done() <-chan struct{} { return n.engine.Done() }

// Err returns the reason why the node stopped. It is valid once Done is closed.
func (n *Node) Err() error { return errorOf(n.engine.Err()) }

// Drain gives the logs of a member of a cluster to the others. It refuses new calls, except signals, and waits until no client waits for
// an answer. When ctx ends, the remaining clients are refused; their runs
// continue.
func (n *Node) Drain(ctx context.Context) {
	n.Commands.schedules.close()
	n.members.handOver(ctx)
	n.engine.Drain(ctx)
}

// Forget implements command.Node. The content leaves the files a short while later.
func (n *Node) Forget(ctx context.Context, in command.Forget) error {
	err := n.Commands.Forget(ctx, in)
	if err == nil {
		n.retained.noteDeletion()
	}
	return err
}

// Retain performs one pass of the retention, as if the time was now.
func (n *Node) Retain(ctx context.Context, now actor.Time) { n.retained.Retain(ctx, now) }

// Purge removes deleted content from the files of the store at once.
func (n *Node) Purge(ctx context.Context) error { return n.store.Purge(ctx) }

// Close stops the retention, the webhooks, the traces, the cells, the egress, the recorder of prompts, the log, the disk and the
// trace, in this order. Clients that still wait are refused, and so are later commands. Open runs stay in the log.
func (n *Node) Close(ctx context.Context) error {
	n.closeOnce.Do(func() {
		n.Commands.schedules.close()
		n.members.end()
		n.retained.stop()
		n.hooks.close()
		n.traces.close()
		err := n.engine.Close(ctx)
		n.outbound.Close()
		n.prompts.Close()
		n.Commands.close()
		n.storage.close()
		n.closeErr = errors.Join(err, n.forgets.close(), n.log.Close(), n.store.Close(), n.trace.Close())
	})
	return n.closeErr
}
