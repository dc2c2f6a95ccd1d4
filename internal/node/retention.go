// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"github.com/troupe-run/troupe/host/logs"
	"log/slog"
	"time"

	"github.com/troupe-run/troupe/actor"

	"github.com/troupe-run/troupe/host/engine"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// KeepMin is the minimum of Config.Keep.
const KeepMin = time.Minute

// The times between two passes, and between two purges. A purge also waits until it has
// used at most 5 % of the time, because it rewrites tables.
const (
	passEveryMax = time.Hour
	passEveryMin = time.Second
	purgeDelay   = 2 * time.Second // further deletions share the purge
	purgeEvery   = time.Minute
	purgeShare   = 20
)

// retention deletes sessions that were not changed for the time keep, and removes deleted content
// from the files of the store. It works in the background, one step at a time. A step that
// fails or is refused is made up for by a later one.
type retention struct {
	engine *engine.Engine
	store  storage
	log    *logs.Log
	keep   time.Duration // 0: only what clients delete
	clock  *retentionClock
	hooks  *logHooks
	logger *slog.Logger
	forgot func(tenant, session string) // a session was deleted

	forgetting func(tenant, session string) // a session is about to be deleted

	deleted chan struct{} // a client has deleted a session
	cancel  context.CancelFunc
	done    chan struct{}
}

// start starts the background work.
func (r *retention) start() {
	ctx, cancel := context.WithCancel(context.Background())
	r.deleted, r.cancel, r.done = make(chan struct{}, 1), cancel, make(chan struct{})
	go r.run(ctx)
}

// stop ends the background work. The store MUST NOT be closed before.
func (r *retention) stop() {
	if r.cancel != nil {
		r.cancel()
		<-r.done
	}
}

// noteDeletion requests a purge.
func (r *retention) noteDeletion() {
	select {
	case r.deleted <- struct{}{}:
	default:
	}
}

func (r *retention) run(ctx context.Context) {
	defer close(r.done)
	var pass <-chan time.Time
	if r.keep > 0 {
		r.pass(ctx, r.engine.Now())
		ticker := time.NewTicker(max(min(passEveryMax, r.keep/24), passEveryMin))
		defer ticker.Stop()
		pass = ticker.C
	}
	purge := time.NewTimer(0)
	defer purge.Stop()
	if !r.store.PurgeOwed() {
		purge.Stop()
	}
	waiting, next := false, time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-pass:
			r.pass(ctx, r.engine.Now())
		case <-r.deleted:
			if !waiting {
				waiting = true
				purge.Reset(max(purgeDelay, time.Until(next)))
			}
		case <-purge.C:
			began := time.Now()
			r.purge(ctx)
			next = time.Now().Add(max(purgeEvery, purgeShare*time.Since(began)))
			if waiting = r.store.PurgeOwed(); waiting { // it failed, or more was deleted
				purge.Reset(time.Until(next))
			}
		}
	}
}

// pass is Retain, unless the clock is not trusted.
func (r *retention) pass(ctx context.Context, now actor.Time) {
	if r.clock.trusts(now, r.logger) {
		r.Retain(ctx, now)
	}
}

// Retain deletes the sessions without an open run whose last change is older than r.keep, of all
// tenants. It cuts the beginning of each log that is older than that. The files lose both.
func (r *retention) Retain(ctx context.Context, now actor.Time) {
	before := now.Add(-r.keep)
	r.forgetIdle(ctx, before)
	for log := range r.log.Count() {
		if r.log.Owns(log) {
			r.cut(ctx, log, before, now)
		}
	}
	r.purge(ctx)
}

func (r *retention) forgetIdle(ctx context.Context, before actor.Time) {
	tenants, err := r.store.Tenants()
	if err != nil {
		r.report(ctx, "cannot list sessions", err)
		return
	}
	for _, tenant := range tenants {
		for next := ""; ; {
			var names []string
			names, next, err = r.store.Sessions(tenant, next, command.SessionsMax)
			if err != nil {
				r.report(ctx, "cannot list sessions", err)
				break
			}
			for _, name := range names {
				if ctx.Err() != nil {
					return
				}
				if !r.engine.Owns(sessionID(tenant, name)) { // that is for its owner
					continue
				}
				if err := r.forget(ctx, tenant, name, before); err != nil {
					r.report(ctx, "session is kept", err, "tenant", tenant, "session", name)
				}
			}
			if next == "" {
				break
			}
		}
	}
}

// forget deletes a session if it was not changed since a time.
func (r *retention) forget(ctx context.Context, tenant, name string, before actor.Time) error {
	read := func() (command.Session, error) { return View{Log: r.store, Tenant: tenant}.Session(name) }
	s, err := read()
	if err != nil || isUsed(&s, before) {
		return err
	}
	err = r.engine.ForgetIf(ctx, tenant, name, func() error {
		s, err := read()
		if err == nil && isUsed(&s, before) {
			err = actor.Refuse(actor.Rejected, "session %s was used in the meantime", name)
		}
		if err == nil {
			r.forgetting(tenant, name)
		}
		return err
	})
	if err == nil {
		r.forgot(tenant, name)
		r.logger.Info("deleted a session", "tenant", tenant, "session", name, "last_change", runs.FormatTime(s.Updated))
	}
	return err
}

// sessionID returns an actor of the shard of a session.
func sessionID(tenant, session string) actor.ID {
	return store.ForgottenEntry(tenant, session, 0, 0, 0).Actor
}

// isUsed reports whether a session has open runs or was changed since a time. If the time
// of its last change is unknown, it counts as used.
func isUsed(s *command.Session, since actor.Time) bool {
	for i := range s.Agents {
		if len(s.Agents[i].Open) > 0 {
			return true
		}
	}
	return s.Updated == 0 || s.Updated >= since
}

// cut deletes the front of a log whose entries are all older than a time.
func (r *retention) cut(ctx context.Context, log int, before, now actor.Time) {
	for ctx.Err() == nil {
		batch, err := r.store.OldBatches(r.log.Node(log), before)
		if r.hooks.spare(log) < batch { // a webhook has deliveries from the rest
			batch = 0
		}
		if err == nil && batch > 0 {
			err = r.log.Cut(log, batch, now)
		}
		if err != nil {
			r.report(ctx, "the log is not cut", err, "log", log)
		}
		if err != nil || batch == 0 {
			return
		}
		r.logger.Info("cut the log", "log", log, "batch", batch)
	}
}

func (r *retention) purge(ctx context.Context) {
	if err := r.store.Purge(ctx); err != nil {
		r.report(ctx, "deleted content is left in the files", err)
	}
}

// report logs an error. It does not log a refusal, whose reason passes by itself.
func (r *retention) report(ctx context.Context, message string, err error, attrs ...any) {
	level := slog.LevelError
	if ctx.Err() != nil || errors.As(err, new(*actor.Refusal)) || errors.As(err, new(store.CannotCut)) || errors.As(err, new(store.Gone)) ||
		errors.As(err, new(store.OpenRuns)) || errors.As(err, new(store.SeveralLogs)) || errors.Is(err, engine.ErrClosed) {
		level = slog.LevelDebug
	}
	r.logger.Log(ctx, level, message, append(attrs, "error", err.Error())...)
}
