// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"maps"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/store"
)

// activeTurns are the turns of each agent that have begun in this cell. Each session has an
// actor of its own, so the mailboxes alone would not bound the work of an agent.
type activeTurns map[string]*agentTurns

// agentTurns are those of one agent, in no order.
type agentTurns struct{ all []*turn }

// activeRetainedMax is the number of turns of an agent for which memory is always retained.
const activeRetainedMax = 64

func (a activeTurns) add(t *turn) {
	of := a[t.act.id.Agent]
	if of == nil {
		of = &agentTurns{}
		a[t.act.id.Agent] = of
	}
	t.active, t.activeAt = of, len(of.all)
	of.all = append(of.all, t)
}

// of returns the turns of an agent.
func (a activeTurns) of(agent string) []*turn {
	if of := a[agent]; of != nil {
		return of.all
	}
	return nil
}

func (a activeTurns) remove(t *turn) {
	of := t.active
	if of == nil {
		return
	}
	t.active = nil
	all := of.all
	last := len(all) - 1
	all[t.activeAt] = all[last]
	all[t.activeAt].activeAt = t.activeAt
	all[last] = nil
	if of.all = all[:last]; last == 0 && cap(all) > activeRetainedMax {
		delete(a, t.act.id.Agent)
	}
}

// busy returns the number of turns of an agent that do not wait for a person.
func (a activeTurns) busy(agent string, now actor.Time) int {
	return a.count(agent, now, func(*turn) bool { return true })
}

func (a activeTurns) count(agent string, now actor.Time, counts func(*turn) bool) int {
	n := 0
	for _, t := range a.of(agent) {
		if !t.run.Clock.Held(now) && counts(t) {
			n++
		}
	}
	return n
}

// waiting returns the number of tool calls of a tenant that wait for a person.
func (a activeTurns) waiting(tenant string) (n int) {
	for _, agent := range slices.Sorted(maps.Keys(a)) {
		for _, t := range a.of(agent) {
			if t.act.id.Tenant != tenant {
				continue
			}
			for i := range t.run.Last() {
				if t.run.Last()[i].Waits() {
					n++
				}
			}
		}
	}
	return n
}

// checkActive returns a refusal if the agent already runs as many turns as this cell may
// run at once: its share of the limit of the node. An agent's own limit is for all its turns, of which
// one principal has at most three quarters. The default is for those of one principal, and all
// principals have a quarter more. Otherwise the messages of one could refuse those of all others. The
// turns of runs that the message interrupts do not count.
func (a admission) checkActive(call *actor.Call, def *actor.Definition, interrupted []*store.Run) *actor.Refusal {
	c, act := a.cell, a.act
	limit, divided := c.limits.MaxActivePerAgent, def.MaxActive == 0
	if !divided {
		limit = def.MaxActive
	}
	share := c.share(limit)
	each, all := share, share+share/4
	if !divided {
		each, all = max(1, share*3/4), share
	}
	if def.System || len(c.active.of(def.Name)) < each {
		return nil
	}
	own := func(t *turn) bool { return t.act.id.Tenant == act.id.Tenant && t.run.Call.Principal == call.Principal }
	n, owned := c.active.busy(def.Name, c.now), c.active.count(def.Name, c.now, own)
	for _, run := range interrupted {
		if t := act.turn(run.Call.ID); t != nil && !run.Clock.Held(c.now) {
			n--
			if own(t) {
				owned--
			}
		}
	}
	if owned >= each && n < all {
		name := "max_active"
		if divided {
			name = "max_active_per_agent"
		}
		return actor.RefuseBusy(actor.ScopeCallee, c.limits.ResendAfter, "%s already runs %d turns of this user, which is the share of one user in this cell: %s is %d", def.Name, owned, name, limit)
	}
	if n >= all {
		share := ""
		if c.cells > 1 {
			share = fmt.Sprintf(", which is the share of one of the server's %d cells", c.cells)
		}
		return actor.RefuseBusy(actor.ScopeCallee, c.limits.ResendAfter, "%s already runs %d turns%s, and its max_active is %d", def.Name, n, share, limit)
	}
	return nil
}

// share returns the turns of a limit of the node that this cell may run. The shares of all
// cells add up to the limit, or to one turn each if the limit is lower: a cell without a share
// could serve none of its sessions.
func (v *env) share(limit int) int {
	cells := max(1, v.cells)
	share := limit / cells
	if int(v.self.Cell) < limit%cells {
		share++
	}
	return max(1, share)
}

// applyBusyPolicy returns the open runs of clients that the message of a client interrupts,
// or a refusal if it wants neither to interrupt them nor to wait.
func (a admission) applyBusyPolicy(call *actor.Call) (interrupted []*store.Run, r *actor.Refusal) {
	act := a.act
	policy := call.Busy()
	if policy == actor.BusyQueue || !call.IsRoot() {
		return nil, nil
	}
	for _, run := range act.journal.Runs {
		if !run.Call.IsRoot() || isDelivered(&run.Call) && act.turn(run.Call.ID) == nil {
			continue
		}
		if policy == actor.BusyReject {
			return nil, &actor.Refusal{Reason: actor.Rejected, Field: actor.BusyField,
				Detail: "session " + act.id.Key + " has the open run " + run.Call.ID.String() + " of " + act.id.Agent + `: wait for its end, or send if_busy "queue" or "interrupt"`}
		}
		interrupted = append(interrupted, run)
	}
	return interrupted, nil
}
