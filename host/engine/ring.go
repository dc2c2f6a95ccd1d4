// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync/atomic"

	"github.com/troupe-run/troupe/actor"
)

// slotBytesMax is how much of a buffer a slot keeps for the next message.
const slotBytesMax = 8 << 10

// ring is a bounded queue of envelopes: many fill it, one at a time empties it.
// Each slot has a sequence number that says whose turn it is (Vyukov), and a
// buffer of its own that cells copy what they have encoded into. What a client's
// goroutine has read from bytes already lies there as it is.
type ring struct {
	slots []slot
	tail  atomic.Uint64 // next to fill
	head  atomic.Uint64 // next to empty; written by the reader alone
}

type slot struct {
	seq    atomic.Uint64
	bytes  []byte
	letter actor.Envelope // if there are no bytes
}

// newRing makes a ring of at least n slots.
func newRing(n int) *ring {
	size := 1
	for size < n {
		size *= 2
	}
	r := &ring{slots: make([]slot, size)}
	for i := range r.slots {
		r.slots[i].seq.Store(uint64(i))
	}
	return r
}

// push copies an encoded envelope in; false if there is no room.
func (r *ring) push(b []byte) bool {
	s, at := r.claim()
	if s == nil {
		return false
	}
	s.bytes = append(s.bytes[:0], b...)
	s.seq.Store(at + 1)
	return true
}

// put puts an envelope in that nobody else holds; false if there is no room.
func (r *ring) put(env actor.Envelope) bool {
	s, at := r.claim()
	if s == nil {
		return false
	}
	s.letter = env
	s.seq.Store(at + 1)
	return true
}

// claim is the next slot to fill, and its number; nil if there is none.
func (r *ring) claim() (*slot, uint64) {
	for {
		at := r.tail.Load()
		s := &r.slots[at%uint64(len(r.slots))]
		switch seq := s.seq.Load(); {
		case seq == at:
			if r.tail.CompareAndSwap(at, at+1) {
				return s, at
			}
		case seq < at:
			return nil, 0
		}
	}
}

// pop takes the oldest out; false if there is none. Behind one that is still
// being put in nothing is seen: whoever puts it in looks again afterwards.
func (r *ring) pop() (env actor.Envelope, ok bool, err error) {
	at := r.head.Load()
	s := &r.slots[at%uint64(len(r.slots))]
	if s.seq.Load() != at+1 {
		return env, false, nil
	}
	if len(s.bytes) > 0 {
		env, err = actor.Decode(s.bytes) // keeps nothing of them
		if s.bytes = s.bytes[:0]; cap(s.bytes) > slotBytesMax {
			s.bytes = nil
		}
	} else {
		env, s.letter = s.letter, actor.Envelope{}
	}
	r.head.Store(at + 1)
	s.seq.Store(at + uint64(len(r.slots)))
	return env, true, err
}

// ready tells whether there is one to take out.
func (r *ring) ready() bool {
	at := r.head.Load()
	return r.slots[at%uint64(len(r.slots))].seq.Load() == at+1
}

// len is about how many there are.
func (r *ring) len() int { return int(r.tail.Load() - r.head.Load()) }
