// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
)

// This file checks the order of the calls in a mailbox, and the age up to which a mailbox accepts
// further calls.

// overtakenMax is the number of calls of higher lanes that may overtake the first call of a lane.
// The count restarts when the actor becomes active again.
const overtakenMax = 8

// checkQueueOrder checks that the queued call r may start now.
func (c *Checker) checkQueueOrder(a *actorState, r *run) {
	var heads [actor.Low + 1]*run // oldest other call of each lane
	for _, o := range a.openRuns {
		if o == r || o.started || o.delivered {
			continue
		}
		if head := heads[o.lane]; head == nil || o.admittedSeq < head.admittedSeq {
			heads[o.lane] = o
		}
	}
	if next := heads[r.lane]; next != nil {
		c.Premises.LaneIsFIFO++
		if next.admittedSeq < r.admittedSeq {
			c.fail(LaneIsFIFO, "%s starts call %s before call %s, which arrived earlier in the same lane", a.id, r.id, next.id)
		}
	}
	for _, head := range heads[r.lane+1:] {
		if head == nil {
			continue
		}
		switch head.overtaken++; {
		case head.overtaken == overtakenMax:
			c.Premises.NoLaneStarves++
		case head.overtaken > overtakenMax:
			c.fail(NoLaneStarves, "%s starts call %s, the %dth of higher lanes that overtakes call %s; want at most %d", a.id, r.id, head.overtaken, head.id, overtakenMax)
		}
	}
}

// mailboxTooOld reports whether the oldest queued call of an actor has waited for too long to admit
// another. The time during which a turn is held does not count.
func (c *Checker) mailboxTooOld(a *actorState, now actor.Time) (age actor.Duration, tooOld bool) {
	if c.limits.MailboxAgeMax == 0 {
		return 0, false
	}
	for _, r := range a.openRuns {
		if r.started || r.delivered {
			continue
		}
		waited := now.Sub(max(r.clock.began, a.agingFrom))
		age = max(age, waited)
		tooOld = tooOld || waited > c.limits.MailboxAgeMax+c.slack(&r.clock, a.cell.node)
	}
	return age, tooOld
}

func (c *Checker) checkMailboxAge(e *history.Event, a *actorState) {
	if age, tooOld := c.mailboxTooOld(a, e.At); tooOld {
		c.fail(MailboxAgeBounded, "%s admits call %s while a message waits for %v, want at most %v", a.id, e.Call, age, c.limits.MailboxAgeMax)
	}
}
