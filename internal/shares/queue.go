// SPDX-License-Identifier: Apache-2.0

package shares

import (
	"context"
	"slices"
	"sync"

	"github.com/troupe-run/troupe/actor"
)

// Queue admits a bounded number of requests at a time. Further ones wait, and keys such as users take
// turns: each place that becomes free goes to the next key with a waiting request, and to the oldest of
// that key. The zero Queue is ready to use. It is safe for concurrent use.
type Queue struct {
	mu      sync.Mutex
	open    int
	waiting int
	keys    map[string]*keyQueue // those with waiting requests
	turns   []*keyQueue          // likewise, in the order of their turns
}

// QueueBounds are the numbers of a Queue.
type QueueBounds struct {
	Open    int // requests that are admitted at the same time
	Waiting int // bound of those that wait
	Each    int // likewise, of one key
}

// keyQueue are the waiting requests of a key, the oldest first. Each is closed when it is admitted.
type keyQueue struct {
	key     string
	waiting []chan struct{}
}

// Full is the error of a request for which a queue has no place. Scope is the owner of the limit:
// actor.ScopeCaller or actor.ScopeCallee.
type Full struct{ Scope actor.Scope }

// Error implements error.
func (Full) Error() string { return "the queue is full" }

// Acquire admits a request of a key once fewer than b.Open are admitted. It returns Full at once if
// too many wait already, or the error of ctx if that ends first. An admitted request MUST be
// released.
func (q *Queue) Acquire(ctx context.Context, key string, b QueueBounds) error {
	q.mu.Lock()
	own := q.keys[key]
	switch {
	case q.open < b.Open && q.waiting == 0:
		q.open++
		q.mu.Unlock()
		return nil
	case q.waiting >= b.Waiting:
		q.mu.Unlock()
		return Full{actor.ScopeCallee}
	case own != nil && len(own.waiting) >= b.Each:
		q.mu.Unlock()
		return Full{actor.ScopeCaller}
	case own == nil:
		if own = (&keyQueue{key: key}); q.keys == nil {
			q.keys = map[string]*keyQueue{}
		}
		q.keys[key] = own
		q.turns = append(q.turns, own)
	}
	admitted := make(chan struct{})
	own.waiting = append(own.waiting, admitted)
	q.waiting++
	q.mu.Unlock()
	select {
	case <-admitted:
		return nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(own.waiting, admitted); i < 0 { // it was admitted in the meantime
		q.release()
	} else if q.remove(own, i); len(own.waiting) == 0 {
		at := slices.Index(q.turns, own)
		q.turns = slices.Delete(q.turns, at, at+1)
	}
	return ctx.Err()
}

// Release ends a request and admits the next one.
func (q *Queue) Release() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.release()
}

// Waiting returns the number of requests that wait.
func (q *Queue) Waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting
}

// release is Release with the lock held.
func (q *Queue) release() {
	if q.waiting == 0 {
		q.open--
		return
	}
	next := q.turns[0]
	q.turns = slices.Delete(q.turns, 0, 1)
	close(next.waiting[0])
	if q.remove(next, 0); len(next.waiting) > 0 {
		q.turns = append(q.turns, next)
	}
}

// remove removes a waiting request with the lock held. It leaves the turns as they are.
func (q *Queue) remove(of *keyQueue, i int) {
	q.waiting--
	if of.waiting = slices.Delete(of.waiting, i, i+1); len(of.waiting) == 0 {
		delete(q.keys, of.key)
	}
}
