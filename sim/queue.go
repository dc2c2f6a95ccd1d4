// SPDX-License-Identifier: Apache-2.0

package sim

import "github.com/troupe-run/troupe/actor"

// queue holds what will happen, by the world's time; of two things at one
// instant the one that was put in first is first.
type queue struct {
	heap   []happening
	order  uint64
	stream StreamID // that counts now, and will when what is put in happens
}

// happening is something that happens, or if it is a process that has it done
// does so only if this is still there, and no sooner than it stands still no more.
type happening struct {
	at      actor.Time
	order   uint64
	do      func()
	node    *node // nil: nobody's
	process uint64
	stream  StreamID
}

func (h *happening) before(o *happening) bool {
	return h.at < o.at || h.at == o.at && h.order < o.order
}

func (q *queue) put(at actor.Time, do func()) { q.add(happening{at: at, do: do}) }

func (q *queue) add(h happening) {
	q.order++
	h.order, h.stream = q.order, q.stream
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

func (q *queue) take() (happening, bool) {
	if len(q.heap) == 0 {
		return happening{}, false
	}
	first, end := q.heap[0], len(q.heap)-1
	last := q.heap[end]
	q.heap[end] = happening{}
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
