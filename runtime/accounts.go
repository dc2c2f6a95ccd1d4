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
// before its turn begins, or of an agent without a journal before it first asks a model or somebody who may ask one. It returns the rest at its end. The account is the state of a system actor, which may be in
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

// draw is the draw of a run, which waits for it: the next message in a mailbox, or a turn of an agent without a journal.
// The zero value is none.
type draw struct {
	run     actor.CallID
	held    actor.Action // of a turn, which takes it once it has its purse
	attempt uint32
	retryAt actor.Time
	backoff actor.Duration
	refused *actor.Refusal // of the account: the turn ends
}

// waits reports whether a draw is open.
func (d *draw) waits() bool { return !d.run.IsZero() && d.refused == nil }

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

// drawn reports whether the next message may begin its turn. If its run has to draw first, it does: a turn of an agent with
// a journal records its first step when it begins.
func (s accounts) drawn() bool {
	c, act := s.cell, s.act
	if c.spending.Day == nil || !act.durable {
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
		s.begin(&act.draw, run, slices.Contains(act.former, run.Call.ID))
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

// refusedForDay reports whether a run has done nothing because its user may send no more messages that day. A repeat of the
// message under its idempotency key MUST ask again: the key is remembered for longer than the day lasts.
func refusedForDay(run *store.Run, r *actor.Refusal) bool {
	return r != nil && r.Reason == actor.Budget && r.RetryAfter > 0 && len(run.Steps) == 0
}

// hold reports whether a turn of an agent without a journal has to draw its purse before it takes an action, and keeps the
// action until then. A turn that asks no model and nobody who may ask one draws nothing.
func (s accounts) hold(t *turn, action *actor.Action) bool {
	c, act := s.cell, s.act
	if c.spending.Day == nil || act.durable || !s.draws(t.run) || !slices.ContainsFunc(action.Asks, s.spends) {
		return false
	}
	t.draw = &draw{held: *action}
	if act.observed(c, t.run.Call.ID) { // the turn has begun
		act.publishRecord(c, store.Drawn{Run: t.run.Call.ID, At: c.now}, t.takeShown())
	}
	s.begin(t.draw, t.run, false)
	return true
}

// begin begins a draw. An earlier attempt may have arrived if the run is older than the activation.
func (s accounts) begin(d *draw, run *store.Run, older bool) {
	d.run, d.attempt, d.refused, d.backoff = run.Call.ID, 0, nil, s.cell.limits.ResendAfter
	if older {
		d.attempt = 1
	}
	s.request(d, run)
}

// spends reports whether an ask can take something from the purse of its run.
func (s accounts) spends(ask actor.Ask) bool {
	switch ask.Kind {
	case actor.AskModel, actor.AskCall, actor.AskInvoke, actor.AskDetach:
		return true
	case actor.AskTool: // those of this program can call agents
		tool, ok := s.cell.tools.Tool(ask.Name)
		return ok && tool.Declared == nil
	}
	return false
}

// draws reports whether a run has to draw its purse.
func (s accounts) draws(run *store.Run) bool {
	return run.Purse != nil && run.Purse.Day == 0 && run.Call.IsRoot() && !(s.act.durable && run.Started()) && !actor.IsSystemAgent(s.act.id.Agent)
}

// request sends the next attempt of the draw of a run.
func (s accounts) request(d *draw, run *store.Run) {
	c := s.cell
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

// open returns the draws of the actor that wait for an answer.
func (s accounts) open() (all []*draw) {
	if s.act.draw.waits() {
		all = append(all, &s.act.draw)
	}
	for _, t := range s.act.turns {
		if t.draws() {
			all = append(all, t.draw)
		}
	}
	return all
}

// due returns the time of the next attempt of a draw.
func (s accounts) due() actor.Time {
	at := actor.Forever
	for _, d := range s.open() {
		at = min(at, d.retryAt)
	}
	return at
}

// retry repeats the draws that are due. One whose run has ended, or has its purse, is dropped.
func (s accounts) retry() {
	for _, d := range s.open() {
		switch run := s.act.journal.Run(d.run); {
		case s.cell.now < d.retryAt:
		case run != nil && s.draws(run):
			s.request(d, run)
		default:
			*d = draw{}
		}
	}
}

// resend repeats the draws if their account is one that the callback selects.
func (s accounts) resend(to func(actor.ID) bool) {
	all := s.open()
	if len(all) == 0 || !to(accountOf(s.act.id.Tenant)) {
		return
	}
	for _, d := range all {
		d.retryAt = s.cell.now
	}
	s.retry()
	s.cell.markDirty(s.act)
}

// granted handles the answer to a draw, and reports whether it is for a run of the actor. A draw that is refused because
// the account is busy, or its node is away, is repeated; one of a user who has sent too many messages is not.
func (s accounts) granted(reply *actor.Reply, durable bool) bool {
	c, act := s.cell, s.act
	for _, run := range act.journal.Runs {
		if drawID(run.Call.ID) != reply.Call || !s.draws(run) {
			continue
		}
		c.markDirty(act)
		if r := reply.Refusal; r != nil || len(reply.Parts) != 1 {
			for _, d := range s.open() {
				if r != nil && r.Reason == actor.Budget && d.run == run.Call.ID {
					d.refused = r
				}
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
		run.Purse = purse
		switch t := act.turn(run.Call.ID); {
		case t != nil:
			t.taint = t.taint || durable
		case durable && !slices.Contains(act.tainted, run.Call.ID):
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
