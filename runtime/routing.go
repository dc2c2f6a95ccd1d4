// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/contract"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/store"
)

// routing makes detached calls without the parts that are off.
type routing struct{ dispatcher.Routing }

// hide removes from an invocation what the callee is not told.
func (r routing) hide(v *contract.Invocation) {
	if r.NoCorrelation {
		v.Correlation = actor.CallID{}
	}
	if r.NoReturnTo {
		v.ReturnTo = actor.ID{}
	}
}

// setWait sets the time for which the asker of a new call waits, and whether the outcome is delivered. Without timeouts
// a call ends too: a callee without an answer at the end of its own time has failed.
func (r routing) setWait(p *store.Pending, left actor.Duration, forget bool) {
	switch {
	case forget || r.NoResponses:
		p.Late, p.Silent, left = true, true, p.Call.Left+lateGrace
	case r.NoTimeouts:
		left = p.Call.Left + lateGrace
	}
	p.Clock = actor.NewClock(p.At, left)
}
