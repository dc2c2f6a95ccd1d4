// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/specs"
)

// observe records the events of one step in the log, the statistics, the observers
// and the specs.
func (w *Simulation) observe(events ...history.Event) {
	for i := range events {
		e := &events[i]
		w.log.event(e)
		w.Stats.countEvent(e)
		if e.Kind == history.Start {
			w.recordTurnStart(e)
		}
		w.countLoadEffect(e)
		w.checkAsk(e)
		w.detached.event(e)
		w.cancels.event(e)
		w.repeated.event(e)
		w.moveBetweenLaps(e)
		if w.rule != nil {
			if spec := w.rule(w.now.Sub(Origin), e); spec != "" {
				w.failAt(e, spec, e.String())
			}
		}
		for _, o := range w.observers {
			o.event(w.now, e)
		}
	}
	w.checker.SetGlobalTime(w.now, w.undisturbedSince())
	if v := w.checker.Observe(uint64(w.Stats.Steps), events); v != nil {
		w.failAt(&v.Event, v.Spec, v.Detail+"\n  "+v.Event.String())
	}
}

// failAt is like fail, for a violation that an event revealed.
func (w *Simulation) failAt(e *history.Event, spec, detail string) {
	if w.violation == nil {
		w.fail(spec, detail)
		w.violation.Event = e.String()
	}
}

// observeReports passes the run events that a step publishes to the specs. A run that
// publishes nothing needs no report.
func (w *Simulation) observeReports(c *cell, ready *runtime.Ready) {
	clamped, limits := 0, specs.Limits{AgentCallTimeoutMax: w.plan.Limits.AgentCallTimeoutMax, WaitTimeoutMax: w.plan.Limits.WaitTimeoutMax}
	for i := range ready.Events {
		if e := &ready.Events[i]; e.Kind == history.Ask && limits.Clamps(e) && w.eventJudge.isSilent(c, e.Parent) {
			clamped++
		}
	}
	for i := range ready.Effects {
		if p, ok := ready.Effects[i].Op.(runtime.Publish); ok && runs.TypeOf(p.Event.Body) == runs.TimeoutClamped {
			clamped++
		}
	}
	if v := w.checker.ObserveReports(clamped); v != nil {
		w.fail(v.Spec, v.Detail)
	}
}

// emit records a single event that belongs to no step.
func (w *Simulation) emit(e history.Event) {
	w.emitBuf[0] = e
	w.observe(w.emitBuf[:]...)
}

// emitPerform records an effect that is visible outside the node.
func (w *Simulation) emitPerform(h *gatedEffect, what, why string, call actor.CallID, status actor.Status, reason actor.Reason) {
	n := h.cell.n
	w.recordExternalEffect(what, call)
	if isWork(h.effect.Op) {
		w.latestAttempts[attemptKey{n.index, n.process, h.effect.ID}] = h.effect.Attempt
	}
	e := history.Event{Kind: history.Perform, At: n.clock.now(w.now), From: h.cell.self, Call: call, What: what, Why: why,
		Step: h.effect.ID.Step, Index: h.effect.ID.Index, Attempt: h.effect.Attempt, Status: status, Reason: reason,
		Pos: uint64(h.pos), Synced: uint64(n.log.durable()), Wrote: h.entryCount}
	if op, ok := h.effect.Op.(runtime.Respond); ok {
		e.Digest = history.OutcomeDigest(op.Reply.Parts, op.Reply.Warnings)
	}
	w.emit(e)
}

// attemptKey identifies an effect as performed by one process.
type attemptKey struct {
	node    int
	process uint64
	effect  actor.EffectID
}

// checkAnsweredBy checks that an answer is not that of a former attempt of its effect.
func (w *Simulation) checkAnsweredBy(n *node, in runtime.Input, events []history.Event) {
	o, ok := in.(runtime.Outcome)
	if !ok || w.latestAttempts[attemptKey{n.index, n.process, o.ID}] <= o.Attempt {
		return
	}
	for i := range events {
		if e := &events[i]; e.Kind == history.Answer && e.Parent == o.ID.Run && e.Step == o.ID.Step && e.Index == o.ID.Index {
			w.fail(specs.EffectOncePerAttempt, fmt.Sprintf("%s takes the outcome of attempt %d of effect %d.%d of run %s after a later attempt has begun", e.Actor, o.Attempt, o.ID.Step, o.ID.Index, o.ID.Run))
		}
	}
}

// afterStep runs the checks and the planned crash that follow a step.
func (w *Simulation) afterStep(n *node) {
	if w.Stats.Steps%compareEvery == 0 {
		w.compareStates()
	}
	if w.startCrashes.afterStep(n) {
		w.endProcess(NodeCrash, n, func() { w.crash(n, "crash") }, "%s crashes", n.id)
	}
	if n.crashInSteps > 0 {
		if n.crashInSteps--; n.crashInSteps == 0 && n.up {
			w.endProcess(NodeCrash, n, func() { w.crash(n, "crash") }, "%s crashes", n.id)
		}
	}
}

func (w *Simulation) compareStates() {
	for _, n := range w.nodes {
		if !n.up || !n.leaseValid() { // until a node notices the loss of its lease, it holds shards that another node owns
			continue
		}
		for _, c := range n.cells {
			if c.stopped {
				continue
			}
			state := c.core.State()
			if v := w.checker.Compare(state); v != nil {
				w.fail(v.Spec, v.Detail)
				return
			}
			reported, computed := c.core.Size(), stateSize(&state)
			computed.Remembered, computed.ByLane = reported.Remembered, reported.ByLane // the state lists neither outcomes nor lanes
			byLane := 0
			for _, queued := range reported.ByLane {
				byLane += queued
			}
			if reported != computed || byLane != reported.Queued {
				w.fail(specs.EventsTellTruth, fmt.Sprintf("%s reports the size %+v, but its state has %+v", c.self, reported, computed))
			}
		}
	}
}

// stateSize computes the size of a cell from its state.
func stateSize(s *history.State) runtime.Size {
	size := runtime.Size{Actors: len(s.Actors)}
	for i := range s.Actors {
		size.Queued += len(s.Actors[i].Queue)
		for _, t := range s.Actors[i].Turns {
			size.Outstanding += len(t.Open)
		}
	}
	return size
}
