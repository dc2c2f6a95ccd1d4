// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/troupe-run/troupe/actor"
)

const (
	backlogMax = 1 << 16 // maximum number of entries waiting to be written; beyond it new work is refused
	// diskLagMax is the default for Config.DiskLagMax. Beyond it new work is
	// refused even if the backlog is short, because the answers to it would be
	// delayed as long as the sync.
	diskLagMax = 2 * time.Second
	// admissionInterval is the interval between two checks of the log. A check
	// makes a system call, which takes about as long as serving a client's call.
	admissionInterval = 20 * time.Millisecond
)

// admission caches whether the log accepts new work.
type admission struct {
	lagMax     time.Duration
	checkedAt  atomic.Int64
	refusal    atomic.Pointer[actor.Refusal]
	exhausted  atomic.Pointer[actor.Refusal] // of deletions
	probeStart atomic.Int64                  // start of the empty commit that measures the disk's delay; 0 means no such commit is pending
}

// check returns the refusal of new work, or nil.
func (a *admission) check(now actor.Time, log Log) *actor.Refusal {
	a.update(now, log)
	return a.refusal.Load()
}

// checkDeletion returns the refusal of work that frees space, or nil.
func (a *admission) checkDeletion(now actor.Time, log Log) *actor.Refusal {
	a.update(now, log)
	return a.exhausted.Load()
}

func (a *admission) update(now actor.Time, log Log) {
	if last := a.checkedAt.Load(); now-actor.Time(last) >= actor.Time(admissionInterval) && a.checkedAt.CompareAndSwap(last, int64(now)) {
		a.exhausted.Store(storageFull(log.Exhausted()))
		a.refusal.Store(a.evaluate(now, log))
	}
}

// storeAway is the time after which a client may ask again whether the store is back.
const storeAway = 2 * time.Second

// storageFull returns the refusal because of an error of Full or Exhausted: the storage is full or away. It returns nil for nil.
func storageFull(err error) *actor.Refusal {
	if err == nil {
		return nil
	}
	r := &actor.Refusal{Reason: actor.Unavailable, RetryAfter: storeAway, Detail: err.Error()}
	if errors.Is(err, syscall.ENOSPC) { // otherwise the database is away, which passes by itself
		r.Field, r.RetryAfter = actor.StorageField, 10*time.Second
	}
	return r
}

func (a *admission) evaluate(now actor.Time, log Log) *actor.Refusal {
	if full := storageFull(log.Full()); full != nil {
		return full
	}
	lag := actor.Duration(0) // age of the oldest entry that waits, if it is known
	if start := a.probeStart.Load(); start != 0 {
		lag = now.Sub(actor.Time(start))
	}
	if log.Backlog() > backlogMax {
		return actor.RefuseBusy(actor.ScopeNode, lagDelay(lag), "more than %d log entries wait for the disk", backlogMax)
	}
	if lag > a.lagMax {
		return actor.RefuseBusy(actor.ScopeNode, lagDelay(lag), "the disk lags more than %v behind", a.lagMax)
	}
	if a.probeStart.CompareAndSwap(0, int64(now)) {
		log.Commit(nil, func() { a.probeStart.Store(0) })
	}
	return nil
}

// lagDelay returns the retry delay while the log lags: as long again.
func lagDelay(lag actor.Duration) actor.Duration {
	return actor.Jitter(min(max(lag, actor.RetryAfterMin), actor.RetryAfterMax), rand.Uint64())
}

// turnover is an actor.Turnover for any number of goroutines.
type turnover struct {
	done     atomic.Uint64 // completions
	mu       sync.Mutex
	estimate actor.Turnover
}

// retryAfter returns the retry delay of a request that is refused now.
func (t *turnover) retryAfter(now actor.Time) actor.Duration {
	return t.retryAfterOf(now, t.done.Load())
}

// retryAfterOf is retryAfter with completions that are counted elsewhere.
func (t *turnover) retryAfterOf(now actor.Time, done uint64) actor.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.estimate.RetryAfter(now, done, rand.Uint64())
}
