// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/upstream"
)

// Stat counts the exchanges with one upstream since the node first knew it.
type Stat struct {
	Kind       string // "model", "agent" or "tool"
	Name       string
	InProgress int    // open exchanges
	Refused    uint64 // exchanges refused because the upstream was at its limit
	Attempts   uint64
	Failures   uint64 // failed attempts
	Bytes      uint64 // bytes of answers
	Took       time.Duration
}

// statCounter is a Stat that is being updated.
type statCounter struct {
	mu   sync.Mutex
	stat Stat
	open load
}

// acquire counts one more open exchange and returns 0. If limit exchanges are already
// open, it returns the retry delay; a limit of 0 means none.
func (t *statCounter) acquire(limit int, now actor.Time) actor.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if limit == 0 {
		limit = math.MaxInt
	}
	retryAfter := t.open.acquire(limit, now)
	if retryAfter > 0 {
		t.stat.Refused++
	}
	return retryAfter
}

// refuse counts a refused exchange and returns its retry delay.
func (t *statCounter) refuse(now actor.Time) actor.Duration { return t.acquire(-1, now) }

func (t *statCounter) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open.release()
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
	stat.Kind, stat.Name, stat.InProgress = kind, name, t.open.count
	return stat
}

// Stats returns the statistics of each model, each registered agent and each tool in use.
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
	o.tools.mu.Lock()
	for name, t := range o.tools.known {
		all = append(all, t.stats.snapshot("tool", name))
	}
	o.tools.mu.Unlock()
	slices.SortFunc(all, func(a, b Stat) int { return cmp.Or(-cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })
	return all
}
