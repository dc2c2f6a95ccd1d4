// SPDX-License-Identifier: Apache-2.0

package shares

import (
	"context"
	"math"
	"slices"
	"sync"

	"github.com/troupe-run/troupe/actor"
)

// Queue admits a bounded number of requests at a time. Further ones wait, and keys such as users take
// turns: each place that becomes free goes to the next key with a waiting request that may have it, and
// to the oldest of that key. The zero Queue is ready to use. It is safe for concurrent use.
type Queue struct {
	mu      sync.Mutex
	bounds  QueueBounds // of the last request
	open    int
	waiting int
	keys    map[string]*keyQueue // those with requests
	turns   []*keyQueue          // those with waiting requests, in the order of their turns
}

// QueueBounds are the numbers of a Queue.
type QueueBounds struct {
	Open    int // requests that are admitted at the same time
	Held    int // likewise, of one key; 0: as many
	Waiting int // bound of those that wait
	Each    int // likewise, of one key
}

// PlacesOf returns the bounds of a resource with some places. One key holds at most three quarters of
// them, so its slow requests leave places for others. Any number of requests may wait.
func PlacesOf(places int) QueueBounds {
	return QueueBounds{Open: places, Held: max(1, places*3/4), Waiting: math.MaxInt, Each: math.MaxInt}
}

// keyQueue are the requests of a key.
type keyQueue struct {
	key     string
	open    int
	waiting []chan struct{} // the oldest first; each is closed when it is admitted
}

// Full is the error of a request for which a queue has no place. Scope is the owner of the limit:
// actor.ScopeCaller or actor.ScopeCallee.
type Full struct{ Scope actor.Scope }

// Error implements error.
func (Full) Error() string { return "the queue is full" }

// Acquire admits a request of a key once fewer than b.Open, and fewer than b.Held of the key, are
// admitted. It returns Full at once if too many wait already, or the error of ctx if that ends first.
// An admitted request MUST be released.
func (q *Queue) Acquire(ctx context.Context, key string, b QueueBounds) error {
	q.mu.Lock()
	q.bounds = b
	q.admit() // those that wait, if the bounds were lower
	own := q.keys[key]
	if own == nil {
		own = &keyQueue{key: key}
	}
	switch {
	case q.mayAdmit(own):
		own.open++
		q.open++
		q.keep(own)
		q.mu.Unlock()
		return nil
	case q.waiting >= b.Waiting:
		q.mu.Unlock()
		return Full{actor.ScopeCallee}
	case len(own.waiting) >= b.Each:
		q.mu.Unlock()
		return Full{actor.ScopeCaller}
	}
	if len(own.waiting) == 0 {
		q.turns = append(q.turns, own)
	}
	admitted := make(chan struct{})
	own.waiting = append(own.waiting, admitted)
	q.keep(own)
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
		q.release(own)
	} else if q.remove(own, i); len(own.waiting) == 0 {
		at := slices.Index(q.turns, own)
		q.turns = slices.Delete(q.turns, at, at+1)
	}
	return ctx.Err()
}

// Release ends a request of a key and admits the next one.
func (q *Queue) Release(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.release(q.keys[key])
}

// Waiting returns the number of requests that wait.
func (q *Queue) Waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting
}

// The lock is held during the following methods.

// release is Release.
func (q *Queue) release(own *keyQueue) {
	q.open--
	own.open--
	q.keep(own)
	q.admit()
}

// mayAdmit reports whether the bounds leave a place for a request of a key.
func (q *Queue) mayAdmit(own *keyQueue) bool {
	return q.open < q.bounds.Open && (q.bounds.Held == 0 || own.open < q.bounds.Held)
}

// admit gives free places to those whose turn it is.
func (q *Queue) admit() {
	for q.waiting > 0 {
		i := slices.IndexFunc(q.turns, q.mayAdmit)
		if i < 0 {
			return
		}
		next := q.turns[i]
		q.turns = slices.Delete(q.turns, i, i+1)
		q.open++
		next.open++
		close(next.waiting[0])
		if q.remove(next, 0); len(next.waiting) > 0 {
			q.turns = append(q.turns, next)
		}
	}
}

// remove removes a waiting request. It leaves the turns as they are.
func (q *Queue) remove(of *keyQueue, i int) {
	q.waiting--
	of.waiting = slices.Delete(of.waiting, i, i+1)
	q.keep(of)
}

// keep keeps a key while it has requests.
func (q *Queue) keep(own *keyQueue) {
	switch {
	case own.open == 0 && len(own.waiting) == 0:
		delete(q.keys, own.key)
	case q.keys == nil:
		q.keys = map[string]*keyQueue{own.key: own}
	default:
		q.keys[own.key] = own
	}
}
