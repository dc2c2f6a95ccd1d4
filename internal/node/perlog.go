// SPDX-License-Identifier: Apache-2.0

package node

import (
	"sync"

	"github.com/troupe-run/troupe/host/logs"
)

// perLog are readers of the logs that a node writes, which may change while it runs.
type perLog[T comparable] struct {
	mu       sync.Mutex
	all      []T // by log; zero: the node does not write it
	selected []*logs.Selected
}

func (p *perLog[T]) set(log int, reader T, selected *logs.Selected) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all[log], p.selected[log] = reader, selected
}

func (p *perLog[T]) get(log int) T {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all[log]
}

// take removes the reader of a log; zero for none.
func (p *perLog[T]) take(log int) (reader T, selected *logs.Selected) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var none T
	reader, selected = p.all[log], p.selected[log]
	p.all[log], p.selected[log] = none, nil
	return reader, selected
}

// each returns the readers, by log.
func (p *perLog[T]) each() (all []T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var none T
	for _, reader := range p.all {
		if reader != none {
			all = append(all, reader)
		}
	}
	return all
}
