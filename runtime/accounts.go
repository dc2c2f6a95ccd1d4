// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

// Accounts. With a budget for a user and a day, the root run of a tree draws its purse from the account of its user
// before its turn begins, and returns the rest at its end. The account is the state of a system actor, which may be in
// another cell: see actor.Account. The ID of a draw follows from the ID of its run, so a repeated draw is granted once.
// Within a tree nothing differs.
//
// Four purses stay drawn until the day ends, or for as long as stated: the purse of a tree that waits for a person, until it
// goes on; the parts of turns for detached calls, until these end; the purse of a run that ends during its draw; and a
// return that is sent once and lost.

const (
	// dayPart is the part of the budget of a day that a tree draws if nothing else limits it.
	dayPart = 4
	// returnTime is the time within which a return is repeated, and for which the account remembers it.
	returnTime = time.Hour
)

// accounts draws the purses of the runs of an actor.
type accounts struct {
	cell *Cell
	act  *activation
}

// draw is the draw for the next message in a mailbox, whose turn waits for it. The zero value is none.
type draw struct {
	run     actor.CallID
	attempt uint32
	retryAt actor.Time
	backoff actor.Duration
	refused *actor.Refusal // of the account: the turn ends as soon as it begins
}

// inDay bounds the purse of a tree by the budget of a day.
func (s *Spending) inDay(p *actor.Purse) *actor.Purse {
	if s.Day == nil {
		return p
	}
	if p == nil {
		p = &actor.Purse{Tokens: actor.NoLimit, Micros: actor.NoLimit}
	}
	bound := func(tree, day int64) int64 {
		if day != actor.NoLimit && tree == actor.NoLimit {
			return max(day/dayPart, 1)
		}
		return min(tree, day)
	}
	return &actor.Purse{Tokens: bound(p.Tokens, s.Day.Tokens), Micros: bound(p.Micros, s.Day.Micros)}
}

// accountOf returns the account of the user of a namespace.
func accountOf(tenant string) actor.ID {
	return actor.ID{Tenant: tenant, Agent: actor.AccountAgent, Key: actor.DefaultKey}
}

// drawID returns the ID of the draw of a run.
func drawID(run actor.CallID) actor.CallID {
	id, hash := run, actor.HashOf(append(run[:], actor.OpDraw...))
	copy(id[8:], hash[:8])
	id[8] = id[8]&0x3f | 0x80
	return id
}

// drawn reports whether the next message may begin its turn. If its run has to draw first, it does.
func (s accounts) drawn() bool {
	c, act := s.cell, s.act
	if c.spending.Day == nil {
		return true
	}
	next, ok := act.mailbox.Peek()
	delivered := mail{c, act}.waiting() != nil
	if !ok || delivered && act.overtaken {
		return true
	}
	run := act.journal.Run(next.Call)
	if !s.draws(run) {
		return true
	}
	if act.draw.run != run.Call.ID {
		act.draw = draw{run: run.Call.ID, backoff: c.limits.ResendAfter}
		if slices.Contains(act.former, run.Call.ID) { // an earlier attempt may have arrived
			act.draw.attempt = 1
		}
		s.request(run)
	}
	if act.draw.refused != nil {
		return true
	}
	act.overtaken = delivered // the turn of an outcome has its purse, and goes first
	return delivered
}

// refusal returns the refusal of the draw of a run whose turn begins, or nil.
func (s accounts) refusal(run actor.CallID) *actor.Refusal {
	if d := s.act.draw; d.run == run && d.refused != nil {
		s.act.draw = draw{}
		return d.refused
	}
	return nil
}

// draws reports whether a run that has not begun has to draw its purse.
func (s accounts) draws(run *store.Run) bool {
	return run.Purse != nil && run.Purse.Day == 0 && run.Call.IsRoot() && !run.Started() && !actor.IsSystemAgent(s.act.id.Agent)
}

// request sends the next attempt of the draw of a run.
func (s accounts) request(run *store.Run) {
	c, d := s.cell, &s.act.draw
	d.attempt++
	d.retryAt = c.now.Add(d.backoff)
	d.backoff = min(2*d.backoff, resendBackoffMax)
	want := *run.Purse
	want.Day = actor.DayOf(run.At)
	call := s.call(&run.Call, drawID(run.Call.ID), actor.OpDraw, &want)
	call.Left, call.Attempt = run.Clock.Remaining(c.now), d.attempt // the account remembers its answer for longer than this
	durable := s.act.durableRun(run.Call.ID)
	c.send(actor.EffectID{Run: run.Call.ID}, d.attempt, s.act.id, call.To, durable, durable, actor.Request{Call: call})
}

// call returns a call of the account.
func (s accounts) call(run *actor.Call, id actor.CallID, operation string, amount *actor.Purse) actor.Call {
	return actor.Call{ID: id, Root: run.Root, Parent: run.ID, To: accountOf(s.act.id.Tenant), Operation: operation, Chain: run.Path(), Kind: actor.Waiting, Lane: run.Lane,
		Left: returnTime, Attempt: 1, Principal: run.Principal, Origin: actor.Agent, Project: run.Project, Purse: amount, Stamp: s.cell.nextStamp(run)}
}

// due returns the time of the next attempt of the draw.
func (s accounts) due() actor.Time {
	if s.act.draw.run.IsZero() || s.act.draw.refused != nil {
		return actor.Forever
	}
	return s.act.draw.retryAt
}

// retry repeats a draw that is due. It is dropped if its run has ended.
func (s accounts) retry() {
	if s.cell.now < s.due() {
		return
	}
	if run := s.act.journal.Run(s.act.draw.run); run != nil && s.draws(run) {
		s.request(run)
		return
	}
	s.act.draw = draw{}
}

// resend repeats the draw if its account is one that the callback selects.
func (s accounts) resend(to func(actor.ID) bool) {
	if s.due() != actor.Forever && to(accountOf(s.act.id.Tenant)) {
		s.act.draw.retryAt = s.cell.now
		s.retry()
		s.cell.markDirty(s.act)
	}
}

// granted handles the answer to a draw, and reports whether it is for a run of the actor. A draw that is refused because
// the account is busy, or its node is away, is repeated; one of a user who has sent too many messages is not.
func (s accounts) granted(reply *actor.Reply, durable bool) bool {
	c, act := s.cell, s.act
	for _, run := range act.journal.Runs {
		if drawID(run.Call.ID) != reply.Call || !s.draws(run) {
			continue
		}
		if r := reply.Refusal; r != nil || len(reply.Parts) != 1 {
			if r != nil && r.Reason == actor.Budget && act.draw.run == run.Call.ID {
				act.draw.refused = r
				c.markDirty(act)
			}
			return true
		}
		purse, err := actor.DecodePurse(reply.Parts[0].Bytes)
		if err != nil || purse.Day == 0 {
			return true
		}
		if act.draw.run == run.Call.ID {
			act.draw = draw{}
		}
		if act.durable {
			act.record(c, store.Drawn{Run: run.Call.ID, At: c.now, Purse: purse}, store.Shown{})
			return true
		}
		if run.Purse = purse; durable && !slices.Contains(act.tainted, run.Call.ID) {
			act.tainted = append(act.tainted, run.Call.ID)
		}
		act.journalChanged(c)
		return true
	}
	return false
}

// giveBack returns the rest of the purse of a tree whose root ends. Turns for its detached calls keep all of it, reminders
// an eighth. The run has spent the addition of a person first: it returns at most the purse with which it began.
func (s accounts) giveBack(run *store.Run, durable bool) {
	c, act, rest := s.cell, s.act, run.Purse
	if c.spending.Day == nil || rest == nil || rest.Day == 0 || !run.Call.IsRoot() {
		return
	}
	full := len(act.journal.Mail.Rows) >= store.PendingMax
	once := !act.durable || full || act.turn(run.Call.ID) == nil // a row belongs to a turn
	if act.durable && act.journal.HasHeirs(run) {
		if once || !act.journal.OnlyReminds(run, tools.Remind) {
			return
		}
		rest = rest.Less(rest.Part(keptPart, nil))
	}
	if !isDelivered(&run.Call) {
		rest = rest.Capped(run.Call.Purse)
	}
	switch {
	case *rest == *rest.Empty():
	case once:
		s.giveBackOnce(&run.Call, rest, durable)
	default:
		p := store.Pending{Call: s.call(&run.Call, c.newCallID(), actor.OpReturn, rest), Tool: actor.AccountAgent, At: c.now, Late: true, Silent: true}
		p.Call.Kind = actor.Detached
		p.Clock = actor.NewClock(c.now, p.Call.Left+lateGrace)
		mail(s).detach(&p)
	}
}

// giveBackOnce returns the rest of a purse by a message that is not repeated. If the message is lost, the rest counts as spent.
func (s accounts) giveBackOnce(of *actor.Call, rest *actor.Purse, durable bool) {
	if s.cell.spending.Day == nil || rest == nil || rest.Day == 0 || *rest == *rest.Empty() {
		return
	}
	call := s.call(of, s.cell.newCallID(), actor.OpReturn, rest)
	call.Chain = []actor.ID{s.act.id} // of may be a call of a callee
	s.cell.send(actor.EffectID{}, 1, s.act.id, call.To, durable, durable, actor.Request{Call: call})
}

// isReturn reports whether a row returns the rest of a purse. No agent has made it, and none sees it.
func isReturn(p *store.Pending) bool { return p.Tool == actor.AccountAgent }

// keptBy returns the purse that a row keeps: the one that it returns, or the one of the turn that is to come. nil is none.
func keptBy(p *store.Pending) *actor.Purse {
	switch {
	case isReturn(p):
		return p.Call.Purse
	case p.Late: // the turn has come
		return nil
	}
	return p.Purse
}
