// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/store"
)

// Sessions deletes the sessions of a store.
type Sessions interface {
	// MayForget returns an error if a session cannot be deleted now: see store.Forgetter.
	MayForget(tenant, session string) error
	// Erase completes the deletion of all sessions whose entry Forgotten is durable.
	Erase() error
}

// forgetting is the deletion of a session; one at a time.
type forgetting struct {
	mu     sync.Mutex
	waiter atomic.Pointer[forgetWaiter]
}

type forgetWaiter struct {
	session runtime.Session
	answer  chan runtime.Forgot
	may     func() error // see ForgetIf; may be nil
}

// check adds the condition of a ForgetIf to the answer of the store.
func (f *forgetting) check(op runtime.MayForget, in runtime.Input) runtime.Input {
	w := f.waiter.Load()
	checked, ok := in.(runtime.ForgetChecked)
	if !ok || checked.Refusal != nil || w == nil || w.session != op.Session || w.may == nil {
		return in
	}
	if err := w.may(); err != nil && !errors.As(err, &checked.Refusal) {
		checked.Refusal = actor.Refuse(actor.Unavailable, "session %s: %v", op.Session.Name, err)
	}
	return checked
}

// end passes the answer of a cell to the caller that waits for it.
func (f *forgetting) end(op runtime.Forgot) {
	if w := f.waiter.Load(); w != nil && w.session == op.Session {
		select {
		case w.answer <- op:
		default: // a second answer, to a Forget whose caller no longer waits
		}
	}
}

// Forget deletes a session that has no open run. Once it returns nil, no row of the session
// is left, and its content in the log is blanked. A refusal is an *actor.Refusal. If ctx
// ends first, the deletion may still take effect; the next start completes it.
func (e *Engine) Forget(ctx context.Context, tenant, session string) error {
	return e.ForgetIf(ctx, tenant, session, nil)
}

// ForgetIf is like Forget, but deletes the session only if the function may returns nil. No
// entry of the session is appended between its call and the deletion. It must not wait for
// a cell.
func (e *Engine) ForgetIf(ctx context.Context, tenant, session string, may func() error) error {
	if e.config.Sessions == nil {
		return actor.Refuse(actor.Rejected, "the log of this node cannot delete sessions")
	}
	if full := e.admission.checkDeletion(e.clock.now(), e.config.Log); full != nil {
		return full
	}
	e.forgetting.mu.Lock()
	defer e.forgetting.mu.Unlock()
	w := &forgetWaiter{runtime.Session{Tenant: tenant, Name: session}, make(chan runtime.Forgot, 1), may}
	e.forgetting.waiter.Store(w)
	defer e.forgetting.waiter.Store(nil)
	c := e.cellOf(store.ForgottenEntry(tenant, session, 0, 0, 0).Actor)
	c.mailbox.postCompletion(completion{input: runtime.Forget{Session: w.session}})
	select {
	case a := <-w.answer:
		if a.Refusal != nil {
			return a.Refusal
		}
	case <-ctx.Done():
		return ctx.Err()
	case <-e.done:
		return e.err
	}
	err := e.config.Sessions.Erase()
	if full := storageFull(e.config.Log.Exhausted()); err != nil && full != nil {
		return full // what is left is erased with the next deletion
	}
	return err
}

// checkForget returns a function that checks in the store that a session can be deleted.
func (c *cell) checkForget(op runtime.MayForget) func() {
	return c.read(func(deliver func(runtime.Input)) {
		in, err := op.Check(c.engine.config.Sessions)
		if err != nil {
			c.engine.log.Error("cannot check session", "session", op.Session.Name, "error", err.Error())
		}
		in = c.engine.forgetting.check(op, in)
		deliver(in)
	})
}
