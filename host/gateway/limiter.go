// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"math/rand/v2"
	"sync"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/shares"
)

// limiter divides places for requests that last among principals. The places are streams, or
// requests that read lists.
type limiter struct {
	*shares.Shares[string]
	what, remedy string // of the sentence of a refusal: "64 WHAT, which is the limit: REMEDY"

	mu       sync.Mutex
	idle     chan struct{} // non-nil while waitIdle waits; closed when no place is taken
	done     uint64        // those that have ended
	turnover actor.Turnover
}

func newLimiter(b shares.Bounds, what, remedy string) *limiter {
	return &limiter{Shares: shares.New[string](b), what: what, remedy: remedy}
}

// acquire takes a place for a caller until release, which may be called again without effect.
func (l *limiter) acquire(by *caller) (release func(), r *actor.Refusal) {
	return l.acquireFor(by.shareKey(), by.isAdmin())
}

func (l *limiter) acquireFor(key string, privileged bool) (release func(), r *actor.Refusal) {
	switch scope := l.Take(key, 1, privileged); scope {
	case actor.NoScope:
		return sync.OnceFunc(func() { l.release(key) }), nil
	case actor.ScopeCaller:
		return nil, actor.RefuseBusy(scope, l.retryAfter(), "%d %s of yours are open, which is the limit: %s", l.Bounds().Each, l.what, l.remedy)
	default:
		return nil, actor.RefuseBusy(scope, l.retryAfter(), "%d %s are open, which is the limit: %s", l.Taken(), l.what, l.remedy)
	}
}

func (l *limiter) retryAfter() actor.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.turnover.RetryAfter(wallTime(), l.done, rand.Uint64())
}

func (l *limiter) release(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done++
	if l.Give(key, 1); l.idle != nil && l.Taken() == 0 {
		close(l.idle)
		l.idle = nil
	}
}

// waitIdle waits until no place is taken, or until ctx is done.
func (l *limiter) waitIdle(ctx context.Context) error {
	l.mu.Lock()
	if l.Taken() == 0 {
		l.mu.Unlock()
		return nil
	}
	if l.idle == nil {
		l.idle = make(chan struct{})
	}
	none := l.idle
	l.mu.Unlock()
	select {
	case <-none:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// place is a place that is passed on from one key to another: a socket has one for its address
// before it is known whose it is.
type place struct {
	key string // of the principal that has taken it; "" before it is known

	mu      sync.Mutex
	release func() // nil once the place was freed
}

// move replaces the place, and frees the former one.
func (p *place) move(release func()) {
	p.mu.Lock()
	former := p.release
	if former != nil {
		p.release = release
	}
	p.mu.Unlock()
	if former == nil { // the connection has ended
		former = release
	}
	former()
}

// free frees the place.
func (p *place) free() {
	p.mu.Lock()
	former := p.release
	p.release = nil
	p.mu.Unlock()
	if former != nil {
		former()
	}
}
