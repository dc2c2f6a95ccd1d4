// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync/atomic"

	"github.com/troupe-run/troupe/actor"
)

// queue is a bounded queue of envelopes: many fill it, one at a time empties it.
// Each slot has a sequence number that says whose turn it is (Vyukov).
type queue struct {
	slots []queueSlot
	tail  atomic.Uint64 // next to fill
	head  atomic.Uint64 // next to empty; written by the reader alone
}

type queueSlot struct {
	seq      atomic.Uint64
	envelope actor.Envelope
}

// newQueue makes a ring of at least n slots.
func newQueue(n int) *queue {
	size := 1
	for size < n {
		size *= 2
	}
	r := &queue{slots: make([]queueSlot, size)}
	for i := range r.slots {
		r.slots[i].seq.Store(uint64(i))
	}
	return r
}

// push puts an envelope in, of which nobody else holds anything; false if there is
// no room.
func (r *queue) push(env *actor.Envelope) bool {
	for {
		at := r.tail.Load()
		s := &r.slots[at%uint64(len(r.slots))]
		switch seq := s.seq.Load(); {
		case seq == at:
			if r.tail.CompareAndSwap(at, at+1) {
				s.envelope = *env
				s.seq.Store(at + 1)
				return true
			}
		case seq < at:
			return false
		}
	}
}

// pop takes the oldest out; false if there is none. Behind one that is still
// being put in nothing is seen: whoever puts it in looks again afterwards.
func (r *queue) pop(env *actor.Envelope) bool {
	at := r.head.Load()
	s := &r.slots[at%uint64(len(r.slots))]
	if s.seq.Load() != at+1 {
		return false
	}
	*env, s.envelope = s.envelope, actor.Envelope{}
	r.head.Store(at + 1)
	s.seq.Store(at + uint64(len(r.slots)))
	return true
}

// hasNext tells whether there is one to take out.
func (r *queue) hasNext() bool {
	at := r.head.Load()
	return r.slots[at%uint64(len(r.slots))].seq.Load() == at+1
}

// len is about how many there are.
func (r *queue) len() int { return int(r.tail.Load() - r.head.Load()) }
