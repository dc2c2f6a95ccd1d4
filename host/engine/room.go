// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync/atomic"
	"time"

	"github.com/troupe-run/troupe/actor"
)

const (
	backlogMax = 1 << 16 // entries that wait for the disk: with more, no new work is taken
	// behindMax is how far the disk may be behind before no new work is taken: what
	// was taken in then would wait as long, however few entries that are.
	behindMax = 2 * time.Second
	// roomLooks is how often the log is asked whether it can take new work: that
	// asks the operating system, which costs as much as a call.
	roomLooks = 20 * time.Millisecond
)

// room says whether the log can take new work, as it was a moment ago.
type room struct {
	looked atomic.Int64
	no     atomic.Pointer[actor.Refusal]
	probe  atomic.Int64 // since when a commit of nothing waits for all before it; 0: none does
}

func (r *room) check(now actor.Time, log Log) *actor.Refusal {
	if last := r.looked.Load(); now-actor.Time(last) >= actor.Time(roomLooks) && r.looked.CompareAndSwap(last, int64(now)) {
		r.no.Store(r.look(now, log))
	}
	return r.no.Load()
}

func (r *room) look(now actor.Time, log Log) *actor.Refusal {
	if err := log.Full(); err != nil {
		return &actor.Refusal{Reason: actor.Unavailable, RetryAfter: 10 * time.Second, Detail: err.Error()}
	}
	if log.Backlog() > backlogMax {
		return actor.RefuseBusy(actor.ScopeNode, time.Second, "%d entries wait for the disk", backlogMax)
	}
	if since := r.probe.Load(); since != 0 && now.Sub(actor.Time(since)) > behindMax {
		return actor.RefuseBusy(actor.ScopeNode, time.Second, "the disk is more than %v behind", behindMax)
	}
	if r.probe.CompareAndSwap(0, int64(now)) {
		log.Commit(nil, func() { r.probe.Store(0) })
	}
	return nil
}
