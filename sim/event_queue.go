// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"

	"github.com/troupe-run/troupe/actor"
)

// eventQueue is a priority queue of events ordered by simulated time. Events at the
// same time are popped in the order in which they were pushed, and deferred ones before
// them, in their former order: two messages of a connection never change places.
type eventQueue struct {
	heap    []queuedEvent
	lastSeq uint64
	stream  StreamID // current entropy stream; an event inherits it when it is pushed
}

// queuedEvent is a scheduled callback. If it belongs to a process, it is dropped once
// that process has exited, and deferred while the process is paused.
type queuedEvent struct {
	at      actor.Time
	due     actor.Time // the time before the event was deferred
	seq     uint64
	fn      func()
	node    *node // nil: the event belongs to no process
	process uint64
	stream  StreamID
}

func (e *queuedEvent) before(other *queuedEvent) bool {
	return cmp.Or(cmp.Compare(e.at, other.at), cmp.Compare(e.due, other.due), cmp.Compare(e.seq, other.seq)) < 0
}

func (q *eventQueue) schedule(at actor.Time, fn func()) { q.push(queuedEvent{at: at, fn: fn}) }

func (q *eventQueue) push(e queuedEvent) {
	q.lastSeq++
	e.due, e.seq, e.stream = e.at, q.lastSeq, q.stream
	q.insert(e)
}

// postpone returns an event that was popped to the queue, for a later time.
func (q *eventQueue) postpone(e queuedEvent, until actor.Time) {
	e.at = until
	q.insert(e)
}

func (q *eventQueue) insert(e queuedEvent) {
	q.heap = append(q.heap, e)
	i := len(q.heap) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !e.before(&q.heap[up]) {
			break
		}
		q.heap[i] = q.heap[up]
		i = up
	}
	q.heap[i] = e
}

func (q *eventQueue) pop() (queuedEvent, bool) {
	if len(q.heap) == 0 {
		return queuedEvent{}, false
	}
	first, end := q.heap[0], len(q.heap)-1
	last := q.heap[end]
	q.heap[end] = queuedEvent{}
	q.heap = q.heap[:end]
	for i, down := 0, 1; end > 0; i, down = down, 2*down+1 {
		if down+1 < end && q.heap[down+1].before(&q.heap[down]) {
			down++
		}
		if down >= end || last.before(&q.heap[down]) {
			q.heap[i] = last
			break
		}
		q.heap[i] = q.heap[down]
	}
	return first, true
}
