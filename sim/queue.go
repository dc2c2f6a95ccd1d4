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
	for i := len(q.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if !q.heap[i].before(&q.heap[up]) {
			return
		}
		q.heap[i], q.heap[up] = q.heap[up], q.heap[i]
		i = up
	}
}

func (q *queue) take() (happening, bool) {
	if len(q.heap) == 0 {
		return happening{}, false
	}
	first := q.heap[0]
	last := len(q.heap) - 1
	q.heap[0] = q.heap[last]
	q.heap[last] = happening{}
	q.heap = q.heap[:last]
	for i := 0; ; {
		least := i
		for _, down := range [...]int{2*i + 1, 2*i + 2} {
			if down < last && q.heap[down].before(&q.heap[least]) {
				least = down
			}
		}
		if least == i {
			return first, true
		}
		q.heap[i], q.heap[least] = q.heap[least], q.heap[i]
		i = least
	}
}
