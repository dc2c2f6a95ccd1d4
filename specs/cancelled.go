// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
)

// cancellation is the cancel of a call that had no turn yet when the cancel reached its actor.
type cancellation struct {
	actor      *actorState
	activation int
	overtook   bool // the cancel arrived before its request
	until      actor.Time
}

// deliverCancel records a cancel that an active actor receives.
func (c *Checker) deliverCancel(e *history.Event) {
	a, r := c.actors[e.Actor], c.runs[e.Call]
	if a == nil || !a.active || a.at != e.From || a.epoch != e.Epoch || r != nil && (r.started || r.ended) || c.cancelled[e.Call] != nil {
		return
	}
	c.requireEntries(a, 0)
	c.cancelled[e.Call] = &cancellation{a, a.activations, r == nil, c.now.Add(c.limits.AgentCallTimeoutMax + c.limits.RememberDone)}
	c.recordChange(change{kind: callCancelled, run: &run{id: e.Call, actor: a, volatile: a.volatile}})
}

// cancelledAt reports the cancel that an actor has received for a call. A volatile actor forgets
// cancels when it leaves memory.
func (c *Checker) cancelledAt(a *actorState, call actor.CallID) (overtook, ok bool) {
	n := c.cancelled[call]
	if n == nil || n.actor != a || a.volatile && n.activation != a.activations || c.now > n.until {
		return false, false
	}
	return n.overtook, true
}
