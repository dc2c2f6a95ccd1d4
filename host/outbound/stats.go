// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/troupe-run/troupe/upstream"
)

// Stat counts what was asked of one upstream since the node knows it.
type Stat struct {
	Kind       string // model, agent
	Name       string
	InProgress int    // exchanges under way
	Refused    uint64 // not asked: it had as many as it takes
	Attempts   uint64
	Failures   uint64 // of them
	Bytes      uint64 // of answers
	Took       time.Duration
}

// statCounter is a Stat being counted.
type statCounter struct {
	mu   sync.Mutex
	stat Stat
}

// acquire counts one more exchange; false if there are limit of them. 0 is no limit.
func (t *statCounter) acquire(limit int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if limit > 0 && t.stat.InProgress >= limit {
		t.stat.Refused++
		return false
	}
	t.stat.InProgress++
	return true
}

func (t *statCounter) countRefused() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stat.Refused++
}

func (t *statCounter) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stat.InProgress--
}

func (t *statCounter) countAttempt(a upstream.Attempt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stat.Attempts++
	if a.Refusal != nil {
		t.stat.Failures++
	}
	t.stat.Bytes += uint64(a.Bytes)
	t.stat.Took += a.Took
}

func (t *statCounter) snapshot(kind, name string) Stat {
	t.mu.Lock()
	defer t.mu.Unlock()
	stat := t.stat
	stat.Kind, stat.Name = kind, name
	return stat
}

// Stats counts what was asked of each model, and of each agent there is.
func (o *Outbound) Stats() []Stat {
	var all []Stat
	for name, m := range o.models {
		all = append(all, m.stats.snapshot("model", name))
	}
	o.agents.mu.Lock()
	for name, k := range o.agents.known {
		all = append(all, k.stats.snapshot("agent", name))
	}
	o.agents.mu.Unlock()
	slices.SortFunc(all, func(a, b Stat) int { return cmp.Or(-cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })
	return all
}
