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
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

// CellsMax is how many cells a node may have.
const CellsMax = 64

const (
	restartsMax        = 100 // of a cell within restartsWithin: more, and the node gives up
	restartsWithin     = 10 * time.Second
	readersCount       = 4
	stackTraceBytesMax = 4 << 10 // of a failed cell, in the log
	incarnationBits    = 20      // of an epoch, the low ones count incarnations
)

// Log is a node's one log.
type Log interface {
	// Commit appends entries, which may be none, and calls after once all that
	// was appended up to and with them is durable; never, if the log has failed.
	// Calls of after come one at a time, in the order of the appends, and neither
	// wait for each other nor call Commit.
	Commit(entries []store.Entry, after func())
	// Full says that new work must wait until there is room; what was begun may end.
	Full() error
	// Backlog is how many entries wait to be written.
	Backlog() int
}

// Outbound asks what stands behind the node. Each call returns when the answer is
// whole, or there is none, or ctx ends; pass returns when the piece was taken in.
type Outbound interface {
	Model(ctx context.Context, op runtime.Model, pass func(actor.Piece)) actor.Answer
	Invoke(ctx context.Context, op runtime.Invoke, pass func(actor.Piece)) actor.Answer
}

// Config is what a node is made of.
type Config struct {
	Node actor.NodeID
	// Start grows from one start of the node to the next, or at least over
	// those that wrote something: no epoch comes twice.
	Start  uint64
	Log    Log
	Store  store.KV           // what the log writes to; it is only read here
	Agents []actor.Definition // to begin with
	Former []actor.Definition // older ones that open runs may still have
	Tools  *tools.Registry
	// Outbound asks models and external agents; nil: there are none.
	Outbound Outbound
	// Trace is told the node's history, a few events at a time; it must not wait
	// for anything, and may keep them. nil: nobody is told.
	Trace  func([]history.Event)
	Limits dispatcher.Limits
	Logger *slog.Logger

	Cells      int // 0: GOMAXPROCS
	QueueSlots int // of each cell; 0: 1024
	ClientsMax int // clients that wait for an answer; 0: 16,384
	EffectsMax int // tools, work, models and external agents under way; 0: 1,024
}

func (c *Config) check() error {
	for _, d := range []struct {
		value *int
		or    int
	}{{&c.Cells, goruntime.GOMAXPROCS(0)}, {&c.QueueSlots, 1024}, {&c.ClientsMax, 16_384}, {&c.EffectsMax, 1024}} {
		if *d.value == 0 {
			*d.value = d.or
		}
	}
	c.Cells = min(c.Cells, CellsMax)
	if err := actor.CheckName(string(c.Node)); err != nil {
		return fmt.Errorf("node %w", err)
	}
	if c.Start >= 1<<(64-incarnationBits) {
		return fmt.Errorf("start %d is more than an epoch can tell", c.Start)
	}
	return c.Limits.Check()
}

// Engine is a node at work.
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
	coroutines coroutinePool

	ctx            context.Context // of effects
	cancel         context.CancelFunc
	effects        sync.WaitGroup
	runningEffects atomic.Int64
	effectCounters [actor.AskInvoke + 1]counter

	mu     sync.Mutex
	epochs []actor.Epoch // by cell
	table  dispatcher.Table

	failOnce sync.Once
	done     chan struct{} // the node has failed, or was closed
	err      error
}

// Start brings a node's cells to life. They load what is open by themselves.
func Start(config Config) (*Engine, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	e := &Engine{config: config, log: config.Logger, clock: newClock(), clients: newClients(config.ClientsMax),
		agents: newDefinitions(runtime.Agents{Definitions: config.Agents, Former: config.Former}, config.Cells), readers: newReaders(readersCount), done: make(chan struct{})}
	e.tracing.emit = config.Trace
	e.ctx, e.cancel = context.WithCancel(context.Background())
	for range config.Cells {
		e.epochs = append(e.epochs, e.epochOf(1))
	}
	e.table = e.newRoutingTable()
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

// supervisor decides what becomes of a cell that failed: it begins anew, unless
// that does not help.
type supervisor struct{ engine *Engine }

// HandleFailure implements protoactor's SupervisorStrategy.
func (s *supervisor) HandleFailure(_ *proto.ActorSystem, over proto.Supervisor, child *proto.PID, stats *proto.RestartStatistics, reason, _ any) {
	stack := ""
	if f, ok := reason.(*stepFailure); ok {
		stack = string(f.stack[:min(len(f.stack), stackTraceBytesMax)])
	}
	s.engine.log.Error("a cell failed", "cell", child.Id, "panic", fmt.Sprint(reason), "stack", stack)
	stats.Fail()
	if stats.NumberOfFailures(restartsWithin) > restartsMax {
		s.engine.fail(fmt.Errorf("%s failed more than %d times within %v, the last time with: %v", child.Id, restartsMax, restartsWithin, reason))
		over.StopChildren(child)
		return
	}
	over.RestartChildren(child)
}

func (e *Engine) epochOf(incarnation uint64) actor.Epoch {
	return actor.Epoch(e.config.Start<<incarnationBits | incarnation)
}

func (e *Engine) newRoutingTable() dispatcher.Table {
	return dispatcher.NewTable(func(shard uint16) dispatcher.Owner {
		n := shard % uint16(len(e.epochs))
		return dispatcher.Owner{Node: e.config.Node, Cell: n, Epoch: e.epochs[n]}
	})
}

func (e *Engine) owners() dispatcher.Table {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.table
}

// claim gives a cell its shards under the epoch of its incarnation, and tells
// the other cells, if it is not its first.
func (e *Engine) claim(self actor.Address) dispatcher.Table {
	e.mu.Lock()
	defer e.mu.Unlock()
	if epoch := actor.Epoch(self.Incarnation); e.epochs[self.Cell] != epoch {
		e.epochs[self.Cell] = epoch
		e.table = e.newRoutingTable()
		for _, c := range e.cells {
			if c.n != self.Cell {
				c.mailbox.postCompletion(completion{run: c.updateOwners})
				c.mailbox.postCompletion(completion{input: runtime.CellRestarted{Cell: self}})
			}
		}
	}
	return e.table
}

// acquireEffect counts one more effect; false if there are too many.
func (e *Engine) acquireEffect() bool {
	if e.runningEffects.Add(1) > int64(e.config.EffectsMax) {
		e.runningEffects.Add(-1)
		return false
	}
	e.effects.Add(1)
	return true
}

func (e *Engine) releaseEffect() {
	e.runningEffects.Add(-1)
	e.effects.Done()
}

// NewCallID names a new call.
func (e *Engine) NewCallID() actor.CallID {
	return actor.NewCallID(e.clock.now(), rand.Uint64(), rand.Uint64())
}

// Now is the node's time.
func (e *Engine) Now() actor.Time { return e.clock.now() }

// State is the truth about each cell, one after the other.
func (e *Engine) State(ctx context.Context) ([]history.State, error) {
	all := make([]history.State, 0, len(e.cells))
	for _, c := range e.cells {
		seen := make(chan history.State, 1)
		c.mailbox.postCompletion(completion{run: func() { seen <- c.core.State() }})
		select {
		case s := <-seen:
			all = append(all, s)
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-e.done:
			return nil, e.err
		}
	}
	return all, nil
}

// Watch says when a run has a new event, which can then be read. It may say so
// once for several. Stop ends it.
func (e *Engine) Watch(run actor.CallID) (news <-chan struct{}, stop func()) {
	w := e.watchers.add(run)
	return w.updates, func() { e.watchers.remove(run, w) }
}

// Read reads from the store what may be shown: what read has seen is durable
// when Read returns without error.
func (e *Engine) Read(ctx context.Context, read func(store.KV) error) error {
	if err := read(e.config.Store); err != nil {
		return err
	}
	return e.barrier(ctx)
}

// barrier waits until all that was appended so far is durable.
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

// Ready says why the node takes no new work, if it does not.
func (e *Engine) Ready() error {
	select {
	case <-e.done:
		return e.err
	default:
		return e.config.Log.Full()
	}
}

// Done is closed when the node cannot go on, or was closed; Err says which.
func (e *Engine) Done() <-chan struct{} { return e.done }

// Err is why the node is over, once it is: ErrClosed after Close.
func (e *Engine) Err() error { return e.err }

// ErrClosed is what Err says after Close.
var ErrClosed = errors.New("the node has stopped")

func (e *Engine) fail(err error) {
	e.failOnce.Do(func() {
		e.err = err
		if err != ErrClosed {
			e.log.Error("the node cannot go on", "error", err.Error())
		}
		close(e.done)
	})
}

// Drain refuses new calls, but for signals, and waits until no client waits.
// When ctx ends, those who still do are refused; their runs go on.
func (e *Engine) Drain(ctx context.Context) {
	select {
	case <-e.clients.drain():
	case <-ctx.Done():
	case <-e.done:
	}
	e.clients.close()
}

// Close stops the node: clients that still wait are refused, cells end, effects
// are given up, and all goroutines have ended when it returns, unless ctx ends
// first. What is open stays in the log. The log is its owner's to close.
func (e *Engine) Close(ctx context.Context) error {
	e.clients.drain()
	for _, c := range e.cells {
		select {
		case <-c.stopped: // its supervisor gave it up
		default:
			e.system.Root.Stop(e.system.NewLocalPID(c.name()))
		}
	}
	for _, c := range e.cells {
		if !c.awaitStop(ctx) {
			e.log.Warn("a cell does not stop: its step does not end", "cell", c.n)
			continue
		}
		c.timer.Stop()
		c.worker.stop()
	}
	err := e.barrier(ctx) // what is released now still reaches its client
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
		e.log.Warn("work of agents does not heed that it was given up", "count", e.runningEffects.Load())
	}
	e.fail(ErrClosed)
	return err
}
