// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	proto "github.com/asynkron/protoactor-go/actor"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runtime"
)

const (
	// busySpins is the maximum number of times a caller polls a busy cell before it
	// enqueues its call. A caller polls only while the cell's steps are shorter
	// than quickStep.
	busySpins = 4000
	quickStep = 4 * time.Microsecond
	// helpRoundsMax and helpTimeMax bound the work of a goroutine for other
	// cells. Beyond these bounds the other cells are left to their own workers.
	helpRoundsMax = 64
	helpTimeMax   = 200 * time.Microsecond
)

// mailbox queues the inputs of a cell in three lanes, in addition to
// protoactor's system lane: envelopes from cells and clients, completions of
// the cell's requests, and the timer's tick. The lanes alternate, so none
// starves.
//
// The goroutine that sets the running flag holds the cell until it clears the
// flag in handOff. That goroutine is the cell's worker, or the goroutine of a
// client that found the cell idle. A producer checks the flag after it has
// enqueued; the holder checks the lanes after it has cleared the flag. One of
// the two therefore sees the input.
type mailbox struct {
	n              uint16     // cell number
	peers          []*mailbox // mailboxes of the node's cells, by number; set before the first handOff
	queue          *queue
	tick           atomic.Bool   // the deadline timer has fired
	blockedSenders atomic.Uint64 // cells that found the queue full, one bit each

	mu              sync.Mutex
	system          []any
	completions     []completion
	systemCount     atomic.Int32
	completionCount atomic.Int32 // length of completions

	running   atomic.Bool // a goroutine holds the cell
	suspended atomic.Bool // set from a panic to the next incarnation

	// The fields below belong to the holder of the cell.
	now          actor.Time // start of the last step; 0 means unknown
	pendingPeers uint64     // cells with new input, one bit each
	delivery     runtime.Deliver
	invoker      proto.MessageInvoker
	dispatcher   proto.Dispatcher
	coroutines   *coroutinePool
	run          func() // m.process, allocated once
}

// The messages that the cell's actor receives.
type (
	// completion is the result of a request that an incarnation made, or a
	// function to run while the cell is held. If the field incarnation is 0,
	// the completion is for the current incarnation. If input is nil, the
	// function run is called.
	completion struct {
		incarnation uint64
		input       runtime.Input
		effect      *effect // effect that the outcome or piece belongs to
		run         func()
	}
	tickMessage struct{}
)

var _ proto.Mailbox = (*mailbox)(nil)

func newMailbox(n uint16, slots int, coroutines *coroutinePool) *mailbox {
	m := &mailbox{n: n, queue: newQueue(slots), coroutines: coroutines}
	m.run = m.process
	m.running.Store(true) // until Start: other cells may send before this cell runs
	return m
}

// RegisterHandlers implements protoactor's Mailbox.
func (m *mailbox) RegisterHandlers(invoker proto.MessageInvoker, dispatcher proto.Dispatcher) {
	m.invoker, m.dispatcher = invoker, dispatcher
}

// Start implements protoactor's Mailbox.
func (m *mailbox) Start() {
	m.running.Store(false)
	m.schedule()
}

// UserMessageCount implements protoactor's Mailbox.
func (m *mailbox) UserMessageCount() int { return m.pendingCount() }

// pendingCount returns the approximate number of queued inputs.
func (m *mailbox) pendingCount() int { return m.queue.len() + int(m.completionCount.Load()) }

// PostSystemMessage implements protoactor's Mailbox.
func (m *mailbox) PostSystemMessage(message any) {
	m.mu.Lock()
	m.system = append(m.system, message)
	m.systemCount.Add(1)
	m.mu.Unlock()
	m.schedule()
}

// PostUserMessage implements protoactor's Mailbox. All user messages sent
// through protoactor are completions.
func (m *mailbox) PostUserMessage(message any) { m.postCompletion(message.(completion)) }

func (m *mailbox) postCompletion(c completion) {
	m.mu.Lock()
	m.completions = append(m.completions, c)
	m.completionCount.Add(1)
	m.mu.Unlock()
	m.schedule()
}

// wake makes the cell check its deadlines.
func (m *mailbox) wake() {
	m.tick.Store(true)
	m.schedule()
}

// pushFrom enqueues an envelope from another cell. It reports whether there was
// room. If there was no room, the sender gets a tick once there is room. The
// sender MUST mark this cell with markPeer: pushFrom does not schedule it.
func (m *mailbox) pushFrom(cell uint16, env *actor.Envelope) bool {
	if m.queue.push(env) {
		return true
	}
	m.blockedSenders.Or(1 << cell)
	return m.queue.push(env) // the queue may have been drained before the bit was set
}

// tryAcquire makes the caller the holder of the cell if the cell has no holder.
// It reports whether the caller became the holder.
func (m *mailbox) tryAcquire() bool {
	return !m.running.Load() && m.running.CompareAndSwap(false, true)
}

// spinAcquire retries tryAcquire for a while if the holder's steps are quick.
// It does not spin if the queue has an entry. Another caller has then spun in
// vain: the holder has probably lost its processor, and spinning would occupy a
// processor that the holder needs. The result spins is the number of retries.
func (m *mailbox) spinAcquire(quick *atomic.Bool) (acquired bool, spins int) {
	if acquired = m.tryAcquire(); acquired || m.queue.hasNext() {
		return acquired, 0
	}
	for !acquired && spins < busySpins && quick.Load() {
		acquired, spins = m.tryAcquire(), spins+1
	}
	return acquired, spins
}

// schedule acquires the cell for its own worker, unless a goroutine holds it.
func (m *mailbox) schedule() {
	if m.tryAcquire() {
		m.dispatcher.Schedule(m.run)
	}
}

// hasWork reports whether the mailbox has an input to deliver.
func (m *mailbox) hasWork() bool {
	if m.systemCount.Load() > 0 {
		return true
	}
	return !m.suspended.Load() && (m.completionCount.Load() > 0 || m.tick.Load() || m.queue.hasNext() || m.blockedSenders.Load() != 0)
}

// process is the function that the cell's own worker runs when it is scheduled.
func (m *mailbox) process() { m.coroutines.run(runner{mailbox: m, task: taskDrain}) }

// deliverDirect delivers a client's call that bypasses the queue. The caller
// holds the cell, and the lanes are empty.
func (m *mailbox) deliverDirect(w *waiter) {
	returned := false
	defer func() {
		if !returned {
			m.escalate(recover())
		}
	}()
	m.invoker.InvokeUserMessage(w)
	returned = true
}

// drain delivers queued inputs, at most Throughput rounds. A client's goroutine
// stops as soon as it has its answer.
func (m *mailbox) drain(r *runner) {
	returned := false
	defer func() {
		if !returned {
			m.escalate(recover())
		}
	}()
	for range m.dispatcher.Throughput() {
		if !m.deliverNext() || r.waiter.answered() || r.expired(m.now) {
			break
		}
	}
	returned = true
}

// escalate reports a step that panicked or did not return to the supervisor,
// which starts the next incarnation. The mailbox is suspended until then.
func (m *mailbox) escalate(reason any) { m.invoker.EscalateFailure(newStepFailure(reason), nil) }

// markPeer records that a cell has new input.
func (m *mailbox) markPeer(cell uint16) { m.pendingPeers |= 1 << cell }

// handOff releases the cell. It then makes sure that inputs enqueued in the
// meantime are delivered, in this cell and in the cells to which it sent
// messages. The caller acquires one of these cells and continues there; the
// workers take the others. Once the caller's time is used up or its answer has
// arrived, the workers take all of them. The caller never holds two cells, so
// no two cells can wait for each other.
func (m *mailbox) handOff(r *runner) {
	for round := 0; ; round++ {
		if blocked := m.blockedSenders.Swap(0); blocked != 0 {
			for rest := blocked; rest != 0; rest &= rest - 1 {
				m.peers[bits.TrailingZeros64(rest)].tick.Store(true)
			}
			m.pendingPeers |= blocked
		}
		peers, now := m.pendingPeers, m.now // read before the flag is cleared: afterwards the fields belong to the next holder
		m.pendingPeers = 0
		m.running.Store(false)
		if m.hasWork() {
			peers |= 1 << m.n
		}
		if peers == 0 {
			return
		}
		help := round < helpRoundsMax && !r.waiter.answered() && !r.expired(now)
		var next *mailbox
		for ; peers != 0; peers &= peers - 1 {
			switch peer := m.peers[bits.TrailingZeros64(peers)]; {
			case next == nil && help && peer.tryAcquire():
				next = peer
			default:
				peer.schedule()
			}
		}
		if next == nil {
			return
		}
		m, r.mailbox = next, next
		m.drain(r)
	}
}

// deliverNext delivers one system message or, if there is none, one input from
// each lane. It reports whether it delivered anything.
func (m *mailbox) deliverNext() bool {
	if message, ok := m.popSystem(); ok {
		switch message.(type) {
		case *proto.SuspendMailbox:
			m.suspended.Store(true)
		case *proto.ResumeMailbox:
			m.suspended.Store(false)
		default:
			m.invoker.InvokeSystemMessage(message)
		}
		return true
	}
	if m.suspended.Load() {
		return false
	}
	any := false
	if m.tick.Load() && m.tick.Swap(false) {
		m.invoker.InvokeUserMessage(tickMessage{})
		any = true
	}
	if a, ok := m.popCompletion(); ok {
		m.invoker.InvokeUserMessage(a)
		any = true
	}
	if m.queue.pop(&m.delivery.Envelope) {
		m.invoker.InvokeUserMessage(&m.delivery)
		m.delivery.Envelope = actor.Envelope{}
		any = true
	}
	return any
}

func (m *mailbox) popSystem() (any, bool) {
	if m.systemCount.Load() == 0 {
		return nil, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	message := m.system[0]
	m.system = m.system[1:]
	m.systemCount.Add(-1)
	return message, true
}

func (m *mailbox) popCompletion() (completion, bool) {
	if m.completionCount.Load() == 0 {
		return completion{}, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.completions[0]
	m.completions[0] = completion{}
	m.completions = m.completions[1:]
	m.completionCount.Add(-1)
	return c, true
}
