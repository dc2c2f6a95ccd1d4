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

// Stats is what a node is at, and what it has done since it began. Its figures
// were taken one after the other: they need not fit to the last unit.
type Stats struct {
	Cells    []CellStats
	Clients  int // that wait for an answer
	Backlog  int // entries of the log that wait for the disk
	Refusals []RefusalStats
	Runs     []RunStats
	Asks     []AskStats
}

// CellStats is one cell's part.
type CellStats struct {
	Mailbox     int // what waits to be stepped
	Actors      int // in memory
	Queued      int // calls that wait in their mailboxes
	Outstanding int // calls of theirs that are not answered
	Incarnation uint64
	Steps       uint64
	StepLongest time.Duration // of all so far
}

// RefusalStats counts what was answered with a no, before it had a turn.
type RefusalStats struct {
	Reason actor.Reason
	Scope  actor.Scope // of Busy
	Count  uint64
}

// RunStats counts the runs that ended one way.
type RunStats struct {
	Status runs.Status
	Count  uint64
}

// AskStats counts what was asked of the world, or of other agents, by kind.
type AskStats struct {
	Kind     actor.AskKind
	UnderWay int
	Answered uint64        // whatever the answer was
	Took     time.Duration // all of them together
}

// effectKinds are the asks that are carried out outside the cells.
var effectKinds = [...]actor.AskKind{actor.AskTool, actor.AskWork, actor.AskModel, actor.AskInvoke}

// counter counts what is asked of the world in one way.
type counter struct{ underWay, answered, duration atomic.Int64 }

// start counts one that is under way from now on; what it returns ends it.
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
	reasonCount = int(actor.NoDevice) + 1
	scopeCount  = int(actor.ScopeNode) + 1
)

// tally is the figures of a cell. One goroutine at a time adds to them, others read.
type tally struct {
	refusals    [reasonCount * scopeCount]atomic.Uint64
	runs        [runs.Cancelled + 1]atomic.Uint64
	steps       atomic.Uint64
	longest     atomic.Int64
	quickSteps  atomic.Bool // the last step took less than busyLooks
	incarnation atomic.Uint64
	actors      atomic.Int64
	queued      atomic.Int64
	outstanding atomic.Int64
	calls       counter

	lastSize  runtime.Size  // as last stored
	lastTally runtime.Tally // of the incarnation, as last added
}

// recordStepTime takes note of how long a step took.
func (t *tally) recordStepTime(d time.Duration) {
	t.recordLongest(d)
	if quick := d < quickStep; quick != t.quickSteps.Load() {
		t.quickSteps.Store(quick)
	}
}

// recordLongest takes note of a step that has taken so long already.
func (t *tally) recordLongest(d time.Duration) {
	for {
		longest := t.longest.Load()
		if int64(d) <= longest || t.longest.CompareAndSwap(longest, int64(d)) {
			return
		}
	}
}

// recordStep counts a step, and takes note of what there is after it, and what it has done.
func (t *tally) recordStep(size runtime.Size, done *runtime.Tally) {
	t.steps.Add(1)
	if size != t.lastSize {
		t.lastSize = size
		t.actors.Store(int64(size.Actors))
		t.queued.Store(int64(size.Queued))
		t.outstanding.Store(int64(size.Outstanding))
	}
	if *done == t.lastTally {
		return
	}
	for i, n := range done.Runs {
		if more := n - t.lastTally.Runs[i]; more > 0 {
			t.runs[i].Add(uint64(more))
		}
	}
	if more := done.Answered - t.lastTally.Answered; more > 0 {
		t.calls.answered.Add(int64(more))
		t.calls.duration.Add(int64(done.Took - t.lastTally.Took))
	}
	t.lastTally = *done
}

// startIncarnation forgets what an incarnation had done.
func (t *tally) startIncarnation(incarnation uint64) {
	t.incarnation.Store(incarnation)
	t.lastTally = runtime.Tally{}
}

// recordEvent counts what a cell refuses.
func (t *tally) recordEvent(ev *history.Event) {
	if ev.Kind == history.Refuse {
		t.refusals[int(ev.Reason)*scopeCount+int(ev.Scope)].Add(1)
	}
}

// Stats takes the node's figures. It waits for nobody.
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
