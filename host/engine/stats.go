// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync/atomic"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/runtime"
)

// Stats is a snapshot of a node's gauges and of its counters since the start.
// The values are read one after the other and need not agree exactly.
type Stats struct {
	Cells    []CellStats
	Clients  int // clients that wait for an answer
	Backlog  int // log entries that wait to be written
	Refusals []RefusalStats
	Runs     []RunStats
	Asks     []AskStats
}

// CellStats holds the figures of one cell.
type CellStats struct {
	Mailbox     int // approximate number of queued inputs
	Actors      int // actors in memory
	Queued      int // calls waiting in the actors' mailboxes
	Outstanding int // unanswered calls made by the actors in memory
	Incarnation uint64
	Steps       uint64
	StepLongest time.Duration // longest step since the start
}

// RefusalStats counts the calls that were refused before their turn.
type RefusalStats struct {
	Reason actor.Reason
	Scope  actor.Scope // set if Reason is Busy
	Count  uint64
}

// RunStats counts the runs that ended with one status.
type RunStats struct {
	Status runs.Status
	Count  uint64
}

// AskStats holds the statistics of the asks of one kind.
type AskStats struct {
	Kind     actor.AskKind
	UnderWay int
	Answered uint64        // all answers, including refusals
	Took     time.Duration // total time of the answered asks
}

// effectKinds are the asks that are performed outside the cells.
var effectKinds = [...]actor.AskKind{actor.AskTool, actor.AskWork, actor.AskModel, actor.AskInvoke}

// counter counts the asks of one kind.
type counter struct{ underWay, answered, duration atomic.Int64 }

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

func (c *counter) record(took time.Duration) {
	c.answered.Add(1)
	c.duration.Add(int64(took))
}

const (
	reasonCount = int(actor.EventsExceeded) + 1
	scopeCount  = int(actor.ScopeNode) + 1
)

// tally holds the statistics of a cell. Only the goroutine that holds the cell
// writes the fields, except longest, which the watchdog may also raise. Any
// goroutine may read the atomic fields; lastSize and lastTally belong to the
// holder.
type tally struct {
	refusals    [reasonCount * scopeCount]atomic.Uint64
	runs        [runs.Cancelled + 1]atomic.Uint64
	steps       atomic.Uint64
	longest     atomic.Int64
	quickSteps  atomic.Bool // the last timed step took less than quickStep
	incarnation atomic.Uint64
	actors      atomic.Int64
	queued      atomic.Int64
	outstanding atomic.Int64
	calls       counter

	lastSize  runtime.Size  // size after the last recorded step
	lastTally runtime.Tally // totals of the incarnation after its last recorded step
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

// recordStep counts a step and records the cell's size and totals after it.
func (t *tally) recordStep(size runtime.Size, total *runtime.Tally) {
	t.steps.Add(1)
	if size != t.lastSize {
		t.lastSize = size
		t.actors.Store(int64(size.Actors))
		t.queued.Store(int64(size.Queued))
		t.outstanding.Store(int64(size.Outstanding))
	}
	if *total == t.lastTally {
		return
	}
	for i, n := range total.Runs {
		if delta := n - t.lastTally.Runs[i]; delta > 0 {
			t.runs[i].Add(uint64(delta))
		}
	}
	if delta := total.Answered - t.lastTally.Answered; delta > 0 {
		t.calls.answered.Add(int64(delta))
		t.calls.duration.Add(int64(total.Took - t.lastTally.Took))
	}
	t.lastTally = *total
}

// startIncarnation resets the totals that belong to an incarnation.
func (t *tally) startIncarnation(incarnation uint64) {
	t.incarnation.Store(incarnation)
	t.lastTally = runtime.Tally{}
}

// recordEvent counts the event if it is a refusal.
func (t *tally) recordEvent(ev *history.Event) {
	if ev.Kind == history.Refuse {
		t.refusals[int(ev.Reason)*scopeCount+int(ev.Scope)].Add(1)
	}
}

// Stats returns the node's figures. It never blocks on a cell.
func (e *Engine) Stats() Stats {
	s := Stats{Clients: int(e.clients.count.Load()), Backlog: e.config.Log.Backlog()}
	var refusals [reasonCount * scopeCount]uint64
	var ends [runs.Cancelled + 1]uint64
	calls := AskStats{Kind: actor.AskCall}
	for _, c := range e.cells {
		t := &c.tally
		s.Cells = append(s.Cells, CellStats{Mailbox: c.mailbox.pendingCount(), Actors: int(t.actors.Load()), Queued: int(t.queued.Load()),
			Outstanding: int(t.outstanding.Load()), Incarnation: t.incarnation.Load(), Steps: t.steps.Load(), StepLongest: time.Duration(t.longest.Load())})
		for i := range refusals {
			refusals[i] += t.refusals[i].Load()
		}
		for i := range ends {
			ends[i] += t.runs[i].Load()
		}
		calls.UnderWay += int(t.outstanding.Load())
		calls.Answered += uint64(t.calls.answered.Load())
		calls.Took += time.Duration(t.calls.duration.Load())
	}
	for i, n := range refusals {
		if n > 0 {
			s.Refusals = append(s.Refusals, RefusalStats{actor.Reason(i / scopeCount), actor.Scope(i % scopeCount), n})
		}
	}
	for _, status := range []runs.Status{runs.Done, runs.Failed, runs.Cancelled} {
		s.Runs = append(s.Runs, RunStats{status, ends[status]})
	}
	for _, kind := range effectKinds {
		a := &e.effectCounters[kind]
		s.Asks = append(s.Asks, AskStats{kind, int(a.underWay.Load()), uint64(a.answered.Load()), time.Duration(a.duration.Load())})
	}
	s.Asks = append(s.Asks, calls)
	return s
}
