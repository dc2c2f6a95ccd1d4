// SPDX-License-Identifier: Apache-2.0

package sim

import "github.com/troupe-run/troupe/actor"

// eventQueue holds what will happen, by the world's time; of two things at one
// instant the one that was put in first is first.
type eventQueue struct {
	heap    []queuedEvent
	lastSeq uint64
	stream  StreamID // that counts now, and will when what is put in happens
}

// queuedEvent is something that happens, or if it is a process that has it done
// does so only if this is still there, and no sooner than it stands still no more.
type queuedEvent struct {
	at      actor.Time
	seq     uint64
	fn      func()
	node    *node // nil: nobody's
	process uint64
	stream  StreamID
}

func (h *queuedEvent) before(o *queuedEvent) bool {
	return h.at < o.at || h.at == o.at && h.seq < o.seq
}

func (q *eventQueue) schedule(at actor.Time, do func()) { q.push(queuedEvent{at: at, fn: do}) }

func (q *eventQueue) push(h queuedEvent) {
	q.lastSeq++
	h.seq, h.stream = q.lastSeq, q.stream
	q.heap = append(q.heap, h)
	i := len(q.heap) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !h.before(&q.heap[up]) {
			break
		}
		q.heap[i] = q.heap[up]
		i = up
	}
	q.heap[i] = h
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
