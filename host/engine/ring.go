// SPDX-License-Identifier: Apache-2.0

package engine

import "sync/atomic"

// slotBytesMax is how much of a buffer a slot keeps for the next message.
const slotBytesMax = 8 << 10

// ring is a bounded queue of encoded envelopes: many fill it, one at a time
// empties it. Each slot has a sequence number that says whose turn it is (Vyukov),
// and a buffer of its own that senders copy into.
type ring struct {
	slots []slot
	tail  atomic.Uint64 // next to fill
	head  atomic.Uint64 // next to empty; written by the reader alone
}

type slot struct {
	seq   atomic.Uint64
	bytes []byte
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

// push copies an envelope in; false if there is no room.
func (r *ring) push(b []byte) bool {
	for {
		at := r.tail.Load()
		s := &r.slots[at%uint64(len(r.slots))]
		switch seq := s.seq.Load(); {
		case seq == at:
			if r.tail.CompareAndSwap(at, at+1) {
				s.bytes = append(s.bytes[:0], b...)
				s.seq.Store(at + 1)
				return true
			}
		case seq < at:
			return false
		}
	}
}

// front is the oldest, until drop; false if there is none. An older one that is
// still being copied in has its sender look again afterwards.
func (r *ring) front() ([]byte, bool) {
	at := r.head.Load()
	s := &r.slots[at%uint64(len(r.slots))]
	if s.seq.Load() != at+1 {
		return nil, false
	}
	return s.bytes, true
}

// drop gives the slot of the oldest back.
func (r *ring) drop() {
	at := r.head.Load()
	s := &r.slots[at%uint64(len(r.slots))]
	if cap(s.bytes) > slotBytesMax {
		s.bytes = nil
	}
	r.head.Store(at + 1)
	s.seq.Store(at + uint64(len(r.slots)))
}

// ready tells whether there is one to take out.
func (r *ring) ready() bool {
	at := r.head.Load()
	return r.slots[at%uint64(len(r.slots))].seq.Load() == at+1
}

// len is about how many there are.
func (r *ring) len() int { return int(r.tail.Load() - r.head.Load()) }
