// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"maps"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
)

// This file checks detached calls: each has one outcome, whose message has one turn, in the order of the
// outcomes.

// detachedCall is a detached call as seen by its caller.
type detachedCall struct {
	id       actor.CallID
	actor    *actorState
	to       actor.ID
	left     actor.Duration
	clock    stopwatch
	state    detachedState
	reminder bool         // nobody is asked
	settled  uint64       // sequence number of the outcome
	run      actor.CallID // that has the message
	made     uint64       // observation in which it was made
	lastSent uint64       // observation in which it was last sent
}

type detachedState uint8

const (
	detachedPending detachedState = iota
	detachedSettled               // its message is delivered, or is not wanted
	detachedOver                  // nothing is awaited any longer
)

// detachedCalls are those of one history.
type detachedCalls struct {
	checker *Checker
	calls   map[actor.CallID]*detachedCall
	byRun   map[actor.CallID]*detachedCall // by the run that has the message
}

// set changes a call, until a crash undoes it.
func (d detachedCalls) set(k *detachedCall, to detachedCall) {
	d.checker.recordChange(change{kind: detachedChanged, run: &run{id: k.id, actor: k.actor}, detached: k, wasDetached: *k})
	*k = to
}

// observe checks an event about a detached call.
func (d detachedCalls) observe(e *history.Event) {
	c := d.checker
	a := c.actors[e.Actor]
	if e.What != "discarded" || a == nil { // the actors of a session have left memory when it is deleted
		a = c.acting(e)
	}
	if a == nil {
		return
	}
	c.requireEntries(a, 1)
	k := d.calls[e.Call]
	switch {
	case e.Kind == history.Detach:
		d.made(a, e)
	case k == nil || k.actor != a:
		c.fail(OneOutcomePerCorrelation, "%s has an outcome of the detached call %s, which it has not made", a.id, e.Call)
	case e.Kind == history.Late:
		d.over(k, e)
	default:
		d.settle(k, e)
	}
}

func (d detachedCalls) made(a *actorState, e *history.Event) {
	c := d.checker
	switch r := c.runs[e.Parent]; {
	case r == nil || r.actor != a || !r.started || r.ended:
		c.fail(Structured, "%s makes the detached call %s in run %s, which has no turn", a.id, e.Call, e.Parent)
	case d.calls[e.Call] != nil:
		c.fail(OneOutcomePerCorrelation, "%s makes the detached call %s twice", a.id, e.Call)
	case !c.agentExists(e.Peer):
	default:
		k := &detachedCall{id: e.Call, actor: a, to: e.Peer, left: e.Left, clock: startStopwatch(a.cell.node, e.At), made: c.observation}
		k.reminder = e.What == history.Reminder
		if e.What == history.Silent { // nobody waits for its outcome
			k.state = detachedSettled
		}
		d.calls[k.id] = k
		c.recordChange(change{kind: detachedMade, run: &run{id: k.id, actor: a}, detached: k})
	}
}

// settle handles an outcome.
func (d detachedCalls) settle(k *detachedCall, e *history.Event) {
	c := d.checker
	reply := c.delivered != nil && c.delivered.What == "answered" && c.delivered.Call == k.id
	switch ran := k.clock.elapsed(e.At); {
	case k.state != detachedPending:
		c.fail(OneOutcomePerCorrelation, "%s has a second outcome of the detached call %s to %s, the %s", k.actor.id, k.id, k.to, e.What)
		return
	case e.What == "timeout" && ran < k.left-c.slack(&k.clock, k.actor.cell.node):
		c.fail(ExpireOnlyWhenDue, "%s lets the detached call %s expire after %v, want %v", k.actor.id, k.id, ran, k.left)
		return
	case e.What != "timeout" && !reply:
		c.fail(OneOutcomePerCorrelation, "%s has the %s of the detached call %s without its reply", k.actor.id, e.What, k.id)
		return
	}
	next := *k
	next.state, next.settled, next.run = detachedSettled, c.seq, e.Root
	d.set(k, next)
	d.byRun[e.Root] = k
}

// over handles the end of a call without a message.
func (d detachedCalls) over(k *detachedCall, e *history.Event) {
	cancelled := e.What == history.Cancelled && k.reminder // its row stays for a while
	if k.state == detachedPending && e.What != "discarded" && !cancelled || k.state == detachedOver || cancelled && k.state != detachedPending {
		d.checker.fail(EveryPendingEnds, "%s drops the detached call %s to %s without an outcome: %s", k.actor.id, k.id, k.to, e.What)
		return
	}
	next := *k
	if next.state = detachedOver; cancelled {
		next.state = detachedSettled
	}
	d.set(k, next)
}

// admitted handles a run that has an outcome as its message.
func (d detachedCalls) admitted(r *run) {
	c := d.checker
	k := d.byRun[r.id]
	if k == nil || k.run != r.id || k.actor != r.actor || k.settled+1 != c.seq {
		c.fail(OneOutcomePerCorrelation, "%s has run %s for an outcome that was not recorded in the same step", r.actor.id, r.id)
		return
	}
	r.outcomeOf = k
}

// started handles the turn of an outcome.
func (d detachedCalls) started(r *run) {
	for _, o := range r.actor.openRuns {
		if o == r || o.outcomeOf == nil {
			continue
		}
		d.checker.Premises.DeliveredInOrder++
		if o.started || o.outcomeOf.settled < r.outcomeOf.settled {
			d.checker.fail(DeliveredInOrder, "%s starts run %s for the outcome of call %s before it has completed run %s for that of call %s, which came first",
				r.actor.id, r.id, r.outcomeOf.id, o.id, o.outcomeOf.id)
		}
	}
}

// delivered handles a message.
func (d detachedCalls) delivered(e *history.Event) {
	if k := d.calls[e.Call]; k != nil && k.state != detachedPending && e.What == "answered" && e.Actor == k.actor.id {
		d.checker.Premises.OneOutcomePerCorrelation++
	}
}

// sent handles a request.
func (d detachedCalls) sent(e *history.Event) {
	if k := d.calls[e.Call]; k != nil {
		k.lastSent = d.checker.observation
	}
}

// of returns the calls of an actor without an outcome.
func (d detachedCalls) of(a *actorState) (all []*detachedCall) {
	for _, id := range slices.SortedFunc(maps.Keys(d.calls), actor.CallID.Compare) {
		if k := d.calls[id]; k.actor == a && k.state == detachedPending {
			all = append(all, k)
		}
	}
	return all
}

// resent checks that an actor that is active again sends its calls again.
func (d detachedCalls) resent(a *actorState) {
	c := d.checker
	for _, k := range d.of(a) {
		if k.made == c.observation || k.reminder {
			continue
		}
		c.Premises.EveryPendingEnds++
		if k.lastSent != c.observation && k.clock.elapsed(a.activatedAt) < k.left-c.slack(&k.clock, a.cell.node) {
			c.fail(EveryPendingEnds, "%s was reactivated on %s and does not resend its detached call %s to %s", a.id, a.at, k.id, k.to)
		}
	}
}

// DetachedPending reports whether a detached call or a reminder has no outcome yet.
func DetachedPending(c *Checker) bool {
	calls := c.detached.calls
	return slices.ContainsFunc(slices.SortedFunc(maps.Keys(calls), actor.CallID.Compare), func(id actor.CallID) bool { return calls[id].state == detachedPending })
}

// end checks that no call is pending at the end of a simulation.
func (d detachedCalls) end() {
	for _, id := range slices.SortedFunc(maps.Keys(d.calls), actor.CallID.Compare) {
		if k := d.calls[id]; k.state == detachedPending {
			d.checker.fail(EveryPendingEnds, "the detached call %s of %s to %s has no outcome", id, k.actor.id, k.to)
		}
	}
}
