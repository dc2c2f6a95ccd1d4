// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"errors"
	"maps"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/store"
)

// A session is deleted by the cell that owns its shard:
//
//	Forget ─▶ its actors leave memory ─▶ MayForget, once durable ─▶ ForgetChecked
//	       ─▶ entry Forgotten ─▶ Forgot, once durable
//
// The session is closed until ForgetChecked, so no entry follows those that the store has
// checked. Later its actors cannot be loaded: the store answers that the session is gone.

// Session identifies a session.
type Session struct{ Tenant, Name string }

// closing is the session that a cell is about to delete; at most one at a time.
type closing struct {
	session Session
	epoch   actor.Epoch  // of the shard; 0 if no session is closed
	due     []actor.ID   // actors with open work, to be loaded if the session is kept
	pending []activation // actors that left memory with detached calls
}

// isClosed reports whether an actor belongs to the session that is about to be deleted.
func (c *Cell) isClosed(id actor.ID) bool {
	if c.closing.epoch == 0 || id.Key != c.closing.session.Name || id.Tenant != c.closing.session.Tenant {
		return false
	}
	_, ok := id.Session()
	return ok
}

// forget closes a session, and requests the check of the store.
func (c *Cell) forget(in Forget) {
	id := forgottenEntry(in.Session, 0, 0).Actor
	members := c.actors.session(in.Session)
	refuse := func(r *actor.Refusal) { c.addEffect(Effect{Op: Forgot{in.Session, r}}) }
	switch {
	case in.Session.Name == actor.DefaultKey:
		refuse(actor.Refuse(actor.Rejected, "%s is the name of no session", actor.DefaultKey))
		return
	case !c.ownsActor(id):
		refuse(actor.RefuseUnavailable(c.limits.ResendAfter, "session %s moves to another cell", in.Session.Name))
		return
	case c.closing.epoch != 0:
		refuse(actor.RefuseBusy(actor.ScopeNode, c.limits.ResendAfter, "session %s is being deleted", c.closing.session.Name))
		return
	}
	for _, act := range members {
		switch {
		case len(act.journal.Runs) > 0:
			refuse(hasOpenRuns(act.id))
			return
		case !act.loaded || len(act.outcomeWaiters) > 0:
			refuse(actor.RefuseUnavailable(c.limits.ResendAfter, "%s is being read", act.id))
			return
		}
	}
	next := closing{session: in.Session, epoch: c.owner(dispatcher.ShardOf(id)).Epoch}
	for _, act := range members {
		if len(act.journal.Mail.Rows) > 0 {
			rest := *act // deactivate clears the state of the actor
			rest.gone = true
			next.due, next.pending = append(next.due, act.id), append(next.pending, rest)
		}
		act.deactivate(c, "forgotten")
	}
	c.closing = next
	c.addEffect(Effect{Gated: true, Op: MayForget{in.Session, c.closing.epoch}})
}

func hasOpenRuns(id actor.ID) *actor.Refusal {
	return &actor.Refusal{Reason: actor.Rejected, Field: actor.BusyField, Detail: id.String() + " has open runs: wait for their end, or cancel them"}
}

// forgetChecked opens the session again. If the store permits it, the cell first appends
// the entry that deletes the session.
func (c *Cell) forgetChecked(in ForgetChecked) {
	if c.closing.session != in.Session || c.closing.epoch != in.Epoch {
		return // the shard moved
	}
	due, pending := c.closing.due, c.closing.pending
	c.closing = closing{}
	if in.Refusal != nil {
		c.recoverActors(due)
	} else {
		for i := range pending { // nothing of the session was written since
			mail{c, &pending[i]}.discard()
		}
		e := forgottenEntry(in.Session, in.Epoch, c.now)
		e.First = len(c.ready.Entries) == 0
		c.ready.Entries = append(c.ready.Entries, e)
	}
	c.addEffect(Effect{Gated: true, Op: Forgot{in.Session, in.Refusal}})
}

// reopen ends the deletion of a session whose shard moved.
func (c *Cell) reopen() {
	if c.closing.epoch == 0 {
		return
	}
	id := forgottenEntry(c.closing.session, 0, 0).Actor
	if o, ok := c.ownerOf(id); ok && c.owns(o) && o.Epoch == c.closing.epoch {
		return
	}
	c.addEffect(Effect{Op: Forgot{c.closing.session, actor.RefuseUnavailable(c.limits.ResendAfter, "session %s moves to another cell", c.closing.session.Name)}})
	c.closing = closing{}
}

func forgottenEntry(s Session, epoch actor.Epoch, at actor.Time) store.Entry {
	e := store.ForgottenEntry(s.Tenant, s.Name, 0, epoch, at)
	e.Shard = dispatcher.ShardOf(e.Actor)
	return e
}

// refuseClosed handles a call to a session that is about to be deleted. A retry is dropped,
// not refused: the log may hold its run.
func (c *Cell) refuseClosed(call *actor.Call) {
	if call.Attempt > 1 {
		c.emit(history.Event{Kind: history.Drop, Actor: call.To, Call: call.ID, What: "request", Why: "closed"})
		c.waiters.retryLater(c, call.ID)
		return
	}
	c.refuse(call, actor.RefuseUnavailable(c.limits.ResendAfter, "session %s is being deleted", call.To.Key))
}

// sessionGone refuses the new calls that wait for an actor of a deleted session. A waiting
// retry is dropped: the log held its run, so a refusal could be a second outcome.
func (act *activation) sessionGone(c *Cell) {
	deferred := act.deferred
	act.deactivate(c, "forgotten")
	for i := range deferred {
		env := &deferred[i]
		if r, ok := env.Body.(actor.Request); ok && r.Call.Attempt == 1 {
			c.refuse(&r.Call, sessionDeleted(act.id.Key))
		} else {
			c.drop(env, "forgotten")
		}
	}
}

func sessionDeleted(name string) *actor.Refusal {
	return actor.RefuseNotFound(actor.WhatDeleted, "session %s was deleted: choose another name; this one can be used again once the log was cut, as a server with --keep does", name)
}

// session returns the actors of a session, sorted by id.
func (t *actorTable) session(s Session) (members []*activation) {
	for _, g := range slices.SortedFunc(maps.Values(t.groups), (*agentGroup).compare) {
		if act := g.byKey[s.Name]; act != nil && g.tenant == s.Tenant {
			if _, ok := act.id.Session(); ok {
				members = append(members, act)
			}
		}
	}
	return members
}

// Check performs a MayForget on the store. It returns the input for the cell, and an error
// if the store cannot be read.
func (op MayForget) Check(log interface {
	MayForget(tenant, session string) error
}) (Input, error) {
	var open store.OpenRuns
	var gone store.Gone
	in := ForgetChecked{Session: op.Session, Epoch: op.Epoch}
	switch err := log.MayForget(op.Session.Tenant, op.Session.Name); {
	case err == nil:
	case errors.As(err, &open):
		in.Refusal = hasOpenRuns(open.Actor)
	case errors.As(err, &gone):
		in.Refusal = actor.RefuseNotFound(actor.WhatSession, "session %s was deleted", gone.Session)
	case errors.As(err, new(store.SeveralLogs)):
		in.Refusal = actor.Refuse(actor.Rejected, "%v", err)
	default:
		in.Refusal = actor.Refuse(actor.Unavailable, "session %s cannot be read: %v", op.Session.Name, err)
		return in, err
	}
	return in, nil
}

// checkOpen panics if an actor of a closed session is activated.
func (c *Cell) checkOpen(id actor.ID) {
	invariant.Check(!c.isClosed(id), "%s is activated while its session is deleted", id)
}
