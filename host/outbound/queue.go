// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"context"
	"slices"
	"sync"
)

// queueFactor is the number of exchanges that may wait for an upstream, as a multiple of
// those that it may have open.
const queueFactor = 4

// queue bounds the open exchanges with one upstream. Further ones wait in order of arrival.
// The zero queue is ready to use.
type queue struct {
	mu      sync.Mutex
	open    int
	waiting []chan struct{} // each is closed when its exchange is admitted
}

// full reports that the queue took no further exchange.
type full struct{}

func (full) Error() string { return "the queue is full" }

// acquire admits an exchange once fewer than limit are open. It returns full at once if
// queueFactor times as many wait already, or the error of ctx if that ends first. An
// admitted exchange MUST be released.
func (q *queue) acquire(ctx context.Context, limit int) error {
	q.mu.Lock()
	if q.open < limit && len(q.waiting) == 0 {
		q.open++
		q.mu.Unlock()
		return nil
	}
	if len(q.waiting) >= queueFactor*limit {
		q.mu.Unlock()
		return full{}
	}
	admitted := make(chan struct{})
	q.waiting = append(q.waiting, admitted)
	q.mu.Unlock()
	select {
	case <-admitted:
		return nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.waiting, admitted); i >= 0 {
		q.waiting = slices.Delete(q.waiting, i, i+1)
	} else { // it was admitted in the meantime
		q.releaseLocked()
	}
	return ctx.Err()
}

// release ends an exchange and admits the next one.
func (q *queue) release() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.releaseLocked()
}

func (q *queue) releaseLocked() {
	if len(q.waiting) == 0 {
		q.open--
		return
	}
	close(q.waiting[0])
	q.waiting = slices.Delete(q.waiting, 0, 1)
}
