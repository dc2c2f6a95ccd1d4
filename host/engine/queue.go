// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync/atomic"

	"github.com/troupe-run/troupe/actor"
)

// queue is a bounded lock-free queue of envelopes with many producers and one
// consumer at a time. The sequence number of a slot determines whether the slot
// is free to write or ready to read (Vyukov).
type queue struct {
	slots []queueSlot
	tail  atomic.Uint64 // next position to write
	head  atomic.Uint64 // next position to read; written only by the consumer
}

type queueSlot struct {
	seq      atomic.Uint64
	envelope actor.Envelope
}

// newQueue returns a queue with at least n slots; the number is rounded up to a
// power of two.
func newQueue(n int) *queue {
	size := 1
	for size < n {
		size *= 2
	}
	q := &queue{slots: make([]queueSlot, size)}
	for i := range q.slots {
		q.slots[i].seq.Store(uint64(i))
	}
	return q
}

// push appends an envelope, which the caller MUST NOT use afterwards. It
// reports whether there was room.
func (q *queue) push(env *actor.Envelope) bool {
	for {
		at := q.tail.Load()
		s := &q.slots[at%uint64(len(q.slots))]
		switch seq := s.seq.Load(); {
		case seq == at:
			if q.tail.CompareAndSwap(at, at+1) {
				s.envelope = *env
				s.seq.Store(at + 1)
				return true
			}
		case seq < at:
			return false
		}
	}
}

// pop removes the oldest envelope. It reports whether there was one. An
// envelope that is still being written hides the envelopes that follow it. Its
// producer checks the running flag after writing, so no envelope is missed.
func (q *queue) pop(env *actor.Envelope) bool {
	at := q.head.Load()
	s := &q.slots[at%uint64(len(q.slots))]
	if s.seq.Load() != at+1 {
		return false
	}
	*env, s.envelope = s.envelope, actor.Envelope{}
	q.head.Store(at + 1)
	s.seq.Store(at + uint64(len(q.slots)))
	return true
}

// hasNext reports whether pop would succeed.
func (q *queue) hasNext() bool {
	at := q.head.Load()
	return q.slots[at%uint64(len(q.slots))].seq.Load() == at+1
}

// len returns the approximate number of envelopes. It is never negative: the head is read first, and the
// tail does not fall behind it.
func (q *queue) len() int {
	head := q.head.Load()
	return int(q.tail.Load() - head)
}
