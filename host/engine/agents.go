// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

// definitions holds the current agents and the version that each cell has
// applied. Each change has a version. A version includes all earlier changes,
// so a cell may skip versions.
type definitions struct {
	mu      sync.Mutex
	latest  runtime.Agents
	version uint64
	applied []uint64 // last applied version by cell
	changed chan struct{}
}

func newDefinitions(all runtime.Agents, cells int) *definitions {
	return &definitions{latest: all, version: 1, applied: make([]uint64, cells), changed: make(chan struct{})}
}

// replace replaces the agents and returns the version of the change.
func (d *definitions) replace(agents runtime.Agents) uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.version++
	d.latest = agents
	return d.version
}

// current returns the agents and the version of the last change.
func (d *definitions) current() (runtime.Agents, uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.latest, d.version
}

// markApplied records that a cell has applied all versions up to version.
func (d *definitions) markApplied(cell uint16, version uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.applied[cell] = version
	close(d.changed)
	d.changed = make(chan struct{})
}

// appliedByAll reports whether every cell has applied a version. The channel is
// closed the next time that a cell applies any version.
func (d *definitions) appliedByAll(version uint64) (bool, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Min(d.applied) >= version, d.changed
}

// Define replaces the agents and returns once every cell has applied the
// change. Runs that start afterwards use the new agents. The parameter former
// holds older definitions that open runs may still use. A cell that restarts
// before Define returns starts with the latest agents. If ctx ends first,
// Define returns its error, but the change still takes effect.
func (e *Engine) Define(ctx context.Context, definitions, former []actor.Definition, registry *tools.Registry) error {
	version := e.agents.replace(runtime.Agents{Definitions: definitions, Former: former, Tools: registry})
	e.labels.setAgents(definitions)
	for _, c := range e.cells {
		c.mailbox.postCompletion(completion{run: c.updateAgents})
	}
	for {
		applied, changed := e.agents.appliedByAll(version)
		if applied {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-e.done:
			return e.err
		}
	}
}

// OpenDefinitions returns those of the definitions with which open runs began. It
// fails while a cell is still loading its open runs.
func (e *Engine) OpenDefinitions(ctx context.Context, of []actor.Hash) ([]actor.Hash, error) {
	return ofOpenRuns(ctx, e, func(c *runtime.Cell) ([]actor.Hash, bool) { return c.OpenDefinitions(of) })
}

// Approvals returns the tool calls of a namespace, or with "" of all, that wait for a
// decision. It fails while a cell is still loading its open runs.
func (e *Engine) Approvals(ctx context.Context, tenant string) ([]runtime.Approval, error) {
	return ofOpenRuns(ctx, e, func(c *runtime.Cell) ([]runtime.Approval, bool) { return runtime.PendingApprovals(c, tenant) })
}

// ClientCalls returns the calls of client tools of a namespace, or with "" of all, that wait for a device. It fails
// while a cell is still loading its open runs.
func (e *Engine) ClientCalls(ctx context.Context, tenant string) ([]runtime.Approval, error) {
	return ofOpenRuns(ctx, e, func(c *runtime.Cell) ([]runtime.Approval, bool) { return runtime.ClientCalls(c, tenant) })
}

// PendingCalls returns the detached calls that actors of a namespace have made in a session, or with "" in
// any. It fails while a cell is still loading its open runs.
func (e *Engine) PendingCalls(ctx context.Context, tenant, session string) ([]runtime.PendingCall, error) {
	return ofOpenRuns(ctx, e, func(c *runtime.Cell) ([]runtime.PendingCall, bool) { return runtime.PendingCalls(c, tenant, session) })
}

// WorkingRuns returns the runs on which external agents of these names work, at most most of them. It
// fails while a cell is still loading its open runs, unless it finds as many before.
func (e *Engine) WorkingRuns(ctx context.Context, agents []string, most int) ([]store.RunOwner, error) {
	all, err := ofOpenRuns(ctx, e, func(c *runtime.Cell) ([]store.RunOwner, bool) { return runtime.WorkingRuns(c, agents, most) })
	return all[:min(len(all), most)], err
}

// Approval returns the tool call of an actor with this ID if it waits for a decision. It does not
// find one that the cell has not loaded yet.
func (e *Engine) Approval(ctx context.Context, of actor.ID, id runs.ToolCallID) (*runtime.Approval, error) {
	return onCell(ctx, e, e.cellOf(of), func(c *runtime.Cell) *runtime.Approval {
		if a, found := runtime.PendingApproval(c, of, id); found {
			return &a
		}
		return nil
	})
}

// ofOpenRuns joins the results of a function for each cell. It fails if one is not known,
// because the cell is still loading its open runs.
func ofOpenRuns[T any](ctx context.Context, e *Engine, find func(*runtime.Cell) ([]T, bool)) (all []T, err error) {
	type result struct {
		found []T
		known bool
	}
	for _, c := range e.cells {
		r, err := onCell(ctx, e, c, func(c *runtime.Cell) (r result) {
			r.found, r.known = find(c)
			return r
		})
		if err != nil {
			return nil, err
		}
		if !r.known {
			return nil, actor.RefuseUnavailable(time.Second, "a cell of this node is still loading its open runs")
		}
		all = append(all, r.found...)
	}
	return all, nil
}

// onCell returns the result of a function that is called between two steps of a cell.
func onCell[T any](ctx context.Context, e *Engine, c *cell, call func(*runtime.Cell) T) (r T, err error) {
	result := make(chan T, 1)
	c.mailbox.postCompletion(completion{run: func() { result <- call(c.core) }})
	select {
	case r = <-result:
		return r, nil
	case <-ctx.Done():
		return r, ctx.Err()
	case <-e.done:
		return r, e.err
	}
}

// Agents returns the current agents.
func (e *Engine) Agents() []actor.Definition {
	latest, _ := e.agents.current()
	return latest.Definitions
}
