// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"encoding/binary"

	"github.com/troupe-run/troupe/actor"
)

const (
	// recallMax and recallBytesMax bound the outcomes that a cell remembers of
	// actors that write nothing down. With more the oldest are forgotten first.
	recallMax      = 1 << 16
	recallBytesMax = 64 << 20
	recallFirst    = 64
)

// recall is the outcomes of calls that actors without a journal have ended, for
// as long as a repeat may come: a ring, and chains through it by call. What a
// chain says of places that the ring has left is not followed, so nothing has to
// be taken out.
type recall struct {
	ring  []recalled
	heads []uint64 // by the low bits of a call's id: the newest of the chain
	first uint64   // the oldest that is in the ring; places count from 1
	next  uint64
	bytes int
}

type recalled struct {
	reply actor.Reply
	epoch actor.Epoch
	until actor.Time
	below uint64 // the one before it in its chain
}

func (r *recall) slot(call actor.CallID) *uint64 {
	return &r.heads[binary.BigEndian.Uint64(call[8:])&uint64(len(r.heads)-1)]
}

// add remembers the outcome of a call until an instant, unless too many follow it.
func (r *recall) add(now actor.Time, reply *actor.Reply, epoch actor.Epoch, until actor.Time) {
	weight := actor.SizeOf(reply.Parts)
	for r.next > r.first && (r.at(r.first).until < now || r.next-r.first == recallMax || r.bytes+weight > recallBytesMax) {
		r.forget()
	}
	if int(r.next-r.first) == len(r.ring) {
		r.grow()
	}
	head := r.slot(reply.Call)
	*r.at(r.next) = recalled{*reply, epoch, until, *head}
	*head = r.next
	r.next++
	r.bytes += weight
}

// find is the outcome of a call under an epoch; nil if it is not remembered.
func (r *recall) find(call actor.CallID, epoch actor.Epoch) *actor.Reply {
	if r.next == r.first {
		return nil
	}
	for place := *r.slot(call); place >= r.first; place = r.at(place).below {
		if e := r.at(place); e.reply.Call == call && e.epoch == epoch {
			return &e.reply
		}
	}
	return nil
}

func (r *recall) at(place uint64) *recalled { return &r.ring[place&uint64(len(r.ring)-1)] }

func (r *recall) forget() {
	e := r.at(r.first)
	r.bytes -= actor.SizeOf(e.reply.Parts)
	*e = recalled{}
	r.first++
}

// grow doubles the ring, and makes the chains anew.
func (r *recall) grow() {
	old := *r
	size := max(2*len(old.ring), recallFirst)
	*r = recall{ring: make([]recalled, size), heads: make([]uint64, size), first: max(old.first, 1), next: max(old.first, 1), bytes: old.bytes}
	for place := old.first; place < old.next; place++ {
		e := *old.at(place)
		head := r.slot(e.reply.Call)
		e.below = *head
		*head, *r.at(r.next) = r.next, e
		r.next++
	}
}
