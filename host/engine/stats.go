// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync/atomic"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/runtime"
)

// effectKinds are the asks that are performed outside the cells.
var effectKinds = [...]actor.AskKind{actor.AskTool, actor.AskWork, actor.AskModel, actor.AskInvoke}

// counter counts the asks of one kind.
type counter struct {
	underWay atomic.Int64
	took     histogram
}

// start counts a running ask. Calling the returned function counts it as
// answered.
func (c *counter) start() (end func()) {
	began := time.Now()
	c.underWay.Add(1)
	return func() {
		c.underWay.Add(-1)
		c.record(time.Since(began))
	}
}

func (c *counter) record(took time.Duration) { c.took.record(took) }

const (
	reasonCount = 32 // more than there are reasons
	scopeCount  = int(actor.ScopeNode) + 1
)

// tally holds the statistics of a cell. Only the goroutine that holds the cell
// writes the fields, except longest, which the watchdog may also raise. Any
// goroutine may read the atomic fields; lastSize belongs to the holder.
type tally struct {
	refusals    [reasonCount * scopeCount]atomic.Uint64
	runs        [runs.Cancelled + 1]atomic.Uint64
	steps       atomic.Uint64
	longest     atomic.Int64
	quickSteps  atomic.Bool // the last timed step took less than quickStep
	incarnation atomic.Uint64
	actors      atomic.Int64
	queued      [actor.Low]atomic.Int64 // by lane
	outstanding atomic.Int64
	calls       counter
	unknown     atomic.Uint64 // outcomes that are unknown

	measures *measures
	routes   routes

	lastSize runtime.Size // size after the last recorded step
}

// recordStepTime records the duration of a step.
func (t *tally) recordStepTime(d time.Duration) {
	t.recordLongest(d)
	if quick := d < quickStep; quick != t.quickSteps.Load() {
		t.quickSteps.Store(quick)
	}
}

// recordLongest raises the longest step duration to d if d exceeds it. The step
// may still be running; d is then its duration so far.
func (t *tally) recordLongest(d time.Duration) {
	for {
		longest := t.longest.Load()
		if int64(d) <= longest || t.longest.CompareAndSwap(longest, int64(d)) {
			return
		}
	}
}

// recordStep counts a step and records the cell's size after it.
func (t *tally) recordStep(size runtime.Size) {
	t.steps.Add(1)
	if size != t.lastSize {
		t.lastSize = size
		t.actors.Store(int64(size.Actors))
		for i, n := range size.ByLane {
			t.queued[i].Store(int64(n))
		}
		t.outstanding.Store(int64(size.Outstanding))
	}
}

// startIncarnation resets the gauges that belong to an incarnation.
func (t *tally) startIncarnation(incarnation uint64) {
	t.incarnation.Store(incarnation)
	t.measures.startIncarnation()
}

// recordEvent counts the event if it is a refusal.
func (t *tally) recordEvent(ev *history.Event) {
	if ev.Kind == history.Refuse {
		t.refusals[int(ev.Reason)*scopeCount+int(ev.Scope)].Add(1)
	}
}

func (t *tally) queuedByLane() (n [actor.Low]int) {
	for i := range n {
		n[i] = int(t.queued[i].Load())
	}
	return n
}

// Stats returns the node's figures. It never blocks on a cell.
func (e *Engine) Stats() command.Stats {
	s := command.Stats{Clients: int(e.clients.count.Load()), Backlog: e.config.Log.Backlog()}
	var refusals [reasonCount * scopeCount]uint64
	var ends [runs.Cancelled + 1]uint64
	calls := command.AskStats{Kind: actor.AskCall}
	for _, c := range e.cells {
		t := &c.tally
		s.Cells = append(s.Cells, command.CellStats{Mailbox: c.mailbox.pendingCount(), Actors: int(t.actors.Load()), Queued: t.queuedByLane(),
			Outstanding: int(t.outstanding.Load()), Incarnation: t.incarnation.Load(), Steps: t.steps.Load(), StepLongest: time.Duration(t.longest.Load())})
		for i := range refusals {
			refusals[i] += t.refusals[i].Load()
		}
		for i := range ends {
			ends[i] += t.runs[i].Load()
		}
		s.Unknown += t.unknown.Load()
		calls.UnderWay += int(t.outstanding.Load())
		t.calls.took.addTo(&calls.Took)
	}
	for i, n := range refusals {
		if n > 0 {
			s.Refusals = append(s.Refusals, command.RefusalStats{Reason: actor.Reason(i / scopeCount), Scope: actor.Scope(i % scopeCount), Count: n})
		}
	}
	s.Runs = runStats(&ends)
	for _, kind := range effectKinds {
		a := &e.effectCounters[kind]
		asks := command.AskStats{Kind: kind, UnderWay: int(a.underWay.Load())}
		a.took.addTo(&asks.Took)
		s.Asks = append(s.Asks, asks)
	}
	s.Asks = append(s.Asks, calls)
	e.addSeries(&s)
	s.Routes = e.routeStats()
	return s
}
