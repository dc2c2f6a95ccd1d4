// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"encoding/binary"
	"math/bits"
	"time"

	"github.com/troupe-run/troupe/actor"
)

const (
	// replyCacheMax and replyCacheBytesMax are the maximum number and size in bytes
	// of the outcomes cached per cell for volatile actors. The oldest outcomes are
	// evicted first.
	replyCacheMax      = 1 << 16
	replyCacheBytesMax = 64 << 20
	replyCacheInitial  = 64
	// replyCacheSweep is the time after which an expired outcome is evicted at the
	// latest, if the cell is idle. Outcomes before it in the ring must have expired.
	replyCacheSweep = 10 * time.Second
)

// replyCache caches outcomes of calls to volatile actors for as long as a duplicate
// may arrive. It is a ring buffer with hash chains by call id. A search of a chain
// stops at positions below the field first, so an eviction need not update the
// chains.
type replyCache struct {
	entries []cachedReply
	buckets []uint64 // by the low bits of a call id: position of the newest outcome of the chain
	first   uint64   // position of the oldest outcome; positions start at 1
	next    uint64
	bytes   int
}

type cachedReply struct {
	reply actor.Reply
	epoch actor.Epoch
	until actor.Time
	prev  uint64 // position of the previous outcome in the chain
}

func (r *replyCache) bucket(call actor.CallID) *uint64 {
	return &r.buckets[binary.BigEndian.Uint64(call[8:])&uint64(len(r.buckets)-1)]
}

// add caches the outcome of a call until the given time. The outcome may be evicted
// earlier if the cache is full.
func (r *replyCache) add(now actor.Time, reply *actor.Reply, epoch actor.Epoch, until actor.Time) {
	size := actor.SizeOf(reply.Parts)
	for r.next > r.first && (r.at(r.first).until < now || r.next-r.first == replyCacheMax || r.bytes+size > replyCacheBytesMax) {
		r.evictOldest()
	}
	if int(r.next-r.first) == len(r.entries) {
		r.resize(max(2*len(r.entries), replyCacheInitial))
	}
	head := r.bucket(reply.Call)
	*r.at(r.next) = cachedReply{*reply, epoch, until, *head}
	*head = r.next
	r.next++
	r.bytes += size
}

// find returns the outcome of a call under an epoch, or nil if it is not cached.
func (r *replyCache) find(call actor.CallID, epoch actor.Epoch) *actor.Reply {
	if r.next == r.first {
		return nil
	}
	for pos := *r.bucket(call); pos >= r.first; pos = r.at(pos).prev {
		if e := r.at(pos); e.reply.Call == call && e.epoch == epoch {
			return &e.reply
		}
	}
	return nil
}

func (r *replyCache) at(pos uint64) *cachedReply { return &r.entries[pos&uint64(len(r.entries)-1)] }

func (r *replyCache) evictOldest() {
	e := r.at(r.first)
	r.bytes -= actor.SizeOf(e.reply.Parts)
	*e = cachedReply{}
	r.first++
}

// due returns the time of the next sweep, or Forever if the cache is empty.
func (r *replyCache) due() actor.Time {
	if r.next == r.first {
		return actor.Forever
	}
	return r.at(r.first).until.Add(replyCacheSweep)
}

// sweep evicts the expired outcomes at the front if that is due, and returns unused
// memory.
func (r *replyCache) sweep(now actor.Time) {
	if now < r.due() {
		return
	}
	for r.next > r.first && r.at(r.first).until < now {
		r.evictOldest()
	}
	switch n := int(r.next - r.first); {
	case n == 0:
		*r = replyCache{first: r.first, next: r.next}
	case n < len(r.entries)/4 && len(r.entries) > replyCacheInitial:
		r.resize(max(1<<bits.Len(uint(2*n)), replyCacheInitial))
	}
}

// resize changes the capacity of the ring buffer to a power of two and rebuilds the
// chains.
func (r *replyCache) resize(size int) {
	full := *r
	*r = replyCache{entries: make([]cachedReply, size), buckets: make([]uint64, size), first: max(full.first, 1), next: max(full.first, 1), bytes: full.bytes}
	for pos := full.first; pos < full.next; pos++ {
		e := *full.at(pos)
		head := r.bucket(e.reply.Call)
		e.prev = *head
		*head, *r.at(r.next) = r.next, e
		r.next++
	}
}
