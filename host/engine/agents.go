// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"slices"
	"sync"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runtime"
)

// definitions are the agents that exist, and which cell knows of them: each
// change has a number, and a cell knows of all up to the one it took in last.
type definitions struct {
	mu      sync.Mutex
	latest  runtime.Agents
	version uint64
	applied []uint64 // by cell
	changed chan struct{}
}

func newDefinitions(all runtime.Agents, cells int) *definitions {
	return &definitions{latest: all, version: 1, applied: make([]uint64, cells), changed: make(chan struct{})}
}

// replace replaces the agents, and tells the change's number.
func (d *definitions) replace(to runtime.Agents) uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.version++
	d.latest = to
	return d.version
}

// current is the agents as they are, with the number of the last change.
func (d *definitions) current() (runtime.Agents, uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.latest, d.version
}

// markApplied notes that a cell knows of all changes up to a number.
func (d *definitions) markApplied(cell uint16, number uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.applied[cell] = number
	close(d.changed)
	d.changed = make(chan struct{})
}

// appliedByAll tells whether every cell knows of a change; if not, the channel is
// closed when one more does.
func (d *definitions) appliedByAll(number uint64) (bool, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Min(d.applied) >= number, d.changed
}

// Define replaces the agents that exist, and returns when every cell knows: who
// is answered later is answered by the new ones. Former are older definitions
// that open runs may still have. A cell that begins anew meanwhile begins with
// the latest. If ctx ends first, the change comes all the same.
func (e *Engine) Define(ctx context.Context, definitions, former []actor.Definition) error {
	number := e.agents.replace(runtime.Agents{Definitions: definitions, Former: former})
	for _, c := range e.cells {
		c.mailbox.postCompletion(completion{run: c.updateAgents})
	}
	for {
		known, told := e.agents.appliedByAll(number)
		if known {
			return nil
		}
		select {
		case <-told:
		case <-ctx.Done():
			return ctx.Err()
		case <-e.done:
			return e.err
		}
	}
}

// Agents lists the agents that exist.
func (e *Engine) Agents() []actor.Definition {
	latest, _ := e.agents.current()
	return latest.Definitions
}
