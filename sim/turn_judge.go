// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"maps"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/specs"
)

// checkAsk checks an ask of a turn against the limits: the number of steps, the number of
// asks in one action, and the time of an effect, which ends with its turn at the latest.
// An external agent adds calls to its action, which the limits do not count.
func (w *Simulation) checkAsk(e *history.Event) {
	if e.Kind != history.Ask || e.What == "client" {
		return
	}
	l := &w.plan.Limits
	if int(e.Step) == l.StepsPerTurnMax || int(e.Index) == l.AsksPerActionMax-1 {
		w.Stats.Audit.TurnBounded++
	}
	switch {
	case e.What == actor.AskInvoke.String():
		w.invokingRuns[e.Parent] = true
	case int(e.Index) >= l.AsksPerActionMax && !w.invokingRuns[e.Parent]:
		w.fail(TurnBounded, fmt.Sprintf("%s makes ask %d of one action of run %s, at most %d allowed", e.Actor, e.Index+1, e.Parent, l.AsksPerActionMax))
	}
	if int(e.Step) > l.StepsPerTurnMax {
		w.fail(TurnBounded, fmt.Sprintf("%s makes step %d of run %s, at most %d allowed", e.Actor, e.Step, e.Parent, l.StepsPerTurnMax))
	}
	if isEffect(e.What) && e.Why != "approval" && e.Left > e.ParentLeft {
		w.fail(specs.TimeLeftShrinks, fmt.Sprintf("%s gives a %s %v, but run %s has %v left", e.Actor, e.What, e.Left, e.Parent, e.ParentLeft))
	}
}

// activeJudge checks that a cell admits no call for a turn beyond those that it may run of an
// agent at once. It knows the turns that began in each incarnation of a cell.
type activeJudge struct {
	w     *Simulation
	turns map[actor.Address]map[actor.CallID]actor.ID // apart from those that may wait for a person
}

// step checks the calls whose turns begin in the step that admits them: nothing else bounds
// them.
func (j *activeJudge) step(c *cell, events []history.Event) {
	turns := j.turns[c.self]
	if turns == nil {
		turns = map[actor.CallID]actor.ID{}
		j.turns[c.self] = turns
	}
	running := map[actor.CallID]int{} // other turns of the agent when a call was admitted to an empty mailbox
	ended := map[actor.ID]bool{}      // actors of which a turn has ended: the next one may take its place
	for i := range events {
		switch e := &events[i]; e.Kind {
		case history.Admit:
			if e.Count == 1 && !ended[e.Actor] && e.What != history.Delivered { // an outcome is never refused
				running[e.Call] = j.count(turns, e.Actor.Agent)
			}
		case history.Start:
			if limit, n := j.limit(c, e.Actor.Agent), running[e.Call]; n >= limit && !actor.IsSystemAgent(e.Actor.Agent) {
				j.w.fail(TurnBounded, fmt.Sprintf("%s begins turn %s of %s beside %d others of its agent, at most %d allowed in all", c.self, e.Call, e.Actor, n, limit))
			}
			turns[e.Call] = e.Actor
		case history.Reply: // calls that waited for this turn were admitted to the mailbox
			delete(turns, e.Call)
			clear(running)
			ended[e.Actor] = true
		case history.Hold, history.Deactivate:
			maps.DeleteFunc(turns, func(_ actor.CallID, id actor.ID) bool { return id == e.Actor })
		}
	}
}

func (j *activeJudge) count(turns map[actor.CallID]actor.ID, agent string) (n int) {
	for _, id := range turns {
		if id.Agent == agent {
			n++
		}
	}
	return n
}

// limit returns the share of a cell in the turns that its node may run of an agent: of one that
// sets no limit, a quarter more than one principal may have.
func (j *activeJudge) limit(c *cell, agent string) int {
	p := &j.w.plan
	share := func(limit int) int { return max(1, (limit+p.Cells[c.n.index]-1-int(c.index))/p.Cells[c.n.index]) }
	if i := slices.IndexFunc(p.Agents, func(d actor.Definition) bool { return d.Name == agent }); i >= 0 && p.Agents[i].MaxActive > 0 {
		return share(p.Agents[i].MaxActive)
	}
	each := share(p.Limits.MaxActivePerAgent)
	return each + each/4
}

func isEffect(what string) bool {
	return slices.ContainsFunc([]actor.AskKind{actor.AskTool, actor.AskWork, actor.AskModel, actor.AskInvoke}, func(k actor.AskKind) bool { return k.String() == what })
}

// checkAborted checks that a step leaves no exchange in progress for a run that it has
// ended, or for an ask that it has let expire.
func (n *node) checkAborted(events []history.Event) {
	for i := range events {
		e := &events[i]
		for _, x := range n.upstreams.exchanges {
			ended := e.Kind == history.Reply && x.id.Run == e.Call
			expired := e.Kind == history.Expire && isEffect(e.What) && x.id.Run == e.Parent && x.id.Step == e.Step && x.id.Index == e.Index
			if x.awaited && n.cells[x.cell].self == e.From && !x.answered() && (ended || expired) {
				n.w.fail(specs.Structured, fmt.Sprintf("%s ends or lets expire effect %d.%d of run %s, and does not abort its exchange", e.Actor, x.id.Step, x.id.Index, x.id.Run))
			}
		}
	}
}

// answered reports whether the cell processes the outcome of the exchange, which then is
// no longer in progress.
func (x *exchange) answered() bool {
	return x.done || x.machine == nil || x.judge.ended
}
