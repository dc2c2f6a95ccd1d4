// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync/atomic"
	"time"

	"github.com/troupe-run/troupe/actor"
)

const (
	backlogMax = 1 << 16 // entries that wait for the disk: with more, no new work is taken
	// diskLagMax is how far the disk may be behind before no new work is taken: what
	// was taken in then would wait as long, however few entries that are.
	diskLagMax = 2 * time.Second
	// admissionInterval is how often the log is asked whether it can take new work: that
	// asks the operating system, which costs as much as a call.
	admissionInterval = 20 * time.Millisecond
)

// admission says whether the log can take new work, as it was a moment ago.
type admission struct {
	checkedAt  atomic.Int64
	refusal    atomic.Pointer[actor.Refusal]
	probeStart atomic.Int64 // since when a commit of nothing waits for all before it; 0: none does
}

func (r *admission) check(now actor.Time, log Log) *actor.Refusal {
	if last := r.checkedAt.Load(); now-actor.Time(last) >= actor.Time(admissionInterval) && r.checkedAt.CompareAndSwap(last, int64(now)) {
		r.refusal.Store(r.evaluate(now, log))
	}
	return r.refusal.Load()
}

func (r *admission) evaluate(now actor.Time, log Log) *actor.Refusal {
	if err := log.Full(); err != nil {
		return &actor.Refusal{Reason: actor.Unavailable, RetryAfter: 10 * time.Second, Detail: err.Error()}
	}
	if log.Backlog() > backlogMax {
		return actor.RefuseBusy(actor.ScopeNode, time.Second, "%d entries wait for the disk", backlogMax)
	}
	if since := r.probeStart.Load(); since != 0 && now.Sub(actor.Time(since)) > diskLagMax {
		return actor.RefuseBusy(actor.ScopeNode, time.Second, "the disk is more than %v behind", diskLagMax)
	}
	if r.probeStart.CompareAndSwap(0, int64(now)) {
		log.Commit(nil, func() { r.probeStart.Store(0) })
	}
	return nil
}
