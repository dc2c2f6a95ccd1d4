// SPDX-License-Identifier: Apache-2.0

package dispatcher

import (
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// answerWait is the retry delay of a caller at its limit of outstanding calls. The time
// until one of them is answered is unknown.
const answerWait = time.Second

// LeftMin is the minimum time left of a call.
const LeftMin = time.Millisecond

// Caller is the data of the calling turn that Route checks.
type Caller struct {
	Self        actor.ID
	Chain       []actor.ID // ancestors of the turn's call, oldest first, without Self
	Left        actor.Duration
	Outstanding int    // number of unanswered calls of the caller
	Budget      uint32 // number of calls that its turn may still make
}

// ChainOf returns the chain of a call made by this caller.
func (c Caller) ChainOf() []actor.ID { return append(slices.Clone(c.Chain), c.Self) }

// Route checks a call to target in this order: target exists, depth, cycle, time left,
// outstanding calls, budget. The first failed check is the refusal. The argument asked
// is the timeout requested by the caller, 0 for the default. Route returns the time
// left of the call: the minimum of asked, the configured maximum and the caller's own
// time left.
func Route(l Limits, c Caller, target actor.ID, def *actor.Definition, asked actor.Duration) (actor.Duration, *actor.Refusal) {
	var buf [8]actor.ID // stays on the stack; refusals copy the chain
	chain := append(append(buf[:0], c.Chain...), c.Self)
	if def == nil || def.System {
		return 0, actor.AgentNotFound(target.Agent)
	}
	if r := ValidateCallContext(l, chain, target, def); r != nil {
		return 0, r
	}
	left := timeLeft(l, c.Left, asked)
	if left < LeftMin {
		return 0, &actor.Refusal{Reason: actor.Deadline, Chain: c.ChainOf(), Operation: "invoke " + target.String(), Timeout: left,
			Detail: "timeout: less than 1 ms is left for a call to " + target.String()}
	}
	if c.Outstanding >= l.AgentConcurrentCallsMax {
		return 0, actor.RefuseBusy(actor.ScopeCaller, answerWait, "%s has %d calls outstanding, at most %d allowed: wait for an answer first",
			c.Self, c.Outstanding, l.AgentConcurrentCallsMax)
	}
	if c.Budget == 0 {
		return 0, actor.Refuse(actor.Budget, "the caller has used its share of the %d calls that the tree of its run may make (calls_per_tree_max)", l.CallsPerTreeMax)
	}
	return left, nil
}

// ValidateCallContext performs two checks of Route: depth, then cycle. The argument
// chain holds the callers of the call to target, oldest first.
func ValidateCallContext(l Limits, chain []actor.ID, target actor.ID, def *actor.Definition) *actor.Refusal {
	// The limit applies to the depth of the caller: A→B→C→D→E→F is permitted, F→G is not.
	if len(chain)-1 >= l.AgentCallDepthMax {
		return actor.RefuseDepth(slices.Clone(chain), target, l.AgentCallDepthMax)
	}
	byActor := def != nil && def.Recursion == actor.ByActor
	for _, above := range chain {
		if byActor && above == target || !byActor && above.Tenant == target.Tenant && above.Agent == target.Agent {
			return actor.RefuseCycle(slices.Clone(chain), target)
		}
	}
	return nil
}

func timeLeft(l Limits, left, asked actor.Duration) actor.Duration {
	if asked == 0 {
		asked = l.AgentCallTimeoutDefault
	}
	return min(asked, l.AgentCallTimeoutMax, left)
}

// Share returns the budget that each of n calls of one action receives. Each call
// first costs 1. The rest of the budget is divided into n+1 equal shares: one for each
// call and one for the caller. The calls of a tree therefore never exceed the budget of
// its root. A call may find its share used up while another part of the tree has calls
// left. A call without an answer returns nothing.
func Share(left uint32, n int) uint32 {
	if uint32(n) >= left {
		return 0
	}
	return (left - uint32(n)) / uint32(n+1)
}
