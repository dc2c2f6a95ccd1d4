// SPDX-License-Identifier: Apache-2.0

package dispatcher

import (
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/mutant"
)

// LeftMin is the least time left with which a call is made.
const LeftMin = time.Millisecond

// Caller is what the checks need to know of who calls.
type Caller struct {
	Self        actor.ID
	Chain       []actor.ID // its ancestors, oldest first, without Self
	Left        actor.Duration
	Outstanding int    // its calls not answered yet
	Budget      uint32 // calls its turn may still make
}

// ChainOf is the chain of a call that this caller makes.
func (c Caller) ChainOf() []actor.ID { return append(slices.Clone(c.Chain), c.Self) }

// Route checks a call to target before it is made, in the order in which
// refusals are promised: target exists, depth, cycle, time left, outstanding
// calls, budget. asked is the time-out the caller names, 0 for the default; the
// call gets that, the configured maximum, or what the caller has left.
func Route(l Limits, c Caller, target actor.ID, def *actor.Definition, asked actor.Duration) (actor.Duration, *actor.Refusal) {
	var room [8]actor.ID // what is refused has a chain of its own
	chain := append(append(room[:0], c.Chain...), c.Self)
	if (def == nil || def.System) && !mutant.On("target-exists-check") {
		return 0, actor.Refuse(actor.NotFound, "no agent is named %s; GET /v1/agents lists those that are", target.Agent)
	}
	if r := ValidateCallContext(l, chain, target, def); r != nil {
		return 0, r
	}
	left := timeLeft(l, c.Left, asked)
	if left < LeftMin {
		return 0, &actor.Refusal{Reason: actor.Deadline, Chain: c.ChainOf(), Operation: "invoke " + target.String(), Timeout: left,
			Detail: "timeout: less than 1 ms is left for a call to " + target.String()}
	}
	if c.Outstanding >= l.AgentConcurrentCallsMax && !mutant.On("outstanding-limit") {
		return 0, actor.RefuseBusy(actor.ScopeCaller, 0, "%s has %d calls outstanding, at most %d allowed: take an answer first",
			c.Self, c.Outstanding, l.AgentConcurrentCallsMax)
	}
	if c.Budget == 0 {
		return 0, actor.Refuse(actor.Budget, "this tree of calls has spent its %d calls", l.CallsPerTreeMax)
	}
	return left, nil
}

// ValidateCallContext is the middle of Route: depth, then cycle. chain holds
// the callers, oldest first.
func ValidateCallContext(l Limits, chain []actor.ID, target actor.ID, def *actor.Definition) *actor.Refusal {
	// The limit is on the depth of the caller: A→B→C→D→E→F stands, F→G does not.
	if len(chain)-1 >= l.AgentCallDepthMax && !mutant.On("depth-check") {
		return actor.RefuseDepth(slices.Clone(chain), target, l.AgentCallDepthMax)
	}
	byActor := def != nil && def.Recursion == actor.ByActor
	for i, above := range chain {
		if i == len(chain)-1 && mutant.On("self-call") || i < len(chain)-1 && mutant.On("cycle-check") {
			continue
		}
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
	if !mutant.On("clamp") {
		asked = min(asked, l.AgentCallTimeoutMax)
	}
	if mutant.On("time-left-shrinks") {
		return asked
	}
	return min(asked, left)
}

// Share is what each of n calls asked in one action takes along of the tree's
// budget, besides the one that each costs.
func Share(left uint32, n int) uint32 {
	if uint32(n) >= left {
		return 0
	}
	return (left - uint32(n)) / uint32(n+1)
}
