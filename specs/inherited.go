// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
)

// This file checks what a call inherits from its caller, and the reports of calls and waits that
// got less time than requested.

// Clamps reports whether an ask, a call or a wait, requests more time than the maximum.
func (l *Limits) Clamps(e *history.Event) bool {
	if e.What == actor.AskWait.String() {
		return l.WaitTimeoutMax > 0 && e.Given > l.WaitTimeoutMax
	}
	return e.Given > l.AgentCallTimeoutMax
}

// checkInherited checks an admitted call against the turn that made it. An ask may lower the
// priority of its call, but not raise it.
func (c *Checker) checkInherited(e *history.Event, k *ask) {
	lane := max(k.parent.lane, k.lane) // 0 if the ask requests none
	if lane != actor.Normal {
		c.Premises.LaneInherited++
	}
	if e.Lane != lane {
		c.fail(LaneInherited, "call %s to %s arrives in lane %s, want %s; its caller has lane %s", k.id, k.to, e.Lane, lane, k.parent.lane)
	}
	if k.parent.context != 0 {
		c.Premises.ContextInherited++
	}
	if e.Context != k.parent.context {
		c.fail(ContextInherited, "call %s to %s has another principal, project, workflow or trace than its caller %s", k.id, k.to, k.parent.actor.id)
	}
}

// ObserveReports checks the run events published by the step that was observed last: one of them
// reports each call or wait whose requested time was reduced to the maximum. The argument clamped
// is the number of these reports.
func (c *Checker) ObserveReports(clamped int) *Violation {
	if c.clamped != clamped {
		c.fail(ClampReported, "a step makes %d calls or waits with more time than allowed requested, and reports %d", c.clamped, clamped)
	}
	return c.violation
}
