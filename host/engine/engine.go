// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"time"

	proto "github.com/asynkron/protoactor-go/actor"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

// CellsMax is the maximum number of cells of a node.
const CellsMax = 64

const (
	restartsMax        = 100 // maximum restarts of a cell within restartsWithin; one more stops the node
	restartsWithin     = 10 * time.Second
	readersCount       = 4
	stackTraceBytesMax = 4 << 10 // maximum logged size of a failed cell's stack trace in bytes
	incarnationBits    = 20      // number of low bits of an epoch that count incarnations
)

// Log is the node's log.
type Log interface {
	// Commit appends the entries, if any. The callback runs once the log is
	// durable up to its new end, or never if the log has failed. Callbacks run
	// one at a time, in the order of the appends. A callback MUST NOT wait for
	// another one and MUST NOT call Commit.
	Commit(entries []store.Entry, after func())
	// Full returns an error while new work must wait for free space. Open work
	// may complete.
	Full() error
	// Exhausted returns an error while even deletions must wait for free space.
	Exhausted() error
	// Backlog returns the number of entries that wait to be written.
	Backlog() int
}

// Outbound calls models and external agents. Each method returns once the
// answer is complete, the exchange has failed or ctx has ended. It passes each
// piece of a streamed answer to the callback pass. The callback returns once
// the cell has processed the piece. Each duration received from adjusted replaces
// the time left of an invocation.
type Outbound interface {
	Model(ctx context.Context, op runtime.Model, pass func(actor.Piece)) actor.Answer
	Invoke(ctx context.Context, op runtime.Invoke, adjusted <-chan actor.Duration, pass func(actor.Piece)) actor.Answer
	// Tool performs a declared tool. The ID of the effect is its idempotency key.
	Tool(ctx context.Context, id actor.EffectID, op runtime.Tool) actor.Answer
}

// Devices passes the calls of client tools to the devices of users.
type Devices interface {
	// Perform waits until ctx is done: the result of a call is a signal to its run. It returns
	// earlier with a refusal. The first attempt has the number 1.
	Perform(ctx context.Context, id actor.EffectID, attempt uint32, op runtime.Tool) actor.Answer
}

// Lease is the right to serve of a node that shares its store with others. Without it the node takes
// no step and begins no effect.
type Lease interface {
	Serves() bool
	// Await waits until the lease is valid, or until stop is closed.
	Await(stop <-chan struct{})
}

// WatchersMax is the default for Config.WatchersMax.
const WatchersMax = 65_536

// Config is the configuration of a node.
type Config struct {
	Node actor.NodeID
	// Start MUST exceed its value at every earlier start in which the node
	// wrote to its log. Otherwise an epoch would be used twice. With peers, SetOwners has those of the cells.
	Start uint64
	Log   Log
	Store store.Reader // the log's backing store, only read here
	// Queries reads the same for Read; nil means Store. It may return store.Unavailable.
	Queries store.Reader
	// Sessions deletes sessions; nil if the log cannot.
	Sessions Sessions
	Agents   []actor.Definition // initial definitions
	Former   []actor.Definition // older definitions that open runs may still use
	Tools    *tools.Registry
	// Outbound calls models and external agents; nil if the node has none.
	Outbound Outbound
	// Devices performs client tools; nil if the node has no devices.
	Devices Devices
	// Resumes reports whether the open runs of an actor are resumed at the start; nil means those
	// of all. Runs of other actors stay in the log as they are until a start that resumes them.
	Resumes func(actor.ID) bool
	// Models are the names of the models of Outbound. Others share one series.
	Models []string
	// Trace receives the node's history, a few events at a time. It MUST NOT
	// block, and it may retain the events. nil disables tracing.
	Trace  func([]history.Event)
	Limits dispatcher.Limits
	// Spending is what runs may spend on models.
	Spending runtime.Spending
	// Routing says which parts of detached calls are off.
	Routing dispatcher.Routing
	Logger  *slog.Logger

	Cells      int // number of cells, at most CellsMax; 0 means GOMAXPROCS
	QueueSlots int // minimum size of each cell's queue; 0 means 1024
	ClientsMax int // maximum number of waiting clients; 0 means 16,384
	// WatchersMax is the maximum number of subscriptions to runs; 0 means the constant.
	WatchersMax int
	EffectsMax  int // maximum number of running effects: calls of tools, work, models and external agents; 0 means 1,024
	// Lease says when the node may serve; nil means always.
	Lease Lease
	// Peers are the nodes that own shards of cells, see SetOwners; nil: this node owns all.
	Peers Peers
	// DiskLagMax is the maximum delay of a sync, beyond which new work is
	// refused; 0 means 2 s.
	DiskLagMax time.Duration
}

func (c *Config) check() error {
	for _, d := range []struct {
		name  string
		value *int
		or    int
	}{{"Cells", &c.Cells, goruntime.GOMAXPROCS(0)}, {"QueueSlots", &c.QueueSlots, 1024}, {"ClientsMax", &c.ClientsMax, 16_384},
		{"WatchersMax", &c.WatchersMax, WatchersMax}, {"EffectsMax", &c.EffectsMax, 1024}} {
		switch {
		case *d.value < 0:
			return fmt.Errorf("%s: want at least 1, or 0 for the default, got %d", d.name, *d.value)
		case *d.value == 0:
			*d.value = d.or
		}
	}
	if c.DiskLagMax == 0 {
		c.DiskLagMax = diskLagMax
	}
	c.Cells = min(c.Cells, CellsMax)
	if err := actor.CheckName(string(c.Node)); err != nil {
		return fmt.Errorf("node %w", err)
	}
	if c.Start >= 1<<(64-incarnationBits) {
		return fmt.Errorf("start counter %d overflows the epoch", c.Start)
	}
	return c.Limits.Check()
}

// Engine is a running node.
type Engine struct {
	config     Config
	log        *slog.Logger
	clock      clock
	system     *proto.ActorSystem
	cells      []*cell
	clients    *clients
	admission  admission
	agents     *definitions
	tracing    tracing
	watchers   watchers
	readers    *readers
	forgetting forgetting
	coroutines coroutinePool
	garbage    *garbage

	ctx            context.Context // parent of the effects' contexts
	cancel         context.CancelFunc
	effects        sync.WaitGroup
	runningEffects atomic.Int64
	effectTurnover turnover
	effectCounters [actor.AskInvoke + 1]counter
	labels         *labels

	mu    sync.Mutex
	owned owners

	failOnce sync.Once
	done     chan struct{} // closed once the node has failed or was closed
	err      error
}

// Start starts the cells of a node. Each cell loads its open work itself.
func Start(config Config) (*Engine, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	e := &Engine{config: config, log: config.Logger, clock: newClock(), clients: newClients(config.ClientsMax),
		agents: newDefinitions(runtime.Agents{Definitions: config.Agents, Former: config.Former, Tools: config.Tools}, config.Cells), readers: newReaders(readersCount),
		admission: admission{lagMax: config.DiskLagMax}, garbage: newGarbage(), done: make(chan struct{})}
	e.labels, e.tracing.emit = newLabels(e.clock.now, config.Models), config.Trace
	e.labels.setAgents(config.Agents)
	for i := range e.effectCounters {
		e.effectCounters[i].took.bounds = command.DurationBounds
	}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.owned = newOwners(&config)
	e.system = newActorSystem()
	for n := range config.Cells {
		e.cells = append(e.cells, newCell(e, uint16(n)))
	}
	peers := make([]*mailbox, len(e.cells))
	for i, c := range e.cells {
		peers[i] = c.mailbox
	}
	for _, c := range e.cells {
		c.mailbox.peers = peers
	}
	root := e.system.Root.WithGuardian(&supervisor{e})
	for _, c := range e.cells {
		if _, err := root.SpawnNamed(c.props(), c.name()); err != nil {
			return nil, fmt.Errorf("cell %d: %w", c.n, err)
		}
	}
	return e, nil
}

// supervisor handles cell failures. It restarts the cell, or stops the node
// after too many restarts.
type supervisor struct{ engine *Engine }

// HandleFailure implements protoactor's SupervisorStrategy.
func (s *supervisor) HandleFailure(_ *proto.ActorSystem, parent proto.Supervisor, child *proto.PID, stats *proto.RestartStatistics, reason, _ any) {
	stack := ""
	if f, ok := reason.(*stepFailure); ok {
		stack = string(f.stack[:min(len(f.stack), stackTraceBytesMax)])
	}
	s.engine.log.Error("cell failed", "cell", child.Id, "panic", fmt.Sprint(reason), "stack", stack)
	stats.Fail()
	if stats.NumberOfFailures(restartsWithin) > restartsMax {
		s.engine.fail(fmt.Errorf("%s failed more than %d times within %v, last with: %v", child.Id, restartsMax, restartsWithin, reason))
		parent.StopChildren(child)
		return
	}
	parent.RestartChildren(child)
}

func (e *Engine) owners() dispatcher.Table {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.owned.table
}

// claim assigns a cell its shards, if they are this node's, under the epoch of its incarnation. After a
// restart it also notifies the other cells.
func (e *Engine) claim(self actor.Address, incarnation uint64) dispatcher.Table {
	e.mu.Lock()
	defer e.mu.Unlock()
	if epoch := epochOf(e.owned.starts[self.Cell], incarnation); e.owned.epochs[self.Cell] != epoch {
		e.owned.epochs[self.Cell] = epoch
		e.owned.rebuild(e.config.Node)
		for _, c := range e.cells {
			if c.n != self.Cell {
				c.mailbox.postCompletion(completion{run: c.updateOwners})
				c.mailbox.postCompletion(completion{input: runtime.CellRestarted{Cell: self}})
			}
		}
		if e.config.Peers != nil {
			e.config.Peers.Changed()
		}
	}
	return e.owned.table
}

// awaitLease waits until the node may serve, or until it stops.
func (e *Engine) awaitLease() {
	if l := e.config.Lease; l != nil && !l.Serves() {
		l.Await(e.ctx.Done())
	}
}

// AwaitLease waits until the node may serve, and returns ErrClosed if it ends before. What was read from
// the memory of the node before is not older than what another node has acknowledged.
func (e *Engine) AwaitLease() error {
	if e.awaitLease(); e.config.Lease != nil && !e.config.Lease.Serves() {
		return ErrClosed
	}
	return nil
}

// acquireEffect reserves a place for one more running effect. It reports
// whether fewer than EffectsMax were running.
func (e *Engine) acquireEffect() bool {
	if e.runningEffects.Add(1) > int64(e.config.EffectsMax) {
		e.runningEffects.Add(-1)
		return false
	}
	e.effects.Add(1)
	return true
}

func (e *Engine) releaseEffect() {
	e.effectTurnover.done.Add(1)
	e.runningEffects.Add(-1)
	e.effects.Done()
}

// NewCallID returns a new call ID.
func (e *Engine) NewCallID() actor.CallID {
	return actor.NewCallID(e.clock.now(), rand.Uint64(), rand.Uint64())
}

// Now returns the node's time.
func (e *Engine) Now() actor.Time { return e.clock.now() }

// State returns the state of each cell. The cells are read one after the other,
// not at one instant. Everything in the states is durable and may be shown.
func (e *Engine) State(ctx context.Context) ([]history.State, error) {
	all := make([]history.State, 0, len(e.cells))
	for _, c := range e.cells {
		states := make(chan history.State, 1)
		c.mailbox.postCompletion(completion{run: func() { states <- c.core.State() }})
		select {
		case s := <-states:
			all = append(all, s)
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-e.done:
			return nil, e.err
		}
	}
	if err := e.barrier(ctx); err != nil {
		return nil, err
	}
	return all, nil
}

// Watch subscribes to a run. The channel receives a value when the run has new
// events that can be read; one value may cover several events. The returned
// function stop ends the subscription. The error is a *actor.Refusal: there are
// too many subscriptions.
func (e *Engine) Watch(run actor.CallID) (news <-chan struct{}, stop func(), err error) {
	w := e.watchers.add(run, e.config.WatchersMax)
	if w == nil {
		return nil, nil, e.tooManyWatchers()
	}
	return w.updates, func() { e.watchers.remove(run, w) }, nil
}

// WatchSession is Watch for the runs of a session. Its deletion is news too: later reads refuse
// the session.
func (e *Engine) WatchSession(tenant, name string) (news <-chan struct{}, stop func(), err error) {
	key := session{tenant, name}
	w := addWatcher(&e.watchers, &e.watchers.sessions, key, e.config.WatchersMax)
	if w == nil {
		return nil, nil, e.tooManyWatchers()
	}
	return w.updates, func() { removeWatcher(&e.watchers, e.watchers.sessions, key, w) }, nil
}

func (e *Engine) tooManyWatchers() *actor.Refusal {
	return actor.RefuseBusy(actor.ScopeNode, e.watchers.turnover.retryAfter(e.clock.now()), "%d subscriptions to runs are open at this node", e.config.WatchersMax)
}

// Read passes the store to the given function. If Read returns nil, everything
// that the function saw is durable and may be shown.
func (e *Engine) Read(ctx context.Context, read func(store.Reader) error) error {
	from := e.config.Queries
	if from == nil {
		from = e.config.Store
	}
	if err := read(from); err != nil {
		if away, ok := errors.AsType[store.Unavailable](err); ok {
			return &actor.Refusal{Reason: actor.Unavailable, RetryAfter: storeAway, Detail: away.Error()}
		}
		return err
	}
	return e.barrier(ctx)
}

// barrier waits until everything appended so far is durable.
func (e *Engine) barrier(ctx context.Context) error {
	durable := make(chan struct{})
	e.config.Log.Commit(nil, func() { close(durable) })
	select {
	case <-durable:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Ready returns the reason why the node takes no new work, or nil.
func (e *Engine) Ready() error {
	select {
	case <-e.done:
		return e.err
	default:
	}
	if e.clients.state.Load() != open {
		return stopping()
	}
	return e.config.Log.Full()
}

// Done returns a channel that is closed once the node has failed or was closed.
// Err returns the reason.
func (e *Engine) Done() <-chan struct{} { return e.done }

// Err returns the reason why the node stopped: ErrClosed after Close. It is
// valid once Done is closed.
func (e *Engine) Err() error { return e.err }

// ErrClosed is the error of a node that was closed.
var ErrClosed = errors.New("the node has stopped")

func (e *Engine) fail(err error) {
	e.failOnce.Do(func() {
		e.err = err
		if err != ErrClosed {
			e.log.Error("node failed", "error", err.Error())
		}
		close(e.done)
	})
}

// Drain refuses new calls, except signals, and waits until every waiting client
// has its answer. When ctx ends, the remaining clients are refused; their runs
// continue.
func (e *Engine) Drain(ctx context.Context) {
	select {
	case <-e.clients.drain():
	case <-ctx.Done():
	case <-e.done:
	}
	e.clients.close()
}

// Close stops the node. It refuses the clients that still wait, stops the cells
// and cancels the effects. All goroutines have ended when it returns, unless
// ctx ends first. Open work stays in the log. The owner of the log closes it.
func (e *Engine) Close(ctx context.Context) error {
	e.clients.drain()
	for _, c := range e.cells {
		select {
		case <-c.stopped: // stopped by its supervisor
		default:
			e.system.Root.Stop(e.system.NewLocalPID(c.name()))
		}
	}
	for _, c := range e.cells {
		if !c.awaitStop(ctx) {
			e.log.Warn("cell did not stop: its step is still running", "cell", c.n)
			continue
		}
		c.timer.Stop()
		c.worker.stop()
	}
	err := e.barrier(ctx) // replies released by this sync still reach their clients
	e.clients.close()
	e.readers.close()
	e.coroutines.close()
	e.cancel()
	done := make(chan struct{})
	go func() {
		e.effects.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		e.log.Warn("agent work still running after cancellation", "count", e.runningEffects.Load())
	}
	e.fail(ErrClosed)
	return err
}
