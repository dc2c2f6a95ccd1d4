// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
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
	if isEffect(e.What) && e.Left > e.ParentLeft {
		w.fail(specs.TimeLeftShrinks, fmt.Sprintf("%s gives a %s %v, but run %s has %v left", e.Actor, e.What, e.Left, e.Parent, e.ParentLeft))
	}
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
