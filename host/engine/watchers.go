// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync"
	"sync/atomic"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
)

// watchers holds the subscriptions to new events of runs and of sessions.
type watchers struct {
	turnover turnover
	count    atomic.Int32
	mu       sync.Mutex
	byRun    watchedBy[actor.CallID]
	sessions watchedBy[session]
}

// session is a session of a tenant.
type session struct{ tenant, name string }

type watcher struct{ updates chan struct{} }

// watchedBy holds subscriptions by the key of their subject.
type watchedBy[K comparable] map[K]map[*watcher]struct{}

func (w watchedBy[K]) notify(key K) {
	for sub := range w[key] {
		select {
		case sub.updates <- struct{}{}:
		default: // an unread update is pending
		}
	}
}

// notify notifies the subscribers of runs whose new events can be read. It MUST run after
// their sync: a client that subscribes between step and sync reads none of them at first.
func (w *watchers) notify(runs ...actor.CallID) {
	if w.count.Load() == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, run := range runs {
		w.byRun.notify(run)
	}
}

// changedSessions are the sessions in which a step has written events, or that it has deleted.
// Most steps write in one, which needs no memory of its own.
type changedSessions struct {
	first session
	rest  []session
}

func changedSessionsOf(entries []store.Entry) (all changedSessions) {
	for i := range entries {
		e := &entries[i]
		if e.EventCount() == 0 && !deletesSession(e) {
			continue
		}
		name, ok := e.Actor.Session()
		next := session{e.Actor.Tenant, name}
		switch {
		case !ok || next == all.first || len(all.rest) > 0 && next == all.rest[len(all.rest)-1]:
		case all.first == session{}:
			all.first = next
		default:
			all.rest = append(all.rest, next)
		}
	}
	return all
}

func deletesSession(e *store.Entry) bool {
	_, ok := e.Record.(store.Forgotten)
	return ok
}

// notifySessions is notify for sessions.
func (w *watchers) notifySessions(changed *changedSessions) {
	if w.count.Load() == 0 || changed.first == (session{}) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sessions.notify(changed.first)
	for _, s := range changed.rest {
		w.sessions.notify(s)
	}
}

// add returns a new subscription, or nil if there are limit already.
func (w *watchers) add(run actor.CallID, limit int) *watcher {
	return addWatcher(w, &w.byRun, run, limit)
}

func (w *watchers) remove(run actor.CallID, sub *watcher) { removeWatcher(w, w.byRun, run, sub) }

// addWatcher adds a subscription to those in a map of w. It returns nil if there are limit already.
func addWatcher[K comparable](w *watchers, in *watchedBy[K], key K, limit int) *watcher {
	w.mu.Lock()
	defer w.mu.Unlock()
	if int(w.count.Load()) >= limit {
		return nil
	}
	sub := &watcher{make(chan struct{}, 1)}
	if *in == nil {
		*in = watchedBy[K]{}
	}
	if (*in)[key] == nil {
		(*in)[key] = map[*watcher]struct{}{}
	}
	(*in)[key][sub] = struct{}{}
	w.count.Add(1)
	return sub
}

func removeWatcher[K comparable](w *watchers, in watchedBy[K], key K, sub *watcher) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := in[key][sub]; !ok {
		return
	}
	delete(in[key], sub)
	if len(in[key]) == 0 {
		delete(in, key)
	}
	w.count.Add(-1)
	w.turnover.done.Add(1)
}
