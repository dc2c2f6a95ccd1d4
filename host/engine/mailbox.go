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
	// busySpins is how often an asker looks whether a busy cell is idle, before it
	// queues, if the cell's steps are quicker than that takes.
	busySpins = 4000
	quickStep = 4 * time.Microsecond
	// helpRoundsMax and helpFor bound what a goroutine does for cells before it leaves
	// them to their own goroutines.
	helpRoundsMax = 64
	helpTimeMax   = 200 * time.Microsecond
)

// mailbox is what a cell takes in, in three lanes besides protoactor's own:
// envelopes from cells and clients, answers to what the cell asked for, and that
// time has passed. They take turns, so that none starves.
//
// Whoever sets the flag running is the cell's thread until it hands on: the
// cell's own goroutine, or a client's who found the cell idle. Whoever puts
// something in looks at the flag afterwards; whoever clears the flag looks into
// the lanes afterwards: so one of the two sees to it.
type mailbox struct {
	n              uint16
	peers          []*mailbox // of the node's cells, by number; set before there is anything to hand on
	queue          *queue
	tick           atomic.Bool
	blockedSenders atomic.Uint64 // cells that found the ring full, one bit each

	mu              sync.Mutex
	system          []any
	completions     []completion
	systemCount     atomic.Int32
	completionCount atomic.Int32 // answers

	running   atomic.Bool
	suspended atomic.Bool // between a panic and the next incarnation

	// The thread's alone.
	now          actor.Time // when its last step began; 0: nobody says
	pendingPeers uint64     // cells that have something to take in, one bit each
	delivery     runtime.Deliver
	invoker      proto.MessageInvoker
	dispatcher   proto.Dispatcher
	coroutines   *coroutinePool
	run          func() // m.process, made once
}

// What the cell's actor receives.
type (
	// completion is what came of something that an incarnation asked for; of whichever
	// there is if it is 0. Without an input it is something to do on the cell's thread.
	completion struct {
		incarnation uint64
		input       runtime.Input
		effect      *effect // whose outcome or piece the input is
		run         func()
	}
	tickMessage struct{}
)

var _ proto.Mailbox = (*mailbox)(nil)

func newMailbox(n uint16, slots int, stacks *coroutinePool) *mailbox {
	m := &mailbox{n: n, queue: newQueue(slots), coroutines: stacks}
	m.run = m.process
	m.running.Store(true) // until Start: other cells may fill it before this one is there
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

// pendingCount is about how much there is to take in.
func (m *mailbox) pendingCount() int { return m.queue.len() + int(m.completionCount.Load()) }

// PostSystemMessage implements protoactor's Mailbox.
func (m *mailbox) PostSystemMessage(message any) {
	m.mu.Lock()
	m.system = append(m.system, message)
	m.systemCount.Add(1)
	m.mu.Unlock()
	m.schedule()
}

// PostUserMessage implements protoactor's Mailbox. Only answers come this way.
func (m *mailbox) PostUserMessage(message any) { m.postCompletion(message.(completion)) }

func (m *mailbox) postCompletion(a completion) {
	m.mu.Lock()
	m.completions = append(m.completions, a)
	m.completionCount.Add(1)
	m.mu.Unlock()
	m.schedule()
}

// wake has the cell look at the time.
func (m *mailbox) wake() {
	m.tick.Store(true)
	m.schedule()
}

// pushFrom takes in an envelope of a cell that will note it; false if there is no
// room: then the cell is told when there is.
func (m *mailbox) pushFrom(cell uint16, env *actor.Envelope) bool {
	if m.queue.push(env) {
		return true
	}
	m.blockedSenders.Or(1 << cell)
	return m.queue.push(env) // it may have been emptied before the bit was seen
}

// tryAcquire makes the caller the cell's thread, if nobody is.
func (m *mailbox) tryAcquire() bool {
	return !m.running.Load() && m.running.CompareAndSwap(false, true)
}

// spinAcquire is take for an asker, who looks again for a while if the thread's steps are
// quick. It looks no longer where something waits: somebody has looked in vain then,
// as the thread has lost its processor, and whoever looks on keeps it from one. It
// tells how often it looked.
func (m *mailbox) spinAcquire(quick *atomic.Bool) (held bool, looks int) {
	if held = m.tryAcquire(); held || m.queue.hasNext() {
		return held, 0
	}
	for !held && looks < busySpins && quick.Load() {
		held, looks = m.tryAcquire(), looks+1
	}
	return held, looks
}

// schedule leaves it to the cell's own goroutine, unless somebody is at it.
func (m *mailbox) schedule() {
	if m.tryAcquire() {
		m.dispatcher.Schedule(m.run)
	}
}

// hasWork tells whether there is something to take in.
func (m *mailbox) hasWork() bool {
	if m.systemCount.Load() > 0 {
		return true
	}
	return !m.suspended.Load() && (m.completionCount.Load() > 0 || m.tick.Load() || m.queue.hasNext() || m.blockedSenders.Load() != 0)
}

// process is a turn of the cell's own goroutine.
func (m *mailbox) process() { m.coroutines.run(runner{mailbox: m, task: taskDrain}) }

// deliverDirect hands over a client's call that has not been in the ring. The caller is
// the thread, and nothing waits.
func (m *mailbox) deliverDirect(asker *waiter) {
	returned := false
	defer func() {
		if !returned {
			m.escalate(recover())
		}
	}()
	m.invoker.InvokeUserMessage(asker)
	returned = true
}

// drain hands over what is there, up to the throughput; an asker leaves once it
// has its answer.
func (m *mailbox) drain(t *runner) {
	returned := false
	defer func() {
		if !returned {
			m.escalate(recover())
		}
	}()
	for range m.dispatcher.Throughput() {
		if !m.deliverNext() || t.waiter.answered() || t.expired(m.now) {
			break
		}
	}
	returned = true
}

// escalate ends a cell whose step panicked, or did not return. Its supervisor makes
// the next incarnation; until then the mailbox is suspended.
func (m *mailbox) escalate(reason any) { m.invoker.EscalateFailure(newStepFailure(reason), nil) }

// markPeer remembers that a cell has something to take in.
func (m *mailbox) markPeer(cell uint16) { m.pendingPeers |= 1 << cell }

// handOff ends the caller's time as the cell's thread, and sees to it that what
// was put in meanwhile is taken in, by this cell and by those it sent to: one of
// them by the caller, who then goes on from there, the others by their own
// goroutines; all of them once the caller's time is over or its answer is in. It
// is never the thread of two cells, so no two can wait for each other.
func (m *mailbox) handOff(t *runner) {
	for round := 0; ; round++ {
		if cells := m.blockedSenders.Swap(0); cells != 0 {
			for left := cells; left != 0; left &= left - 1 {
				m.peers[bits.TrailingZeros64(left)].tick.Store(true)
			}
			m.pendingPeers |= cells
		}
		noted, now := m.pendingPeers, m.now // the next thread's from here on
		m.pendingPeers = 0
		m.running.Store(false)
		if m.hasWork() {
			noted |= 1 << m.n
		}
		if noted == 0 {
			return
		}
		helps := round < helpRoundsMax && !t.waiter.answered() && !t.expired(now)
		var next *mailbox
		for ; noted != 0; noted &= noted - 1 {
			switch peer := m.peers[bits.TrailingZeros64(noted)]; {
			case next == nil && helps && peer.tryAcquire():
				next = peer
			default:
				peer.schedule()
			}
		}
		if next == nil {
			return
		}
		m, t.mailbox = next, next
		m.drain(t)
	}
}

// deliverNext hands over one of each lane; false if there was none.
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
	a := m.completions[0]
	m.completions[0] = completion{}
	m.completions = m.completions[1:]
	m.completionCount.Add(-1)
	return a, true
}
