// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	goruntime "runtime"
	"sync"
	"sync/atomic"

	proto "github.com/asynkron/protoactor-go/actor"

	"github.com/troupe-run/troupe/runtime"
)

// mailbox is what a cell takes in, in three lanes besides protoactor's own:
// envelopes from cells and clients, answers to what the cell asked for, and that
// time has passed. They take turns, so that none starves.
type mailbox struct {
	ring    *ring
	tick    atomic.Bool
	blocked atomic.Uint64 // cells that found the ring full, one bit each
	unblock func(cells uint64)

	mu      sync.Mutex
	system  []any
	answers []answer
	more    atomic.Int32 // of those two

	running    atomic.Bool
	suspended  bool // between a panic and the next incarnation; the worker's alone
	invoker    proto.MessageInvoker
	dispatcher proto.Dispatcher
	run        func() // m.process, made once
}

// What the cell's actor receives.
type (
	// answer is what came of something that an incarnation asked for; of whichever
	// there is if it is 0. Without an input it is something to do on the cell's thread.
	answer struct {
		incarnation uint64
		input       runtime.Input
		do          func()
	}
	// envelope is an encoded actor.Envelope.
	envelope struct{ bytes []byte }
	passed   struct{}
)

var _ proto.Mailbox = (*mailbox)(nil)

func newMailbox(slots int, unblock func(cells uint64)) *mailbox {
	m := &mailbox{ring: newRing(slots), unblock: unblock}
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
func (m *mailbox) UserMessageCount() int { return m.waiting() }

// waiting is about how much there is to take in.
func (m *mailbox) waiting() int { return m.ring.len() + int(m.more.Load()) }

// PostSystemMessage implements protoactor's Mailbox.
func (m *mailbox) PostSystemMessage(message any) {
	m.mu.Lock()
	m.system = append(m.system, message)
	m.mu.Unlock()
	m.more.Add(1)
	m.schedule()
}

// PostUserMessage implements protoactor's Mailbox. Only answers come this way.
func (m *mailbox) PostUserMessage(message any) { m.answer(message.(answer)) }

func (m *mailbox) answer(a answer) {
	m.mu.Lock()
	m.answers = append(m.answers, a)
	m.mu.Unlock()
	m.more.Add(1)
	m.schedule()
}

// push takes an envelope in; false if there is no room.
func (m *mailbox) push(b []byte) bool {
	if !m.ring.push(b) {
		return false
	}
	m.schedule()
	return true
}

// pushFrom is push for a cell, which is told when there is room again.
func (m *mailbox) pushFrom(cell uint16, b []byte) bool {
	if m.push(b) {
		return true
	}
	m.blocked.Or(1 << cell)
	if !m.push(b) { // it may have been emptied before the bit was seen
		m.schedule()
		return false
	}
	return true
}

// wake has the cell look at the time.
func (m *mailbox) wake() {
	m.tick.Store(true)
	m.schedule()
}

func (m *mailbox) schedule() {
	if m.running.CompareAndSwap(false, true) {
		m.dispatcher.Schedule(m.run)
	}
}

// process empties the mailbox, on the worker. The flag is cleared before the
// lanes are looked at again, and set after something was put in: what comes
// meanwhile is seen by one side or the other.
func (m *mailbox) process() {
	for {
		empty := m.drain()
		if cells := m.blocked.Swap(0); cells != 0 {
			m.unblock(cells)
		}
		if !empty {
			goruntime.Gosched()
			continue
		}
		m.running.Store(false)
		if !m.ready() || !m.running.CompareAndSwap(false, true) {
			return
		}
	}
}

func (m *mailbox) ready() bool {
	if m.suspended {
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.system) > 0
	}
	return m.more.Load() > 0 || m.tick.Load() || m.ring.ready() || m.blocked.Load() != 0
}

var errGoexit = errors.New("an agent's code ended its goroutine")

// drain hands over what is there, up to the throughput; false if there is more.
// A panic of the cell ends it, and suspends the mailbox until the cell begins anew.
func (m *mailbox) drain() (empty bool) {
	returned := false
	defer func() {
		if returned {
			return
		}
		reason := recover()
		if reason == nil {
			// The goroutine is on its way out: whoever takes over finds the flag clear.
			reason = errGoexit
			defer func() {
				m.running.Store(false)
				m.schedule()
			}()
		}
		m.invoker.EscalateFailure(reason, nil)
		empty = false
	}()
	for range m.dispatcher.Throughput() {
		if !m.next() {
			returned = true
			return true
		}
	}
	returned = true
	return false
}

// next hands over one of each lane; false if there was none.
func (m *mailbox) next() bool {
	if message, ok := m.popSystem(); ok {
		switch message.(type) {
		case *proto.SuspendMailbox:
			m.suspended = true
		case *proto.ResumeMailbox:
			m.suspended = false
		default:
			m.invoker.InvokeSystemMessage(message)
		}
		return true
	}
	if m.suspended {
		return false
	}
	any := false
	if m.tick.Load() && m.tick.Swap(false) {
		m.invoker.InvokeUserMessage(passed{})
		any = true
	}
	if a, ok := m.popAnswer(); ok {
		m.invoker.InvokeUserMessage(a)
		any = true
	}
	if b, ok := m.ring.pop(); ok {
		m.invoker.InvokeUserMessage(envelope{b})
		any = true
	}
	return any
}

func (m *mailbox) popSystem() (any, bool) {
	if m.more.Load() == 0 {
		return nil, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.system) == 0 {
		return nil, false
	}
	message := m.system[0]
	m.system = m.system[1:]
	m.more.Add(-1)
	return message, true
}

func (m *mailbox) popAnswer() (answer, bool) {
	if m.more.Load() == 0 {
		return answer{}, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.answers) == 0 {
		return answer{}, false
	}
	a := m.answers[0]
	m.answers[0] = answer{}
	m.answers = m.answers[1:]
	m.more.Add(-1)
	return a, true
}
