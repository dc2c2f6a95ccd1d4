// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"context"
	"slices"
	"sync"

	"github.com/troupe-run/troupe/actor"
)

// queueFactor is the number of exchanges that may wait for an upstream, as a multiple of those that
// it may have open. userQueueFactor bounds those of one user, so that none can fill the queue.
const (
	queueFactor     = 4
	userQueueFactor = 3
)

// queue bounds the open exchanges with one upstream. Further ones wait. Users take turns: each
// place that becomes free goes to the next user with a waiting exchange, and to the oldest of that
// user. The zero queue is ready to use.
type queue struct {
	mu      sync.Mutex
	open    int
	waiting int
	users   map[string]*userQueue // those with waiting exchanges
	turns   []*userQueue          // likewise, in the order of their turns
}

// userQueue are the waiting exchanges of a user, the oldest first. Each is closed when it is
// admitted.
type userQueue struct {
	user    string
	waiting []chan struct{}
}

// full reports that the queue took no further exchange, and the owner of the limit: actor.ScopeCaller
// or actor.ScopeCallee.
type full struct{ scope actor.Scope }

func (full) Error() string { return "the queue is full" }

// acquire admits an exchange of a user once fewer than limit are open. It returns full at once if
// too many wait already, or the error of ctx if that ends first. An admitted exchange MUST be
// released.
func (q *queue) acquire(ctx context.Context, user string, limit int) error {
	q.mu.Lock()
	own := q.users[user]
	switch {
	case q.open < limit && q.waiting == 0:
		q.open++
		q.mu.Unlock()
		return nil
	case q.waiting >= queueFactor*limit:
		q.mu.Unlock()
		return full{actor.ScopeCallee}
	case own != nil && len(own.waiting) >= userQueueFactor*limit:
		q.mu.Unlock()
		return full{actor.ScopeCaller}
	case own == nil:
		if own = (&userQueue{user: user}); q.users == nil {
			q.users = map[string]*userQueue{}
		}
		q.users[user] = own
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
		q.releaseLocked()
	} else if q.removeLocked(own, i); len(own.waiting) == 0 {
		at := slices.Index(q.turns, own)
		q.turns = slices.Delete(q.turns, at, at+1)
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
	if q.waiting == 0 {
		q.open--
		return
	}
	next := q.turns[0]
	q.turns = slices.Delete(q.turns, 0, 1)
	close(next.waiting[0])
	if q.removeLocked(next, 0); len(next.waiting) > 0 {
		q.turns = append(q.turns, next)
	}
}

// removeLocked removes a waiting exchange. It leaves the turns as they are.
func (q *queue) removeLocked(of *userQueue, i int) {
	q.waiting--
	if of.waiting = slices.Delete(of.waiting, i, i+1); len(of.waiting) == 0 {
		delete(q.users, of.user)
	}
}
