// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"encoding/binary"

	"github.com/troupe-run/troupe/actor"
)

const (
	// replyCacheMax and recallBytesMax bound the outcomes that a cell remembers of
	// actors that write nothing down. With more the oldest are forgotten first.
	replyCacheMax      = 1 << 16
	replyCacheBytesMax = 64 << 20
	replyCacheInitial  = 64
)

// replyCache is the outcomes of calls that actors without a journal have ended, for
// as long as a repeat may come: a ring, and chains through it by call. What a
// chain says of places that the ring has left is not followed, so nothing has to
// be taken out.
type replyCache struct {
	entries []cachedReply
	buckets []uint64 // by the low bits of a call's id: the newest of the chain
	first   uint64   // the oldest that is in the ring; places count from 1
	next    uint64
	bytes   int
}

type cachedReply struct {
	reply actor.Reply
	epoch actor.Epoch
	until actor.Time
	prev  uint64 // the one before it in its chain
}

func (r *replyCache) bucket(call actor.CallID) *uint64 {
	return &r.buckets[binary.BigEndian.Uint64(call[8:])&uint64(len(r.buckets)-1)]
}

// add remembers the outcome of a call until an instant, unless too many follow it.
func (r *replyCache) add(now actor.Time, reply *actor.Reply, epoch actor.Epoch, until actor.Time) {
	weight := actor.SizeOf(reply.Parts)
	for r.next > r.first && (r.at(r.first).until < now || r.next-r.first == replyCacheMax || r.bytes+weight > replyCacheBytesMax) {
		r.evictOldest()
	}
	if int(r.next-r.first) == len(r.entries) {
		r.grow()
	}
	head := r.bucket(reply.Call)
	*r.at(r.next) = cachedReply{*reply, epoch, until, *head}
	*head = r.next
	r.next++
	r.bytes += weight
}

// find is the outcome of a call under an epoch; nil if it is not remembered.
func (r *replyCache) find(call actor.CallID, epoch actor.Epoch) *actor.Reply {
	if r.next == r.first {
		return nil
	}
	for place := *r.bucket(call); place >= r.first; place = r.at(place).prev {
		if e := r.at(place); e.reply.Call == call && e.epoch == epoch {
			return &e.reply
		}
	}
	return nil
}

func (r *replyCache) at(place uint64) *cachedReply { return &r.entries[place&uint64(len(r.entries)-1)] }

func (r *replyCache) evictOldest() {
	e := r.at(r.first)
	r.bytes -= actor.SizeOf(e.reply.Parts)
	*e = cachedReply{}
	r.first++
}

// grow doubles the ring, and makes the chains anew.
func (r *replyCache) grow() {
	old := *r
	size := max(2*len(old.entries), replyCacheInitial)
	*r = replyCache{entries: make([]cachedReply, size), buckets: make([]uint64, size), first: max(old.first, 1), next: max(old.first, 1), bytes: old.bytes}
	for place := old.first; place < old.next; place++ {
		e := *old.at(place)
		head := r.bucket(e.reply.Call)
		e.prev = *head
		*head, *r.at(r.next) = r.next, e
		r.next++
	}
}
