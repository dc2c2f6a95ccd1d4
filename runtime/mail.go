// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/contract"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/internal/failpoint"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/tools"
)

// Detached calls. A turn makes one with the tool agent_call, which is answered at once:
//
//	agent_call ─▶ Detached, request ─▶ reply or time-out ─▶ Settled + Accepted ─▶ a turn
//
// The row of the call belongs to the actor. It is resent until the callee answers, also after the turn has
// ended. The outcome, the end of the row and the run that has the outcome as its message are in one step,
// so no crash is between them. A reply that finds no open row delivers nothing.

// Bounds of detached calls.
const (
	RoundsMax       = 8                // outcomes of detached calls that may follow from each other
	detachedShare   = 16               // a callee may make as many calls as its asker has left, divided by this
	detachedTimeout = 60 * time.Second // of a detached call without a timeout
	cancelledKept   = 10 * time.Minute // for which a cancelled reminder is listed
	lateGrace       = 30 * time.Second // time after the deadline of the callee in which its answer may still arrive
)

// mail makes and ends the detached calls of an actor.
type mail struct {
	cell *Cell
	act  *activation
}

// rowState is the part of a row that the journal does not hold.
type rowState struct {
	attempt uint32
	retryAt actor.Time
	backoff actor.Duration
}

// plan returns the immediate answer to a tool about detached calls. The row of a call is recorded by send, after
// the ask.
func (m mail) plan(t *turn, out *actor.Ask) *actor.Answer {
	input, given := tools.DetachedOf(out)
	if given.Poll {
		return m.poll(out.Name)
	}
	if given.Remind != "" {
		p, refusal := m.reminder(t, out, given)
		if refusal != nil {
			m.cell.addJitter(refusal)
			return &actor.Answer{Refusal: refusal}
		}
		t.detached = append(t.detached, p)
		answer := tools.JSON(contract.Pending(correlation(&p)))
		return &answer
	}
	before, callees := len(t.detached), []string{out.Name}
	if given.Participants != nil {
		callees = given.Participants
	}
	for _, name := range callees { // all or none
		one := *out
		one.Name = name
		p, refusal := m.check(t, &one, input, given)
		if refusal != nil {
			t.detached = t.detached[:before]
			m.cell.addJitter(refusal)
			return &actor.Answer{Refusal: refusal}
		}
		t.detached = append(t.detached, p)
	}
	answer := tools.JSON(immediate(callees, t.detached[before:], given.Participants != nil))
	if max := m.cell.limits.AgentCallTimeoutMax; out.Timeout > max {
		answer.Warnings = []string{fmt.Sprintf("the timeout of %d ms is reduced to %d ms, the maximum", out.Timeout.Milliseconds(), max.Milliseconds())}
	}
	return &answer
}

// immediate returns the immediate answer to an agent that makes calls.
func immediate(callees []string, made []store.Pending, several bool) []byte {
	var all []contract.Correlation
	for i := range made {
		all = append(all, correlation(&made[i]))
	}
	switch {
	case several:
		return contract.PendingCalls(callees, all, made[0].Silent)
	case made[0].Silent:
		return contract.Forgotten(all[0])
	}
	return contract.Pending(all[0])
}

// check returns the row of a detached call, or the reason to refuse it.
func (m mail) check(t *turn, out *actor.Ask, input []byte, given tools.Detached) (store.Pending, *actor.Refusal) {
	c, run := m.cell, t.run
	var sends []string
	var own actor.Routing
	if t.def != nil {
		sends, own = t.def.Sends, t.def.Routing
	}
	routing := routing{c.routing.Of(own)}
	target, refusal := c.callable.Resolve(out.Name, sends)
	if refusal != nil {
		return store.Pending{}, refusal
	}
	to, err := tools.Target(target, m.act.id)
	switch rounds, rows := run.Call.Extensions.Rounds(), len(m.act.journal.Mail.Rows)+len(t.detached); {
	case err != nil:
		refusal = actor.Refuse(actor.Invalid, "%s: agent: %v", given.Tool, err)
		refusal.Field = "agent"
	case !m.act.durable:
		refusal = actor.Refuse(actor.Rejected, "agent %s has durability none, so nothing would keep its pending calls: use %s", m.act.id.Agent, tools.CallAgent)
	case sends != nil && !slices.Contains(sends, to.Agent):
		refusal = actor.Refuse(actor.Rejected, "%s may not call %.80q: it may call %s", m.act.id.Agent, to.Agent, listed(sends, "nobody"))
	case rounds >= RoundsMax:
		refusal = actor.Refuse(actor.Rejected, "this turn follows from %d outcomes of detached calls, at most %d allowed: answer with what is there, or use %s", rounds, RoundsMax, tools.CallAgent)
	case rows >= store.PendingMax:
		refusal = actor.RefuseBusy(actor.ScopeCaller, c.limits.ResendAfter, "%s has %d detached calls pending, at most %d allowed: wait for their outcomes", m.act.id, rows, store.PendingMax)
	case len(input) > contract.SkillInputMax:
		refusal = actor.Refuse(actor.Invalid, "%s: input: %d bytes exceed the maximum of %d", given.Tool, len(input), contract.SkillInputMax)
		refusal.Field = "input"
	}
	if refusal != nil {
		return store.Pending{}, refusal
	}
	def, budget := c.definitions.current(to.Agent), t.budget()
	limits := c.limits
	limits.AgentCallTimeoutDefault = min(detachedTimeout, limits.AgentCallTimeoutMax)
	left, refusal := dispatcher.Route(limits, dispatcher.Caller{Self: m.act.id, Chain: run.Call.Chain, Left: limits.AgentCallTimeoutMax, Budget: budget}, to, def, out.Timeout)
	if refusal != nil {
		return store.Pending{}, refusal
	}
	if def.Skills != nil && !slices.Contains(def.Skills, out.Operation) {
		refusal := actor.Refuse(actor.Invalid, "agent %s has no skill %.80q: it has %s", to.Agent, out.Operation, listed(def.Skills, "none"))
		refusal.Field = "skill"
		return store.Pending{}, refusal
	}
	call := run.Call
	call.ID, call.Root, call.Parent, call.To, call.Operation, call.Chain = c.newCallID(), run.Call.Root, run.Call.ID, to, actor.HandleMessageFull, run.Call.Path()
	call.Kind, call.Left, call.Attempt, call.Origin, call.Budget, call.Stamp = actor.Detached, limits.AgentCallTimeoutMax, 1, actor.Agent, (budget-1)/detachedShare, c.nextStamp(&run.Call)
	call.Purse = purses{c, t}.give(t.purse.Part(detachedPurse, nil), def)
	call.Idempotency, call.Claimed, call.Via, call.Extensions = actor.Idempotency{}, actor.CallID{}, actor.Address{}, run.Call.Extensions.Inherited().WithChannel(own.Channel)
	message := contract.Invocation{Skill: out.Operation, Mode: given.Mode, Input: input, Correlation: call.ID, ReturnTo: m.act.id, Timeout: left}
	routing.hide(&message)
	call.Parts = actor.Text(string(message.Encode()))
	if given.Rounds > 0 {
		call.Extensions = call.Extensions.WithRounds(max(run.Call.Extensions.Rounds(), RoundsMax-given.Rounds))
	}
	p := store.Pending{Call: call, Tool: given.Tool, Skill: out.Operation, Client: given.Client, At: c.now, Purse: run.Purse.Empty()}
	routing.setWait(&p, left, given.Forget)
	return p, nil
}

// reminder returns the row of a reminder, whose callee is the actor itself and gets nothing, or the reason to refuse it.
func (m mail) reminder(t *turn, out *actor.Ask, given tools.Detached) (store.Pending, *actor.Refusal) {
	c, run, left := m.cell, t.run, out.Timeout
	if given.At != 0 {
		left = actor.Time(given.At * int64(time.Millisecond)).Sub(c.now)
	}
	rounds, rows := run.Call.Extensions.Rounds(), len(m.act.journal.Mail.Rows)+len(t.detached)
	switch {
	case !m.act.durable:
		return store.Pending{}, actor.Refuse(actor.Rejected, "agent %s has durability none, so nothing would keep its reminders", m.act.id.Agent)
	case left <= 0 || left > tools.ReminderTimeMax:
		refusal := actor.Refuse(actor.Invalid, "%s: want a time within the next %d days", tools.Remind, tools.ReminderTimeMax/(24*time.Hour))
		refusal.Field = "at"
		return store.Pending{}, refusal
	case rounds >= RoundsMax:
		return store.Pending{}, actor.Refuse(actor.Rejected, "this turn follows from %d reminders and outcomes of detached calls, at most %d allowed", rounds, RoundsMax)
	case rows >= store.PendingMax:
		return store.Pending{}, actor.RefuseBusy(actor.ScopeCaller, c.limits.ResendAfter, "%s has %d detached calls and reminders pending, at most %d allowed", m.act.id, rows, store.PendingMax)
	}
	call := run.Call
	call.ID, call.Parent, call.To, call.Operation, call.Chain = c.newCallID(), run.Call.ID, m.act.id, actor.HandleMessageFull, run.Call.Path()
	call.Kind, call.Left, call.Attempt, call.Origin, call.Budget, call.Stamp = actor.Detached, left, 1, actor.Agent, 0, c.nextStamp(&run.Call)
	call.Idempotency, call.Claimed, call.Via, call.Extensions = actor.Idempotency{}, actor.CallID{}, actor.Address{}, run.Call.Extensions.Inherited()
	call.Parts, call.Purse = actor.Text(given.Remind), run.Purse.Empty()
	return store.Pending{Call: call, Tool: tools.Remind, Skill: tools.Remind, At: c.now, Purse: call.Purse, Clock: actor.NewClock(c.now, left)}, nil
}

// isReminder reports whether a row has no callee.
func isReminder(p *store.Pending) bool { return p.Tool == tools.Remind }

// correlation identifies a detached call to its asker.
func correlation(p *store.Pending) contract.Correlation {
	return contract.Correlation{Call: p.Call.ID, Client: p.Client}
}

// poll returns the state of a task of the actor, or with "" of all that are pending.
func (m mail) poll(task string) *actor.Answer {
	if !m.act.durable {
		return &actor.Answer{Refusal: actor.Refuse(actor.Rejected, "agent %s has durability none, so it has no pending calls", m.act.id.Agent)}
	}
	if task == "" {
		var all []contract.Task
		for i := range m.act.journal.Mail.Rows {
			if isReturn(&m.act.journal.Mail.Rows[i]) {
				continue
			}
			all = append(all, taskOf(&m.act.journal.Mail.Rows[i]))
		}
		answer := tools.JSON(contract.EncodeTasks(all))
		return &answer
	}
	id, err := actor.ParseCallID(task)
	invariant.Check(err == nil, "a task with the ID %q", task)
	state := m.outcomeOf(id)
	if state == nil {
		return &actor.Answer{Refusal: actor.RefuseNotFound(actor.WhatRun, "%s has made no call %s in this session, or its outcome is long ago", m.act.id.Agent, id)}
	}
	answer := tools.JSON(state)
	return &answer
}

// outcomeOf returns what is known of a call: the late response, the delivered message, or the state of its row.
func (m mail) outcomeOf(id actor.CallID) []byte {
	j := &m.act.journal
	if late := j.Mail.LateTo(id); late != nil {
		return late
	}
	if p := j.Mail.Row(id); p != nil && p.Cancelled {
		return contract.CancelledReminder(correlation(p), actor.TextOf(p.Call.Parts))
	} else if p != nil {
		task := taskOf(p)
		return task.Encode()
	}
	is := func(x actor.Extensions, parts []actor.Part) bool {
		of, ok := x.Provenance()
		return ok && of.Correlation == id && contract.IsOutcome(actor.TextOf(parts))
	}
	for _, run := range j.Runs {
		if isDelivered(&run.Call) && is(run.Call.Extensions, run.Call.Parts) {
			return []byte(actor.TextOf(run.Call.Parts))
		}
	}
	for i := range j.Transcript.Tail {
		if t := &j.Transcript.Tail[i]; t.Source == actor.FromDelivered && is(t.Extensions, t.Parts) {
			return []byte(actor.TextOf(t.Parts))
		}
	}
	return nil
}

func taskOf(p *store.Pending) contract.Task {
	return contract.Task{Correlation: correlation(p), Agent: p.Call.To.Agent, Skill: p.Skill, At: p.At, Timeout: p.Clock.Left, Late: p.Late && !p.Silent && !p.Cancelled, Cancelled: p.Cancelled, Waits: p.Waits}
}

// listed returns the names as a list, or none in its place.
func listed(names []string, none string) string {
	if len(names) == 0 {
		return none
	}
	return strings.Join(names, ", ")
}

// budget returns the number of calls that the turn may still make, besides the detached calls that it is
// about to make.
func (t *turn) budget() uint32 {
	left := t.run.Budget
	for i := range t.detached {
		left -= min(left, 1+t.detached[i].Call.Budget)
	}
	return left
}

// send records the detached calls that a turn has planned, and sends them.
func (m mail) send(t *turn) {
	planned := t.detached
	t.detached = nil
	for i := range planned {
		m.detach(&planned[i])
	}
}

// detach records a detached call, and sends it.
func (m mail) detach(p *store.Pending) {
	m.act.record(m.cell, store.Detached{Pending: *p}, store.Shown{})
	e := history.Event{Kind: history.Detach, Actor: m.act.id, Epoch: m.act.epoch, Call: p.Call.ID, Parent: p.Call.Parent, Root: p.Call.Root, Peer: p.Call.To, Left: p.Clock.Left}
	switch {
	case p.Silent:
		e.What = history.Silent
	case isReminder(p):
		e.What = history.Reminder
	}
	m.cell.emit(e)
	m.request(p)
}

// request sends the next attempt of a call, and schedules the one after it. The callee answers a repeat
// from the recorded outcome.
func (m mail) request(p *store.Pending) {
	c := m.cell
	if m.act.rows == nil {
		m.act.rows = map[actor.CallID]*rowState{}
	}
	s := m.act.rows[p.Call.ID]
	if s == nil {
		s = &rowState{backoff: c.limits.ResendAfter}
		m.act.rows[p.Call.ID] = s
	}
	left := m.calleeLeft(p)
	if left <= 0 || isReminder(p) {
		s.retryAt = actor.Forever
		return
	}
	s.attempt++
	call := p.Call
	call.Left, call.Attempt = left, s.attempt
	call.Chain, call.Parts = slices.Clone(call.Chain), actor.CloneParts(call.Parts)
	c.send(actor.EffectID{}, s.attempt, m.act.id, call.To, true, true, actor.Request{Call: call})
	s.retryAt = c.now.Add(s.backoff)
	s.backoff = min(2*s.backoff, resendBackoffMax)
	if c.failpoints.On(failpoint.AskAgainNow) {
		s.retryAt = c.now.Add(time.Millisecond)
	}
}

// calleeLeft returns the time that the callee of a call still has.
func (m mail) calleeLeft(p *store.Pending) actor.Duration {
	return p.Call.Left - max(m.cell.now.Sub(p.At), 0)
}

// restore sends the calls of an actor that was loaded: their messages may be lost.
func (m mail) restore() {
	for i := range m.act.journal.Mail.Rows {
		p := &m.act.journal.Mail.Rows[i]
		if m.act.rows == nil {
			m.act.rows = map[actor.CallID]*rowState{}
		}
		m.act.rows[p.Call.ID] = &rowState{attempt: 1, backoff: m.cell.limits.ResendAfter} // an earlier attempt may have arrived
		m.request(p)
	}
}

// resend sends the calls to the callees that the callback selects.
func (m mail) resend(to func(actor.ID) bool) {
	for i := range m.act.journal.Mail.Rows {
		if p := &m.act.journal.Mail.Rows[i]; to(p.Call.To) {
			m.request(p)
			m.cell.markDirty(m.act)
		}
	}
}

// due returns the next time at which a row needs attention.
func (m mail) due() actor.Time {
	at := actor.Forever
	for i := range m.act.journal.Mail.Rows {
		p := &m.act.journal.Mail.Rows[i]
		at = min(at, p.Clock.Due())
		if s := m.act.rows[p.Call.ID]; s != nil {
			at = min(at, s.retryAt)
		}
	}
	return at
}

// expire ends the waits whose time has passed, and drops the rows whose callees have no time left.
func (m mail) expire() {
	for _, p := range m.act.journal.Mail.Rows { // records replace the list
		switch {
		case m.cell.now < p.Clock.Due():
		case p.Late:
			m.end(&p, 0, "expired", nil)
		case isReminder(&p):
			m.settle(&p, "timeout", contract.Reminder(correlation(&p), actor.TextOf(p.Call.Parts)), 0, 0, nil)
		default:
			m.settle(&p, "timeout", contract.SkillTimeout(correlation(&p), p.Clock.Left, p.Waits), max(m.calleeLeft(&p), 0)+lateGrace, 0, nil)
		}
	}
}

// retry sends the calls again that are due.
func (m mail) retry() {
	for i := range m.act.journal.Mail.Rows {
		p := &m.act.journal.Mail.Rows[i]
		if s := m.act.rows[p.Call.ID]; s != nil && m.cell.now >= s.retryAt {
			m.request(p)
		}
	}
}

// answered handles a reply, and reports whether the actor has a row of the call.
func (m mail) answered(reply *actor.Reply) bool {
	p := m.act.journal.Mail.Row(reply.Call)
	if p == nil {
		return false
	}
	if isReturn(p) {
		if reply.Refusal == nil { // otherwise it is repeated
			row := *p
			m.end(&row, reply.Status, "answer", nil)
		}
		return true
	}
	if s := m.act.rows[reply.Call]; reply.Refusal != nil && s != nil && s.attempt > 1 {
		// Another attempt may be in flight. A refused call MUST NOT run.
		m.cell.send(actor.EffectID{}, s.attempt, m.act.id, p.Call.To, true, true, actor.Cancel{Call: reply.Call, Reason: actor.Stopped})
	}
	what := "answer"
	if reply.Refusal != nil {
		what = "failure"
	}
	row := *p
	var message []byte
	var budget uint32
	var purse *actor.Purse
	if reply.Refusal != nil {
		message = contract.SkillError(correlation(&row), reply.Refusal)
		if s := m.act.rows[reply.Call]; s != nil && !m.cell.mayRunAfter(reply.Refusal, s.attempt) {
			purse = reply.Purse
		}
	} else {
		r := contract.ReadSkill(actor.TextOf(reply.Parts), reply.Warnings...)
		message, budget, purse = r.Encode(correlation(&row)), min(reply.Budget, row.Call.Budget), reply.Purse
	}
	if row.Late {
		m.end(&row, reply.Status, what, message)
		accounts(m).giveBackOnce(&row.Call, purse, true)
	} else {
		m.settle(&row, what, message, 0, budget, purse)
	}
	return true
}

// settle records the first outcome of a call, with the run that has it as its message.
func (m mail) settle(p *store.Pending, what string, message []byte, left actor.Duration, budget uint32, purse *actor.Purse) {
	c := m.cell
	run := c.newCallID()
	m.act.record(c, store.Settled{Call: p.Call.ID, At: c.now, Run: run, Left: left}, store.Shown{})
	c.emit(history.Event{Kind: history.Settle, Actor: m.act.id, Epoch: m.act.epoch, Call: p.Call.ID, Parent: p.Call.Parent, Root: run, Peer: p.Call.To, What: what})
	if left == 0 {
		delete(m.act.rows, p.Call.ID)
	}
	from := &p.Call
	of := actor.Provenance{Tool: p.Tool, Correlation: from.ID}
	call := actor.Call{ID: run, Root: run, Parent: from.Parent, To: m.act.id, Operation: actor.HandleMessageFull, Kind: actor.OneWay, Lane: from.Lane, Left: c.limits.RunTimeoutDefault, Attempt: 1,
		Principal: from.Principal, Origin: actor.Agent, Project: from.Project, Budget: min(p.Reserve+budget, c.limits.CallsPerTreeMax), Purse: p.Purse.Plus(purse), Workflow: from.Workflow, Trace: from.Trace,
		Stamp: c.now, Via: c.self, Parts: actor.Text(string(message)), Extensions: from.Extensions.Inherited().WithRounds(from.Extensions.Rounds() + 1).WithProvenance(of)}
	def := c.definitions.current(m.act.id.Agent)
	if def == nil { // the agent was deleted: the message has no turn
		m.act.record(c, store.Appended{At: c.now, Message: (&store.Run{Call: call, At: c.now}).Message()}, store.Shown{})
		return
	}
	r := m.act.openRun(c, &call, def)
	r.Seq = 1
	c.emit(history.Event{Kind: history.Admit, Actor: m.act.id, Epoch: m.act.epoch, Call: run, Parent: call.Parent, Root: run, What: history.Delivered, Left: call.Left, Attempt: 1,
		Count: m.act.mailbox.Count(), Bytes: m.act.mailbox.Bytes(), Durable: true, Lane: call.Lane, Context: history.ContextDigest(&call)})
	c.markDirty(m.act)
}

// end drops a row without a message. A late response is kept.
func (m mail) end(p *store.Pending, status actor.Status, what string, late []byte) {
	c := m.cell
	m.act.record(c, store.Late{Call: p.Call.ID, At: c.now, Status: status, Response: late}, store.Shown{})
	c.emit(history.Event{Kind: history.Late, Actor: m.act.id, Epoch: m.act.epoch, Call: p.Call.ID, Parent: p.Call.Parent, Peer: p.Call.To, What: what})
	delete(m.act.rows, p.Call.ID)
}

// cancelReminder drops a reminder, and answers the signal of a client. It is not delivered once the signal is answered: the
// record and the answer are in one step, and the answer leaves after it is durable. Another cancellation is
// answered alike.
func (m mail) cancelReminder(call *actor.Call) *actor.Refusal {
	c, p := m.cell, m.act.journal.Mail.Row(call.Parent)
	switch {
	case p == nil:
		switch outcome := m.outcomeOf(call.Parent); {
		case outcome == nil:
			return actor.RefuseNotFound(actor.WhatRun, "%s has no reminder %s", m.act.id, call.Parent)
		case !contract.IsCancelledReminder(outcome):
			return actor.Refuse(actor.Rejected, "task %s has its outcome and cannot be cancelled", call.Parent)
		}
	case !isReminder(p):
		return actor.Refuse(actor.Rejected, "task %s is no reminder: cancel its run", call.Parent)
	case !p.Cancelled:
		row := *p
		m.act.record(c, store.Late{Call: row.Call.ID, At: c.now, Response: contract.CancelledReminder(correlation(&row), actor.TextOf(row.Call.Parts)), Left: cancelledKept}, store.Shown{})
		c.emit(history.Event{Kind: history.Late, Actor: m.act.id, Epoch: m.act.epoch, Call: row.Call.ID, Parent: row.Call.Parent, Peer: row.Call.To, What: history.Cancelled})
		accounts(m).giveBackOnce(&row.Call, keptBy(&row), true)
	}
	m.act.recordOutcome(c, call, &actor.Reply{Call: call.ID, Run: call.ID, Status: actor.Succeeded, Budget: call.Budget}, true)
	return nil
}

// held records what the callee of a call waits for. It reports whether the actor has a row of the call. The wait
// of the asker goes on. If the callee waits for the decision of a person, the conversation has a message that
// says so, without a turn.
func (m mail) held(call actor.CallID, n uint64, until actor.Time, hold actor.Hold) bool {
	c, p := m.cell, m.act.journal.Mail.Row(call)
	if p == nil {
		return false
	}
	if p.Late || n <= p.Holds {
		return true
	}
	if until <= c.now {
		hold = actor.Hold{}
	}
	row := *p
	m.act.record(c, store.Noticed{Call: call, At: c.now, N: n, For: hold}, store.Shown{})
	if hold.Reason.AwaitsDecision() && hold.Subject != row.Waits.Subject {
		of := actor.Provenance{Tool: row.Tool, Correlation: call}
		m.act.record(c, store.Appended{At: c.now, Message: actor.ChatMessage{Call: c.newCallID(), Role: actor.RoleUser, Source: actor.FromDelivered, At: c.now,
			Parts: actor.Text(string(contract.SkillWaiting(correlation(&row), hold))), Extensions: actor.Extensions("").WithProvenance(of)}}, store.Shown{})
	}
	return true
}

// isDelivered reports whether a call has the outcome of a detached call as its message.
func isDelivered(call *actor.Call) bool { return call.Kind == actor.OneWay && call.IsRoot() }

// next returns the message of the actor's next turn. Messages of outcomes wait outside of the mailbox, which
// is bounded, in the order of the outcomes. They alternate with the messages of the mailbox, so neither
// wait for more than one turn of the others.
func (m mail) next() (actor.CallID, bool) {
	act := m.act
	delivered := m.waiting()
	if delivered != nil && (act.overtaken || act.mailbox.Count() == 0) {
		act.overtaken = false
		if def := m.cell.definitions.of(delivered); def != nil && def.Coalesce {
			delivered = m.coalesce()
		}
		return delivered.Call.ID, true
	}
	q, ok := act.mailbox.Pop(m.cell.now)
	if ok {
		act.overtaken = delivered != nil
	}
	return q.Call, ok
}

// waiting returns the run for the first outcome that has no turn, or nil. The turns of outcomes are one after
// the other, also those of interleaved actors.
func (m mail) waiting() *store.Run {
	all := m.queue()
	if len(all) == 0 || slices.ContainsFunc(m.act.turns, func(t *turn) bool { return isDelivered(&t.run.Call) }) {
		return nil
	}
	return all[0]
}

// coalesce ends all runs for outcomes that wait but the last one, whose turn reads the messages of the others as
// earlier ones of the conversation.
func (m mail) coalesce() *store.Run {
	all := m.queue()
	last := all[len(all)-1]
	for _, run := range all[:len(all)-1] {
		m.act.stopRun(m.cell, run, actor.Refuse(actor.Stopped, "its message is one of several outcomes, which the turn of run %s reads", last.Call.ID))
	}
	return m.act.journal.Run(last.Call.ID)
}

// queue returns the runs for outcomes that have no turn, in order.
func (m mail) queue() (all []*store.Run) {
	if !m.act.durable {
		return nil
	}
	for _, run := range m.act.journal.Runs {
		if isDelivered(&run.Call) && !run.Started() && m.act.turn(run.Call.ID) == nil {
			all = append(all, run)
		}
	}
	return all
}

// discard drops the rows of an actor whose session is deleted: nothing is left that could have their outcomes.
func (m mail) discard() {
	for _, p := range m.act.journal.Mail.Rows {
		m.end(&p, 0, "discarded", nil)
		accounts(m).giveBackOnce(&p.Call, keptBy(&p), true)
	}
}
