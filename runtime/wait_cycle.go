// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/internal/failpoint"
	"github.com/troupe-run/troupe/store"
)

// Wait cycles. A call waits for the turn that holds its callee, or for its own turn
// once it runs. A turn waits for every call it made. Two call trees, or two
// branches of one tree, can wait for each other in this way. No call chain shows
// such a cycle, so the check of chains cannot detect it.
//
// A cycle can close only where a call is queued behind a turn that itself waits for
// calls. There the cell sends a probe along the waits. A probe that returns to its
// call has found a cycle. The probe then makes a second lap, which confirms that
// each wait still exists. The second lap ends at the newest queued call of the
// cycle. That call has never run, so it is refused. The guarantee: all waits listed
// in the refusal existed together at one instant while the call was queued.
//
// A restored call sends a probe too, queued or not: a probe that reaches an actor
// before it is loaded is dropped.
//
// Cells keep no state for the detection. A wait that has ended never reappears with
// the same call, turn and epoch. A wait seen in both laps has therefore existed all
// the time between them. The protocol and its proof are in tla/Waits.tla.

const (
	// reprobeInterval is the interval at which a call that still waits sends new
	// probes. The new probes replace lost probes, including those lost when a cell
	// crashed.
	reprobeInterval = time.Second
	// localProbesPerStepMax is the maximum number of probes handled inside the cell
	// in one step. Further probes are sent as messages.
	localProbesPerStepMax = 4096
)

// waitCycle is an actor's part in the search for calls that wait for each other.
type waitCycle struct {
	cell *Cell
	act  *activation
}

// localProbe is a probe for an actor of this cell.
type localProbe struct {
	to  actor.ID
	msg actor.Probe
}

// holders returns the turns that calls queued at this actor wait for. A serial
// actor has one holder, or several if its turns began while the agent was
// interleaved. An interleaved actor has no holder, because its waiting turns block
// no other call.
func holders(act *activation) []*turn {
	if !act.serial {
		return nil
	}
	return act.turns
}

// waitedTurns returns the turns that a call waits for: its own, or all holders of
// its actor.
func waitedTurns(act *activation, run *store.Run) []*turn {
	if t := act.turn(run.Call.ID); t != nil {
		return []*turn{t}
	}
	return holders(act)
}

func openCalls(t *turn) []*store.Asked {
	var open []*store.Asked
	for i := range t.run.Last() {
		if a := &t.run.Last()[i]; a.Open() && a.IsCall() {
			open = append(open, a)
		}
	}
	return open
}

// startProbe sends a probe from a queued call to the calls that its holders wait
// for. A client's call needs no probe, because no turn waits for that call.
func (s waitCycle) startProbe(run *store.Run) {
	if run.Call.IsRoot() {
		return
	}
	s.scheduleReprobe()
	s.forwardProbe(run, actor.Probe{From: run.Call.ID, Branches: actor.BranchesMax})
}

// forwardProbe forwards a probe from a call through each turn that the call waits
// for.
func (s waitCycle) forwardProbe(run *store.Run, p actor.Probe) {
	act := s.act
	turns := waitedTurns(act, run)
	p.Branches /= max(1, uint32(len(turns)))
	for _, t := range turns {
		s.forwardProbeVia(run, t, p)
	}
}

// forwardProbeVia forwards a probe to each open call of a turn that the call waits
// for. The probe ends in three cases: the turn waits for no call, the probe has
// visited the turn before, or it has made HopsMax hops.
func (s waitCycle) forwardProbeVia(run *store.Run, t *turn, p actor.Probe) {
	c, act := s.cell, s.act
	if len(p.Hops) == actor.HopsMax || slices.ContainsFunc(p.Hops, func(h actor.Hop) bool { return h.Turn == t.run.Call.ID }) {
		return
	}
	p.Hops = append(slices.Clone(p.Hops), actor.Hop{Call: run.Call.ID, Actor: act.id, Turn: t.run.Call.ID, Epoch: act.epoch, Stamp: run.Call.Stamp})
	open := c.selectBranches(openCalls(t), p.Branches)
	p.Branches /= max(1, uint32(len(open)))
	for _, a := range open {
		p.To = a.Call
		s.sendProbe(a.To, p)
	}
}

// selectBranches returns the open calls that a probe follows: at most as many as
// the argument limit. If not all calls can be returned, it starts at a random call,
// so that later probes reach the other calls. Without the limit, a dozen agents
// that all call each other at once would cause millions of probes.
func (v *env) selectBranches(open []*store.Asked, limit uint32) []*store.Asked {
	if uint64(len(open)) <= uint64(limit) {
		return open
	}
	first := int(v.random() % uint64(len(open)))
	return slices.Concat(open[first:], open[:first])[:limit]
}

// sendProbe sends a probe to an actor. A probe to an actor of this cell is handled
// in the same step.
func (s waitCycle) sendProbe(to actor.ID, p actor.Probe) {
	c, act := s.cell, s.act
	if o, ok := c.ownerOf(to); ok && c.owns(o) && c.localProbesSent < localProbesPerStepMax {
		c.localProbesSent++
		c.localProbes = append(c.localProbes, localProbe{to, p})
		return
	}
	c.send(actor.EffectID{}, 0, act.id, to, act.durable, act.durable, p)
}

// handleLocalProbe handles the next probe inside the cell.
func (c *Cell) handleLocalProbe() {
	p := c.localProbes[0]
	if c.localProbes = c.localProbes[1:]; len(c.localProbes) == 0 {
		c.localProbes = nil
	}
	if act := c.actors.find(p.to); act != nil && act.loaded {
		waitCycle{c, act}.handleProbe(p.msg)
	}
}

// handleProbe handles a probe that has reached a call. If the call no longer waits,
// the probe ends: a cycle through this call would already be broken.
func (s waitCycle) handleProbe(p actor.Probe) {
	c, act := s.cell, s.act
	if p.Confirm > 0 {
		s.confirmWait(p)
		return
	}
	run := act.journal.Run(p.To)
	if run == nil {
		return
	}
	if p.To == p.From {
		s.probeReturned(p)
		return
	}
	c.emit(history.Event{Kind: history.Probe, Actor: act.id, Epoch: act.epoch, Call: p.To, N: uint64(len(p.Hops))})
	s.forwardProbe(run, p)
}

// probeReturned starts the second lap. It rotates the cycle so that the newest
// queued call, the victim, is last.
func (s waitCycle) probeReturned(p actor.Probe) {
	c, act := s.cell, s.act
	victim := 0
	for i, h := range p.Hops {
		if v := p.Hops[victim]; h.Queued() && (!v.Queued() || newer(h, v)) {
			victim = i
		}
	}
	cycle := slices.Concat(p.Hops[victim+1:], p.Hops[:victim+1])
	c.emit(history.Event{Kind: history.ProbeHome, Actor: act.id, Epoch: act.epoch, Call: p.From, N: uint64(len(cycle))})
	p.Hops, p.Confirm = cycle, 1
	s.sendProbe(cycle[0].Actor, p)
}

func newer(a, b actor.Hop) bool {
	return cmp.Or(cmp.Compare(a.Stamp, b.Stamp), a.Call.Compare(b.Call)) > 0
}

// confirmWait confirms one wait of the cycle. The last wait is that of the victim.
// Once the last wait is confirmed, the victim is refused.
func (s waitCycle) confirmWait(p actor.Probe) {
	c, act := s.cell, s.act
	n := int(p.Confirm)
	h, next := p.Hops[n-1], p.Hops[n%len(p.Hops)]
	run := act.journal.Run(h.Call)
	if run == nil || act.epoch != h.Epoch {
		return
	}
	confirmed := func(t *turn) bool {
		return t.run.Call.ID == h.Turn && slices.ContainsFunc(openCalls(t), func(a *store.Asked) bool { return a.Call == next.Call })
	}
	if !slices.ContainsFunc(waitedTurns(act, run), confirmed) {
		return
	}
	c.emit(history.Event{Kind: history.Confirm, Actor: act.id, Epoch: act.epoch, Call: h.Call, N: uint64(n)})
	if n < len(p.Hops) {
		p.Confirm++
		s.sendProbe(next.Actor, p)
		return
	}
	if !h.Queued() {
		return
	}
	c.emit(history.Event{Kind: history.RefuseWaitCycle, Actor: act.id, Epoch: act.epoch, Call: h.Call, Parent: run.Call.Parent, Root: run.Call.Root, Ring: p.Hops})
	r := actor.RefuseWaitCycle(p.Hops, cycleRetryAfter)
	c.addJitter(r)
	act.stopRun(c, run, r)
}

// cycleRetryAfter is the retry delay of a call refused in a wait cycle. The refusal has
// broken the cycle, so the other turns of the cycle proceed at once.
const cycleRetryAfter = 500 * time.Millisecond

// needsReprobe reports whether calls are queued here behind a turn that waits for
// calls.
func (s waitCycle) needsReprobe() bool {
	act := s.act
	waiting := func(t *turn) bool { return len(openCalls(t)) > 0 }
	return act.reprobeAt != 0 && act.mailbox.Count() > 0 && slices.ContainsFunc(holders(act), waiting)
}

func (s waitCycle) scheduleReprobe() {
	c, act := s.cell, s.act
	if act.reprobeAt <= c.now {
		act.reprobeAt = c.now.Add(reprobeInterval)
		if c.failpoints.On(failpoint.ProbeAgainNow) {
			act.reprobeAt = c.now.Add(time.Millisecond)
		}
	}
}

// queuedCalls returns the queued calls of turns.
func queuedCalls(act *activation) (calls []*store.Run) {
	if !act.serial {
		return nil
	}
	for _, q := range act.mailbox.Calls() {
		if run := act.journal.Run(q.Call); !run.Call.IsRoot() {
			calls = append(calls, run)
		}
	}
	return calls
}

// restoredCalls returns the calls of a restored actor that send probes: the queued
// calls, and those whose turns wait for calls. A cycle may have closed before the
// restart, and probes that arrived during the load were dropped. Of the actors of a
// cycle, the one that is loaded last thus detects it.
func restoredCalls(act *activation) []*store.Run {
	calls := queuedCalls(act)
	for _, t := range act.turns {
		if !t.run.Call.IsRoot() && len(openCalls(t)) > 0 {
			calls = append(calls, t.run)
		}
	}
	return calls
}

// reprobe sends new probes for queued calls if the time for new probes has come.
func (s waitCycle) reprobe() {
	c, act := s.cell, s.act
	if s.needsReprobe() && c.now >= act.reprobeAt {
		s.probeAgain(queuedCalls(act))
	}
}

// probeAgain sends new probes for calls. Their last probes may be lost.
func (s waitCycle) probeAgain(calls []*store.Run) {
	c, act := s.cell, s.act
	act.reprobeAt = 0
	for _, run := range calls {
		s.scheduleReprobe()
		c.emit(history.Event{Kind: history.Reprobe, Actor: act.id, Epoch: act.epoch, Call: run.Call.ID})
		s.forwardProbe(run, actor.Probe{From: run.Call.ID, Branches: actor.BranchesMax})
	}
}
