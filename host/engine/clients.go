// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runtime"
)

// Answer is the outcome of a client's call.
type Answer struct {
	Reply     actor.Reply
	HeldUntil actor.Time // 0 unless the run waits for a person: the latest end of the wait. Reply then contains only the run's ID
	Durable   bool       // the run may have entries in the log and can be read; false: nothing was written
}

// callFailuresMax is the number of cell failures after which a call is refused.
const callFailuresMax = 3

// clients tracks the client calls that wait for an answer. A call that is
// answered in the step that took it is counted but never enters the table.
type clients struct {
	count     atomic.Int64 // callers of Ask without an answer
	max       int          // Config.ClientsMax
	turnover  turnover
	state     atomic.Int32 // open, draining or closed
	mu        sync.Mutex
	byCall    map[actor.CallID]*waiter // the table: calls that are answered later
	drained   chan struct{}            // set by drain; closed when no client waits
	isDrained bool                     // the channel drained is closed
	pool      sync.Pool                // released waiters, for reuse
}

// The states of a node towards its clients.
const (
	open     = iota
	draining // only signals are accepted
	closed   // all calls are refused
)

// waiter is a client's call until it is answered. Its goroutine parks only if
// the answer has not arrived yet.
type waiter struct {
	request   runtime.Visit
	cell      uint16
	clock     actor.Clock
	delivered bool // the cell has received the call
	failures  int  // number of cell failures on the call
	answer    Answer
	state     atomic.Int32
	ready     chan struct{}     // capacity 1: receives if the waiter was parked when it was answered
	joined    chan actor.CallID // capacity 1: receives the open run that the call repeats; nil if the client does not ask for it
}

// The states of a waiter.
const (
	pending = iota
	parked
	answered
)

// answered reports whether the answer has arrived. It is false for a nil
// waiter.
func (w *waiter) answered() bool { return w != nil && w.state.Load() == answered }

// resolve delivers the answer. It MUST be called once, by the goroutine that
// removed the waiter from the table.
func (w *waiter) resolve(a Answer) {
	w.answer = a
	if w.state.Swap(answered) == parked {
		w.ready <- struct{}{}
	}
}

// park reports whether the goroutine has to wait for the channel ready. It is
// false if the answer has arrived.
func (w *waiter) park() bool { return w.state.CompareAndSwap(pending, parked) }

func newClients(limit int) *clients {
	return &clients{byCall: map[actor.CallID]*waiter{}, max: limit,
		pool: sync.Pool{New: func() any { return &waiter{ready: make(chan struct{}, 1)} }}}
}

// admit counts one more client and returns its waiter. It refuses the call if
// there are too many clients or the node is stopping. While the node drains,
// signals are still admitted, because they let waiting clients finish. The
// caller MUST release the waiter.
func (c *clients) admit(call *actor.Call, cell uint16, now actor.Time, wantJoined bool) (*waiter, *actor.Refusal) {
	if n := c.count.Add(1); n > int64(c.max) {
		c.uncount()
		return nil, actor.RefuseBusy(actor.ScopeNode, c.turnover.retryAfter(now), "%d clients wait at this node", c.max)
	}
	if state := c.state.Load(); state == closed || state == draining && call.Kind != actor.Signal {
		c.uncount()
		return nil, stopping()
	}
	w := c.pool.Get().(*waiter)
	w.request.Call, w.cell, w.clock = *call, cell, actor.NewClock(now, call.Left)
	if wantJoined {
		w.joined = make(chan actor.CallID, 1)
	}
	return w, nil
}

// release returns a waiter to the pool. The waiter MUST NOT be in the table,
// and no goroutine may still answer it.
func (c *clients) release(w *waiter) {
	ready := w.ready
	*w = waiter{ready: ready}
	c.pool.Put(w)
	c.turnover.done.Add(1)
	c.uncount()
}

// uncount decrements the number of clients. It closes the channel drained if no
// client is left.
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

// add puts a waiter into the table. From then on any goroutine may answer it.
func (c *clients) add(w *waiter, delivered bool) {
	c.mu.Lock()
	rejected := c.state.Load() == closed
	if !rejected {
		w.delivered = delivered
		c.byCall[w.request.Call.ID] = w
	}
	c.mu.Unlock()
	if rejected {
		w.resolve(Answer{Reply: actor.Fail(w.request.Call.ID, stopping())})
	}
}

func stopping() *actor.Refusal {
	return &actor.Refusal{Reason: actor.Unavailable, RetryAfter: time.Second, Detail: "this node is stopping; its runs resume when it starts again"}
}

// remove removes a call from the table. It returns false if the call was not in
// the table: its answer has been or is being delivered.
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

// notifyJoined sends the ID of the open run that a client's call repeats.
func (c *clients) notifyJoined(call, run actor.CallID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.byCall[call]; w != nil {
		select {
		case w.joined <- run:
		default: // already sent
		}
	}
}

// markDelivered records that the cell has received the call.
func (c *clients) markDelivered(call actor.CallID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.byCall[call]; w != nil {
		w.delivered = true
	}
}

// recordFailure records that the cell failed while it handled the call.
func (c *clients) recordFailure(call actor.CallID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.byCall[call]; w != nil {
		w.failures++
	}
}

// deliveredTo returns the calls that a failed cell had received, with their
// time left. The next incarnation does not know them and MUST receive them
// again. A call that made the cell fail too often is refused.
func (c *clients) deliveredTo(cell uint16, now actor.Time) (calls []actor.Call) {
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
		call.Attempt++ // a repeat: the log may already hold the run of the call
		call.Left = 0  // the client named none
		if w.clock.Left > 0 {
			call.Left = max(w.clock.Remaining(now), 1)
		}
		calls = append(calls, call)
	}
	c.mu.Unlock()
	for _, id := range refused {
		c.respond(runtime.Respond{Call: id, Reply: actor.Fail(id, actor.Refuse(actor.Unavailable, "the call made its cell fail %d times", callFailuresMax))}, true)
	}
	return calls
}

// drain refuses new work from now on. The returned channel is closed when no
// client waits.
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

// close refuses all clients that still wait, and all later calls.
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
