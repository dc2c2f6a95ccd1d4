// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/upstream"
)

// injectAll asks for each fault that comes by the clock.
func (w *Simulation) injectAll() {
	if w.recovering {
		return
	}
	w.faultRounds++
	w.setCause(topicWorld + w.faultRounds)
	w.after(w.plan.FaultInterval, w.injectAll)
	if w.plan.Steps > 0 {
		w.correctClocks()
	}
	for _, f := range Faults() {
		if faultTable[f].clocked && w.faultFires(f) {
			before := w.setStream(topicFault + StreamID(f))
			w.inject(f)
			w.setStream(before)
		}
	}
}

// correctClocks looks after the clocks of a long world: in an hour they would
// come to be further off than anybody lets them.
func (w *Simulation) correctClocks() {
	for _, n := range w.nodes {
		if by := n.clock.correct(w.now); by != 0 {
			w.log.note(w.now, "the clock of %s, %v off, is put right", n.id, by)
			w.noteClockJump(by)
		}
	}
}

// inject has a fault of the clock happen, if there is somebody it can happen to.
func (w *Simulation) inject(f Fault) {
	n := w.drawNode()
	switch f {
	case AgentNotFound:
		w.withdrawAgent()
		return
	case ClientReconnectStorm:
		w.injectReconnectStorm(3)
		return
	case ClientRevokedKey:
		w.injectRevokedKey()
		return
	case AgentBusy:
		w.sendBurst()
		return
	case ClientCancelStorm:
		w.injectCancelStorm()
		return
	case LoadHotActor, LoadDeadlineStorm, LoadRetryStorm, LoadPoison, LoadFanOut, LoadDeadlocks:
		w.injectLoad(f)
		return
	}
	if n == nil {
		return
	}
	soon := func(least, most time.Duration) actor.Time { return w.now.Add(w.between(least, most)) }
	switch f {
	case NetworkPartition:
		w.partition()
	case NetworkJitter, NetworkSlowLink:
		w.degradeLink(f, n)
	case NetworkReset:
		if to := w.randomPeer(n); to != nil {
			if lost := w.resetConnection(n, to); lost > 0 {
				w.recordFault(NetworkReset, "%d messages between %s and %s are lost", lost, n.id, to.id)
			}
		}
	case NetworkPartial:
		if to := w.randomPeer(n); to != nil {
			w.cutLink(NetworkPartial, n, to, soon(300*time.Millisecond, 6*time.Second))
		}
	case NetworkFlapping:
		if to := w.randomPeer(n); to != nil {
			w.flapLink(n, to, 2+w.entropy.Int(6))
		}
	case NetworkOneWay:
		until := soon(300*time.Millisecond, 6*time.Second)
		for to := range w.nodes {
			w.net.blocked[n.index][to] = linkCut{until, NetworkOneWay}
		}
	case StoreCutOff:
		w.net.storeCutUntil[n.index] = max(w.net.storeCutUntil[n.index], soon(300*time.Millisecond, 8*time.Second))
		w.recordFault(StoreCutOff, "%s cannot reach the store until %v", n.id, w.net.storeCutUntil[n.index].Sub(Origin))
	case NodeCrash:
		n.crashInSteps = 1 + w.entropy.Int(48)
	case NodeStop:
		w.stopNode(n)
	case NodePause:
		n.pausedUntil = max(n.pausedUntil, soon(100*time.Millisecond, 8*time.Second))
		w.recordFault(NodePause, "%s stands still until %v", n.id, n.pausedUntil.Sub(Origin))
	case NodeFreeze:
		n.pausedUntil = max(n.pausedUntil, soon(leaseTTL, 3*leaseTTL))
		w.recordFault(NodeFreeze, "%s stands still until %v, longer than its lease runs", n.id, n.pausedUntil.Sub(Origin))
	case CellSlow:
		c := n.cells[w.entropy.Int(len(n.cells))]
		c.slowUntil = max(c.slowUntil, soon(300*time.Millisecond, 6*time.Second))
	case ClockDrift:
		was := n.clock.drift
		if n.clock.setDrift(w.now, drawDrift(w.entropy)); n.clock.drift != was {
			w.recordFault(ClockDrift, "the clock of %s runs %d in a million faster", n.id, n.clock.drift)
		}
	case ClockAhead:
		to := w.between(8*time.Second, clockJumpMax)
		by := n.clock.jumpTo(w.now, to)
		w.recordFault(ClockAhead, "the clock of %s jumps by %v", n.id, by)
		w.noteClockJump(-by)
	case DiskFull:
		n.diskFullUntil = max(n.diskFullUntil, soon(300*time.Millisecond, 10*time.Second))
	case ClockSkew:
		to := w.between(0, 4*time.Second)
		by := n.clock.jumpTo(w.now, to)
		w.recordFault(ClockSkew, "the clock of %s jumps by %v", n.id, by)
		w.noteClockJump(-by)
	case ShardMove:
		w.moveShards()
	}
}

// drawDrift draws how much too fast a clock is, in a million; what is benign is right.
func drawDrift(c Entropy) int64 {
	by := int64(c.Int(2 * driftMax))
	if by%2 == 1 {
		return -(by + 1) / 2
	}
	return by / 2
}

// stopNode has a process end as it is asked to: it lets go of who reads there, and
// is given a moment for what it has not said.
func (w *Simulation) stopNode(n *node) {
	w.recordFault(NodeStop, "%s is told to stop, %d read there", n.id, len(n.streams))
	for _, c := range slices.Clone(n.streams) {
		c.step(ingress.Draining{})
	}
	n.after(w.between(time.Millisecond, 500*time.Millisecond), func() { w.halt(n, "stop") })
}

// moveShards moves a group of shards to another cell, if there is one.
func (w *Simulation) moveShards() {
	g := w.entropy.Int(len(w.claims.groups))
	to := w.drawNode()
	cell := uint16(w.entropy.Int(len(to.cells)))
	cl := &w.claims.groups[g]
	if cl.node == nil || !cl.node.up || cl.releasing || cl.node == to && cl.cell == cell {
		return
	}
	w.recordFault(ShardMove, "group %d moves from %s.%d to %s.%d", g, cl.node.id, cl.cell, to.id, cell)
	w.moveGroup(g, to, cell)
}

// partition cuts the nodes into two sides.
func (w *Simulation) partition() {
	if len(w.nodes) < 2 {
		return
	}
	side := 1 + w.entropy.Int(1<<len(w.nodes)-2)
	until := w.now.Add(w.between(300*time.Millisecond, 6*time.Second))
	w.log.note(w.now, "side %b is cut off until %v", side, until.Sub(Origin))
	for i := range w.nodes {
		for j := range w.nodes {
			if side>>i&1 != side>>j&1 {
				w.net.blocked[i][j] = linkCut{until, NetworkPartition}
			}
		}
	}
}

// withdrawAgent takes an agent out of the registry for a while.
func (w *Simulation) withdrawAgent() {
	if w.withdrawnAgent >= 0 {
		return
	}
	w.withdrawnAgent = w.entropy.Int(len(w.plan.Agents))
	w.recordFault(AgentNotFound, "%s is gone", w.plan.Agents[w.withdrawnAgent].Name)
	w.publishAgents()
	w.after(w.between(200*time.Millisecond, 4*time.Second), w.restoreAgent)
}

func (w *Simulation) restoreAgent() {
	if w.withdrawnAgent < 0 {
		return
	}
	w.log.note(w.now, "%s is back", w.plan.Agents[w.withdrawnAgent].Name)
	w.withdrawnAgent = -1
	w.publishAgents()
}

// builtinAgents are those that are a part of the program, as they are now.
func (w *Simulation) builtinAgents() []actor.Definition {
	if w.withdrawnAgent < 0 {
		return w.plan.Agents
	}
	all := append([]actor.Definition(nil), w.plan.Agents[:w.withdrawnAgent]...)
	return append(all, w.plan.Agents[w.withdrawnAgent+1:]...)
}

func (w *Simulation) publishAgents() {
	for _, n := range w.nodes {
		if n.up {
			n.after(w.between(100*time.Microsecond, 20*time.Millisecond), n.sendAgentsToCells)
		}
	}
}

// sendBurst has many clients ask the same actor for something slow.
func (w *Simulation) sendBurst() {
	to := generator{w: w}.target()
	w.log.note(w.now, "a burst for %s", to)
	text, left := "sleep 400", 5*time.Second
	if w.team != nil {
		text, left = w.teamMessageFor(to.Agent), clientLeftMax
	}
	for range min(w.plan.Limits.MaxPendingPerActor, burstPendingMax) + 2 {
		c := w.addClient(to, text, left)
		c.burst = true
		w.submit(c)
	}
}

// burstPendingMax bounds the mailboxes of worlds with bursts, so that these can fill one.
const burstPendingMax = 6

// faultyAgent is an agent whom faults may befall.
type faultyAgent struct {
	w        *Simulation
	behavior actor.Behavior
}

// callFault is what the world has decided of a call.
type callFault uint8

const (
	noCallFault callFault = iota
	slowCall
	rejectedCall
)

// Begin implements actor.Behavior. What befalls a call is decided once: a turn
// that runs again finds the same.
func (b faultyAgent) Begin(begin actor.Begin) actor.Turn {
	w, call := b.w, &begin.Call
	f, known := w.callFaults[call.ID]
	if !known && !call.IsRoot() {
		switch {
		case w.faultFires(AgentCallTimeout):
			f = slowCall
			w.recordFault(AgentCallTimeout, "%s takes longer over %s than its caller waits", call.To, call.ID.Short())
		case w.faultFires(AgentCallRejected):
			f = rejectedCall
			w.recordFault(AgentCallRejected, "%s refuses %s", call.To, call.ID.Short())
		}
		w.callFaults[call.ID] = f
	}
	t := &faultyTurn{w: w, turn: b.behavior.Begin(begin), fault: f, left: begin.Left, agent: call.To.Agent}
	if f == noCallFault && w.Stats.Steps%replayCheckEvery == 0 {
		t.check = &replayCheck{behavior: b.behavior, begin: begin}
	}
	return t
}

type faultyTurn struct {
	w     *Simulation
	turn  actor.Turn
	fault callFault
	left  actor.Duration
	agent string
	slept bool
	check *replayCheck // nil: it is not made once more
	asks  []actor.Ask  // the last time
}

// replayCheck is a turn to be made once more when it has ended: an agent whose turn is
// another then would be lost in a crash.
type replayCheck struct {
	behavior actor.Behavior
	begin    actor.Begin
	answers  [][]actor.Answer
}

// replayCheckEvery is how many steps share one.
const replayCheckEvery = 64

// record takes note of what the turn was answered, and came to.
func (r *replayCheck) record(w *Simulation, answers []actor.Answer, action actor.Action) {
	if answers != nil {
		r.answers = append(r.answers, slices.Clone(answers))
	}
	if action.Done == nil {
		return
	}
	if err := agents.SameTurn(r.behavior, r.behavior, r.begin, r.answers); err != nil {
		w.fail(SameTurns, fmt.Sprintf("%s makes a turn once more, and %v", r.begin.Call.To, err))
	}
	if done, err := agents.Replay(r.behavior, r.begin, r.answers); err != nil || len(done) != len(r.answers)+1 || done[len(done)-1].Done == nil {
		w.fail(SameTurns, fmt.Sprintf("%s makes a turn of %d steps once more, and it comes to %d that do not end it, %v", r.begin.Call.To, len(r.answers)+1, len(done), err))
	}
}

// Stop implements actor.Turn.
func (t *faultyTurn) Stop() { t.turn.Stop() }

// Next implements actor.Turn.
func (t *faultyTurn) Next(answers []actor.Answer) (actor.Action, error) {
	if t.w.faultFires(CellPanic) {
		panic(injectedPanic{CellPanic, fmt.Sprintf("panics in a turn of %s", t.agent)})
	}
	switch {
	case t.fault == rejectedCall:
		return actor.Action{}, actor.Refuse(actor.Rejected, "%s does not want to", t.agent)
	case t.fault == slowCall && !t.slept:
		t.slept = true
		return actor.Action{Asks: []actor.Ask{{Kind: actor.AskSleep, Timeout: t.left + 5*time.Second}}}, nil
	case t.fault == slowCall:
		answers, t.fault = nil, noCallFault
	}
	action, err := t.turn.Next(answers)
	if err == nil && action.Done != nil && action.Done.Status == actor.Succeeded {
		if part := t.truncatedAnswer(answers); part != nil {
			t.w.fail(PartsAreSaid, fmt.Sprintf("%s calls an answer whole that ended by %q: %.80q", t.agent, part.Finish, part.Text))
		}
	}
	if t.asks = action.Asks; t.check != nil && err == nil {
		t.check.record(t.w, answers, action)
	}
	return action, err
}

// truncatedAnswer is an answer that is a part of what a model or an agent outside would have
// said; nil if there is none.
func (t *faultyTurn) truncatedAnswer(answers []actor.Answer) *upstream.Completion {
	for i := range answers {
		if i >= len(t.asks) || t.asks[i].Kind != actor.AskModel && t.asks[i].Kind != actor.AskInvoke || answers[i].Refusal != nil {
			continue
		}
		said, err := upstream.DecodeCompletion(answers[i].Parts[0].Bytes)
		switch {
		case err != nil:
		case said.Finish == upstream.NoFinish, said.Finish == upstream.FinishLength, said.Finish == upstream.FinishFilter:
			return &said
		}
	}
	return nil
}
