// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/internal/failpoint"
	"github.com/troupe-run/troupe/internal/mutant"
	"github.com/troupe-run/troupe/store"
)

// Waits that close a ring. A call waits for the turn that holds its callee, or
// is that turn; a turn waits for every call it made. Two trees of calls, or two
// branches of one, may so wait for each other, which no chain shows. A ring can
// close only where a call queues behind a turn that waits itself. There a probe
// sets out along the waits. Home again it knows a ring; a second lap confirms
// that each wait still stands, and ends where the newest queued call of the ring
// is: that call is refused, and has never run. Promised is that all the waits
// it is told of stood together at one instant while it was queued.
//
// Cells keep nothing for this. A wait that is gone never comes back under the
// same call, turn and epoch, so what lap one saw and lap two sees again stood
// all the while between. The protocol and its proof: tla/Waits.tla.

const (
	// reprobeInterval is how often a call that still waits asks again: for lost
	// probes and cells that crashed.
	reprobeInterval = time.Second
	// localProbesPerStepMax bounds what one step looks at inside its cell.
	localProbesPerStepMax = 4096
)

// localProbe is one on its way inside the cell.
type localProbe struct {
	to  actor.ID
	msg actor.Probe
}

// holders is the turns behind which calls queue at this actor: one, or several
// if their agent gave its turn back while it waited when they began. Who does so
// holds nobody up.
func holders(act *activation) []*turn {
	if !act.serial {
		return nil
	}
	return act.turns
}

// waitedTurns is the turns that a call waits for: its own, or all in front of it.
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

// startProbe has a queued call ask what the turn in front of it waits for. A client's
// call need not: nobody's turn waits for it.
func (c *Cell) startProbe(act *activation, run *store.Run) {
	if run.Call.IsRoot() || mutant.On("second-in-queue-does-not-probe") && act.mailbox.Count() > 1 {
		return
	}
	c.scheduleReprobe(act)
	c.forwardProbe(act, run, actor.Probe{From: run.Call.ID, Branches: actor.BranchesMax})
}

// forwardProbe sends a probe on from a call, along each turn that it waits for.
func (c *Cell) forwardProbe(act *activation, run *store.Run, p actor.Probe) {
	turns := waitedTurns(act, run)
	p.Branches /= max(1, uint32(len(turns)))
	for _, t := range turns {
		c.forwardProbeVia(act, run, t, p)
	}
}

// forwardProbeVia sends a probe on to each call that a turn waits for, for which a call
// waits. It ends where that turn waits for none, or has been met before.
func (c *Cell) forwardProbeVia(act *activation, run *store.Run, t *turn, p actor.Probe) {
	if len(p.Hops) == actor.HopsMax || slices.ContainsFunc(p.Hops, func(h actor.Hop) bool { return h.Turn == t.run.Call.ID }) {
		return
	}
	p.Hops = append(slices.Clone(p.Hops), actor.Hop{Call: run.Call.ID, Actor: act.id, Turn: t.run.Call.ID, Epoch: act.epoch, Stamp: run.Call.Stamp})
	open := c.selectBranches(openCalls(t), p.Branches)
	p.Branches /= max(1, uint32(len(open)))
	for i, a := range open {
		if i > 0 && mutant.On("one-branch-only") {
			return
		}
		p.To = a.Call
		c.sendProbe(act, a.To, p)
	}
}

// selectBranches is which of the calls that a turn waits for a probe follows: all, or as
// many as it may; then others each time, so that asking again finds the rest.
// Without a bound a dozen agents who all ask all others at once have millions.
func (c *Cell) selectBranches(open []*store.Asked, most uint32) []*store.Asked {
	if uint64(len(open)) <= uint64(most) {
		return open
	}
	first := int(c.random() % uint64(len(open)))
	return slices.Concat(open[first:], open[:first])[:most]
}

// sendProbe passes a probe on: inside the cell within this very step.
func (c *Cell) sendProbe(act *activation, to actor.ID, p actor.Probe) {
	if o, ok := c.ownerOf(to); ok && c.owns(o) && c.localProbesSent < localProbesPerStepMax {
		c.localProbesSent++
		c.localProbes = append(c.localProbes, localProbe{to, p})
		return
	}
	c.send(actor.EffectID{}, 0, act.id, to, act.durable, act.durable, p)
}

// handleLocalProbe takes the next probe that stays inside the cell.
func (c *Cell) handleLocalProbe() {
	p := c.localProbes[0]
	if c.localProbes = c.localProbes[1:]; len(c.localProbes) == 0 {
		c.localProbes = nil
	}
	if act := c.actors.find(p.to); act != nil && act.loaded {
		c.handleProbe(act, p.msg)
	}
}

// handleProbe looks at the wait that a probe has come to. Where there is none any
// more the probe ends: the ring, if there was one, is broken.
func (c *Cell) handleProbe(act *activation, p actor.Probe) {
	if p.Confirm > 0 {
		c.confirmWait(act, p)
		return
	}
	run := act.journal.Run(p.To)
	if run == nil {
		return
	}
	if p.To == p.From {
		c.probeReturned(act, p)
		return
	}
	c.emit(history.Event{Kind: history.Probe, Actor: act.id, Epoch: act.epoch, Call: p.To, N: uint64(len(p.Hops))})
	c.forwardProbe(act, run, p)
}

// probeReturned begins lap two: turned so that the newest queued call comes last.
func (c *Cell) probeReturned(act *activation, p actor.Probe) {
	victim := 0
	for i, h := range p.Hops {
		if v := p.Hops[victim]; h.Queued() && (!v.Queued() || newer(h, v)) {
			victim = i
		}
	}
	if mutant.On("prober-is-victim") {
		victim = 0
	}
	ring := slices.Concat(p.Hops[victim+1:], p.Hops[:victim+1])
	c.emit(history.Event{Kind: history.ProbeHome, Actor: act.id, Epoch: act.epoch, Call: p.From, N: uint64(len(ring))})
	p.Hops, p.Confirm = ring, 1
	if mutant.On("no-second-lap") {
		p.Confirm = uint32(len(ring))
	}
	c.sendProbe(act, ring[p.Confirm-1].Actor, p)
}

func newer(a, b actor.Hop) bool {
	return cmp.Or(cmp.Compare(a.Stamp, b.Stamp), a.Call.Compare(b.Call)) > 0
}

// confirmWait checks one wait of a ring again; the last is the victim's.
func (c *Cell) confirmWait(act *activation, p actor.Probe) {
	n := int(p.Confirm)
	h, next := p.Hops[n-1], p.Hops[n%len(p.Hops)]
	run := act.journal.Run(h.Call)
	if run == nil || act.epoch != h.Epoch {
		return
	}
	stands := func(t *turn) bool {
		return t.run.Call.ID == h.Turn && slices.ContainsFunc(openCalls(t), func(a *store.Asked) bool { return a.Call == next.Call })
	}
	if !slices.ContainsFunc(waitedTurns(act, run), stands) {
		return
	}
	c.emit(history.Event{Kind: history.Confirm, Actor: act.id, Epoch: act.epoch, Call: h.Call, N: uint64(n)})
	if n < len(p.Hops) {
		p.Confirm++
		c.sendProbe(act, next.Actor, p)
		return
	}
	if !h.Queued() {
		return
	}
	c.emit(history.Event{Kind: history.RefuseWaitCycle, Actor: act.id, Epoch: act.epoch, Call: h.Call, Parent: run.Call.Parent, Root: run.Call.Root, Ring: p.Hops})
	c.stopRun(act, run, actor.RefuseWaitCycle(p.Hops))
}

// needsReprobe tells whether calls wait here behind a turn that waits for calls.
func (c *Cell) needsReprobe(act *activation) bool {
	waits := func(t *turn) bool { return len(openCalls(t)) > 0 }
	return act.reprobeAt != 0 && act.mailbox.Count() > 0 && slices.ContainsFunc(holders(act), waits) && !mutant.On("no-re-probe")
}

func (c *Cell) scheduleReprobe(act *activation) {
	if act.reprobeAt <= c.now {
		act.reprobeAt = c.now.Add(reprobeInterval)
		if c.failpoints.On(failpoint.ProbeAgainNow) {
			act.reprobeAt = c.now.Add(time.Millisecond)
		}
	}
}

// reprobe has the calls that still wait ask again, when it is time.
func (c *Cell) reprobe(act *activation) {
	if c.needsReprobe(act) && c.now >= act.reprobeAt {
		c.reprobeQueued(act)
	}
}

// reprobeQueued has the calls that still wait ask again: those whose probe may be
// lost, and those that come back from the journal, whose ring may have closed
// before.
func (c *Cell) reprobeQueued(act *activation) {
	act.reprobeAt = 0
	if !act.serial || mutant.On("no-re-probe") {
		return
	}
	for _, q := range act.mailbox.Calls() {
		if run := act.journal.Run(q.Call); !run.Call.IsRoot() {
			c.scheduleReprobe(act)
			c.emit(history.Event{Kind: history.Reprobe, Actor: act.id, Epoch: act.epoch, Call: q.Call})
			c.forwardProbe(act, run, actor.Probe{From: q.Call, Branches: actor.BranchesMax})
		}
	}
}
