// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runtime"
)

// Answer is what a client gets to know of its call.
type Answer struct {
	Reply     actor.Reply
	HeldUntil actor.Time // not 0: the run waits for a person, and Reply says only which run it is
	Durable   bool       // it may be a run's that can be looked at; else nothing of it was written
}

// callFailuresMax is how often a cell may fail over a call before the call is refused.
const callFailuresMax = 3

// clients are the calls of clients that wait for an answer. A call that is
// answered in the step that took it in is counted, and never gets on the list.
type clients struct {
	count     atomic.Int64 // of those who ask, and are not answered
	max       int
	state     atomic.Int32 // open, draining or closed
	mu        sync.Mutex
	byCall    map[actor.CallID]*waiter
	drained   chan struct{} // set by drain, closed when nobody waits any more
	isDrained bool          // none is closed
	pool      sync.Pool     // waiters that nobody knows of
}

// The states of a node for its clients.
const (
	open     = iota
	draining // only signals are taken
	closed   // nobody is served
)

// waiter is a client's call until it is answered. Its goroutine parks only if the
// answer is not there yet.
type waiter struct {
	request   runtime.Visit
	cell      uint16
	clock     actor.Clock
	delivered bool // its cell has seen it
	failures  int
	answer    Answer
	state     atomic.Int32
	ready     chan struct{}     // of one: it was parked, and is answered
	joined    chan actor.CallID // of one; nil: it does not want to know
}

// The states of a waiter.
const (
	pending = iota
	parked
	answered
)

// answered tells whether the answer is in; of nobody it never is.
func (w *waiter) answered() bool { return w != nil && w.state.Load() == answered }

// resolve is called once, by whoever has taken the waiter out.
func (w *waiter) resolve(a Answer) {
	w.answer = a
	if w.state.Swap(answered) == parked {
		w.ready <- struct{}{}
	}
}

// park says that the goroutine waits for ready; false if the answer is in.
func (w *waiter) park() bool { return w.state.CompareAndSwap(pending, parked) }

func newClients(limit int) *clients {
	return &clients{byCall: map[actor.CallID]*waiter{}, max: limit,
		pool: sync.Pool{New: func() any { return &waiter{ready: make(chan struct{}, 1)} }}}
}

// admit counts one more client; nil if there are too many, or if the node stops:
// then a signal is still taken as long as that helps somebody. Who enters leaves.
func (c *clients) admit(call *actor.Call, cell uint16, now actor.Time, joins bool) (*waiter, *actor.Refusal) {
	if n := c.count.Add(1); n > int64(c.max) {
		c.uncount()
		return nil, actor.RefuseBusy(actor.ScopeNode, time.Second, "%d clients wait at this node", c.max)
	}
	if state := c.state.Load(); state == closed || state == draining && call.Kind != actor.Signal {
		c.uncount()
		return nil, stopping()
	}
	w := c.pool.Get().(*waiter)
	w.request.Call, w.cell, w.clock = *call, cell, actor.NewClock(now, call.Left)
	if joins {
		w.joined = make(chan actor.CallID, 1)
	}
	return w, nil
}

// release gives back a waiter that is on no list, and has its answer if it is to
// have one.
func (c *clients) release(w *waiter) {
	ready := w.ready
	*w = waiter{ready: ready}
	c.pool.Put(w)
	c.uncount()
}

// uncount counts one client less, and says that there is none if somebody wants to know.
func (c *clients) uncount() {
	if c.count.Add(-1) > 0 || c.state.Load() == open {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closeIfDrained()
}

func (c *clients) closeIfDrained() {
	if c.drained != nil && c.count.Load() == 0 && !c.isDrained {
		c.isDrained = true
		close(c.drained)
	}
}

// add puts a waiter on the list: its answer may come from anywhere now.
func (c *clients) add(w *waiter, taken bool) {
	c.mu.Lock()
	late := c.state.Load() == closed
	if !late {
		w.delivered = taken
		c.byCall[w.request.Call.ID] = w
	}
	c.mu.Unlock()
	if late {
		w.resolve(Answer{Reply: actor.Fail(w.request.Call.ID, stopping())})
	}
}

func stopping() *actor.Refusal {
	return &actor.Refusal{Reason: actor.Unavailable, RetryAfter: time.Second, Detail: "this node is about to stop; runs go on when it is back"}
}

// remove takes a call off the list; false if it was answered meanwhile.
func (c *clients) remove(call actor.CallID) (*waiter, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, ok := c.byCall[call]
	delete(c.byCall, call)
	return w, ok
}

func (c *clients) respond(op runtime.Respond, durable bool) {
	if w, ok := c.remove(op.Call); ok {
		w.resolve(Answer{op.Reply, op.HeldUntil, durable})
	}
}

// notifyJoined tells a client whose call repeats an open run which one that is.
func (c *clients) notifyJoined(call, run actor.CallID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.byCall[call]; w != nil {
		select {
		case w.joined <- run:
		default: // it knows
		}
	}
}

// markDelivered notes that the call's cell has seen it.
func (c *clients) markDelivered(call actor.CallID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.byCall[call]; w != nil {
		w.delivered = true
	}
}

// recordFailure notes that the call's cell failed over it.
func (c *clients) recordFailure(call actor.CallID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.byCall[call]; w != nil {
		w.failures++
	}
}

// deliveredTo is the calls that a cell had seen when it failed, with the time they
// have left: its next incarnation knows nothing of who waits. A call over which it
// failed too often is refused.
func (c *clients) deliveredTo(cell uint16, now actor.Time) (again []actor.Call) {
	var refused []actor.CallID
	c.mu.Lock()
	for id, w := range c.byCall {
		if w.cell != cell || !w.delivered {
			continue
		}
		if w.failures >= callFailuresMax {
			refused = append(refused, id)
			continue
		}
		call := w.request.Call
		call.Attempt++ // it may be open: no "no" is the last word
		if call.Left > 0 {
			call.Left = max(w.clock.Remaining(now), 1)
		}
		again = append(again, call)
	}
	c.mu.Unlock()
	for _, id := range refused {
		c.respond(runtime.Respond{Call: id, Reply: actor.Fail(id, actor.Refuse(actor.Unavailable, "the call made its cell fail %d times", callFailuresMax))}, true)
	}
	return again
}

// drain refuses new work from now on; the channel says that nobody waits.
func (c *clients) drain() <-chan struct{} {
	c.state.CompareAndSwap(open, draining)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.drained == nil {
		c.drained = make(chan struct{})
	}
	c.closeIfDrained()
	return c.drained
}

// close answers everybody who still waits, and whoever comes, that it is too late.
func (c *clients) close() {
	c.state.Store(closed)
	c.mu.Lock()
	ids := make([]actor.CallID, 0, len(c.byCall))
	for id := range c.byCall {
		ids = append(ids, id)
	}
	c.mu.Unlock()
	for _, id := range ids {
		c.respond(runtime.Respond{Call: id, Reply: actor.Fail(id, stopping())}, true)
	}
}

// watchers want to know when a run has a new event.
type watchers struct {
	count atomic.Int32
	mu    sync.Mutex
	byRun map[actor.CallID]map[*watcher]struct{}
}

type watcher struct{ updates chan struct{} }

func (w *watchers) notify(run actor.CallID) {
	if w.count.Load() == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for one := range w.byRun[run] {
		select {
		case one.updates <- struct{}{}:
		default: // it has news that it has not looked at
		}
	}
}

func (w *watchers) add(run actor.CallID) *watcher {
	w.mu.Lock()
	defer w.mu.Unlock()
	one := &watcher{make(chan struct{}, 1)}
	if w.byRun == nil {
		w.byRun = map[actor.CallID]map[*watcher]struct{}{}
	}
	if w.byRun[run] == nil {
		w.byRun[run] = map[*watcher]struct{}{}
	}
	w.byRun[run][one] = struct{}{}
	w.count.Add(1)
	return one
}

func (w *watchers) remove(run actor.CallID, one *watcher) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.byRun[run][one]; !ok {
		return
	}
	delete(w.byRun[run], one)
	if len(w.byRun[run]) == 0 {
		delete(w.byRun, run)
	}
	w.count.Add(-1)
}
