// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runtime"
)

// durabilityJudge checks the durability of each run. An idle actor admits a call with the
// durability of its agent, as its cell knows it. A change of the agent affects no open
// run: a journaled run ends as one.
type durabilityJudge struct {
	w        *Simulation
	agents   map[*cell]map[string]actor.Durability // by name, as each cell knows them
	open     map[*cell]map[actor.CallID]openRun    // runs that each cell has admitted
	journals map[actor.ID]bool                     // actors with a journal
}

// openRun is an open run in one incarnation of a cell.
type openRun struct {
	actor   actor.ID
	durable bool
}

func newDurabilityJudge(w *Simulation) *durabilityJudge {
	return &durabilityJudge{w, map[*cell]map[string]actor.Durability{}, map[*cell]map[actor.CallID]openRun{}, map[actor.ID]bool{}}
}

// step checks one step.
func (j *durabilityJudge) step(c *cell, in runtime.Input, events []history.Event) {
	if in, ok := in.(runtime.Agents); ok {
		j.change(c, in)
	}
	for i := range events {
		switch e := &events[i]; e.Kind {
		case history.Admit:
			j.admit(c, e)
		case history.Reply:
			r, ok := j.open[c][e.Call]
			if delete(j.open[c], e.Call); (r.durable || !ok) && !e.Durable {
				j.fail(c, "ends run %s of %s without an entry, but admitted it with one", e.Call, e.Actor)
			}
		case history.Deactivate:
			for id, r := range j.open[c] {
				if r.actor == e.Actor {
					delete(j.open[c], id)
				}
			}
		}
	}
}

// change records the agents that a cell receives.
func (j *durabilityJudge) change(c *cell, in runtime.Agents) {
	before := j.agents[c]
	now := map[string]actor.Durability{}
	for i := range in.Definitions {
		now[in.Definitions[i].Name] = in.Definitions[i].Durability
	}
	j.agents[c] = now
	for _, r := range j.open[c] {
		was, known := before[r.actor.Agent]
		if is, ok := now[r.actor.Agent]; known && ok && is != was {
			j.w.Stats.Audit.DurabilityKept++
		}
	}
}

func (j *durabilityJudge) admit(c *cell, e *history.Event) {
	volatile := j.agents[c][e.Actor.Agent] == actor.Volatile
	switch {
	case !volatile && !e.Durable && !j.busy(c, e.Actor):
		j.fail(c, "admits %s for the idle %s without a journal, but the agent is journaled", e.Call, e.Actor)
	case volatile && e.Durable && !j.journals[e.Actor]:
		j.fail(c, "admits %s for %s with a journal, but the agent is volatile and the actor had none", e.Call, e.Actor)
	}
	if e.Durable {
		j.journals[e.Actor] = true
	}
	if j.open[c] == nil {
		j.open[c] = map[actor.CallID]openRun{}
	}
	j.open[c][e.Call] = openRun{e.Actor, e.Durable}
}

// busy reports whether an actor has open runs in a cell.
func (j *durabilityJudge) busy(c *cell, id actor.ID) bool {
	for _, r := range j.open[c] {
		if r.actor == id {
			return true
		}
	}
	return false
}

func (j *durabilityJudge) fail(c *cell, format string, args ...any) {
	j.w.fail(DurabilityKept, fmt.Sprintf("%s ", c.self)+fmt.Sprintf(format, args...))
}
