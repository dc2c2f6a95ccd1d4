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

// injectAll starts a fault round: it injects each periodic fault that fires, and
// schedules the next round.
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

// correctClocks corrects the clocks of a long run. After an hour of drift, the offset of
// a clock would be larger than any operator permits.
func (w *Simulation) correctClocks() {
	for _, n := range w.nodes {
		if by := n.clock.correct(w.now); by != 0 {
			w.log.note(w.now, "the clock of %s, %v off, is corrected", n.id, by)
			w.noteClockJump(by)
		}
	}
}

// inject injects a periodic fault, if it has a target.
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
	untilIn := func(lo, hi time.Duration) actor.Time { return w.now.Add(w.faultPeriod(f, lo, hi)) }
	switch f {
	case NetworkPartition:
		w.partition()
	case NetworkJitter, NetworkSlowLink:
		w.degradeLink(f, n)
	case NetworkReset:
		w.net.resetNext = true
	case NetworkPartial:
		if peer := w.randomPeer(n); peer != nil {
			w.cutLink(NetworkPartial, n, peer, untilIn(300*time.Millisecond, 6*time.Second))
		}
	case NetworkFlapping:
		if peer := w.randomPeer(n); peer != nil {
			w.flapLink(n, peer, 2+w.entropy.Int(6))
		}
	case NetworkOneWay:
		until := untilIn(300*time.Millisecond, 6*time.Second)
		for to := range w.nodes {
			w.net.blocked[n.index][to] = linkCut{until, NetworkOneWay}
		}
	case StoreCutOff:
		w.net.storeCutUntil[n.index] = max(w.net.storeCutUntil[n.index], untilIn(300*time.Millisecond, 8*time.Second))
		w.net.storeCutFelt[n.index] = false
	case NodeCrash:
		n.crashInSteps = 1 + w.entropy.Int(48)
	case NodeStop:
		w.stopNode(n)
	case NodePause:
		n.pause(NodePause, untilIn(100*time.Millisecond, 8*time.Second))
	case NodeFreeze:
		n.pause(NodeFreeze, untilIn(leases.TTL, 3*leases.TTL))
	case CellSlow:
		c := n.cells[w.entropy.Int(len(n.cells))]
		c.slowUntil = max(c.slowUntil, untilIn(300*time.Millisecond, 6*time.Second))
	case ClockDrift:
		n.disturbClock(ClockDrift, func(c *clock) {
			c.setDrift(w.now, c.drift+int64(w.affectedCount(ClockDrift, int(drawDrift(w.entropy)-c.drift))))
		})
	case ClockAhead:
		n.jumpClock(ClockAhead, w.between(8*time.Second, clockJumpMax))
	case DiskFull:
		n.diskFullUntil = max(n.diskFullUntil, untilIn(300*time.Millisecond, 10*time.Second))
	case ClockSkew:
		n.jumpClock(ClockSkew, w.between(0, 4*time.Second))
	case ShardMove:
		w.moveShards()
	case LogCut:
		w.retention.cutLog(n)
	case SessionForgotten:
		w.retention.forget(n)
	}
}

// drawDrift draws the drift of a clock in parts per million. The benign choice is no
// drift.
func drawDrift(c Entropy) int64 {
	drift := int64(c.Int(2 * driftMax))
	if drift%2 == 1 {
		return -(drift + 1) / 2
	}
	return drift / 2
}

// stopNode shuts a process down gracefully: its streams are drained, and it has up to
// 500 ms to send pending output.
func (w *Simulation) stopNode(n *node) {
	open := len(n.streams)
	if w.acts(NodeStop) {
		for _, c := range slices.Clone(n.streams) {
			c.step(ingress.Draining{})
		}
		w.sockets.drain(n)
	}
	n.after(w.between(time.Millisecond, 500*time.Millisecond), func() {
		w.endProcess(NodeStop, n, func() { w.halt(n, "stop") }, "%s shuts down; it had %d open streams", n.id, open)
	})
}

// endProcess has fault f end a process. It reports whether the process has ended.
func (w *Simulation) endProcess(f Fault, n *node, end func(), format string, args ...any) bool {
	if w.acts(f) {
		end()
	}
	return recordChange(w, f, true, n.up, format, args...)
}

// moveShards moves a random group of shards to a random cell, unless that cell owns it
// already.
func (w *Simulation) moveShards() { w.moveGroupAnywhere(w.entropy.Int(len(w.claims.groups))) }

// moveGroupAnywhere moves a group of shards to a random cell, unless it has no owner or
// moves already.
func (w *Simulation) moveGroupAnywhere(group int) {
	to := w.drawNode()
	if to == nil {
		return
	}
	cell := uint16(w.entropy.Int(len(to.cells)))
	cl := &w.claims.groups[group]
	if !w.claims.owned(group) || !cl.node.up || cl.node == to && cl.cell == cell {
		return
	}
	if w.acts(ShardMove) {
		w.moveGroup(group, to, cell)
	}
}

// partition splits the nodes into two sides that cannot reach each other for a while.
func (w *Simulation) partition() {
	if len(w.nodes) < 2 {
		return
	}
	side := 1 + w.entropy.Int(1<<len(w.nodes)-2)
	until := w.now.Add(w.faultPeriod(NetworkPartition, 300*time.Millisecond, 6*time.Second))
	w.log.note(w.now, "nodes %b are cut off from the others until %v", side, until.Sub(Origin))
	for i := range w.nodes {
		for j := range w.nodes {
			if side>>i&1 != side>>j&1 {
				w.net.blocked[i][j] = linkCut{until, NetworkPartition}
			}
		}
	}
}

// withdrawAgent removes an agent from the registry for a while.
func (w *Simulation) withdrawAgent() {
	if w.withdrawnAgent >= 0 {
		return
	}
	w.withdrawnAgent, w.withdrawalFelt = w.entropy.Int(len(w.plan.Agents)), false
	w.log.note(w.now, "agent %s is withdrawn", w.plan.Agents[w.withdrawnAgent].Name)
	w.publishAgents()
	w.after(w.faultPeriod(AgentNotFound, 200*time.Millisecond, 4*time.Second), w.restoreAgent)
}

// restoreAgent returns the withdrawn agent to the registry.
func (w *Simulation) restoreAgent() {
	if w.withdrawnAgent < 0 {
		return
	}
	w.log.note(w.now, "agent %s is restored", w.plan.Agents[w.withdrawnAgent].Name)
	w.withdrawnAgent = -1
	w.publishAgents()
}

// builtinAgents returns the agents compiled into the program, without the withdrawn
// one.
func (w *Simulation) builtinAgents() []actor.Definition {
	if w.withdrawnAgent < 0 || !w.acts(AgentNotFound) {
		return w.plan.Agents
	}
	all := append([]actor.Definition(nil), w.plan.Agents[:w.withdrawnAgent]...)
	return append(all, w.plan.Agents[w.withdrawnAgent+1:]...)
}

// publishAgents sends the agents to the cells of each node, after a delay that is drawn
// for each node.
func (w *Simulation) publishAgents() {
	for _, n := range w.nodes {
		if n.up {
			n.after(w.between(100*time.Microsecond, 20*time.Millisecond), n.sendAgentsToCells)
		}
	}
}

// sendBurst submits a burst of slow requests to one actor, each from a client of its
// own.
func (w *Simulation) sendBurst() {
	to := newGenerator(w).target()
	w.log.note(w.now, "burst of requests to %s", to)
	text, left := "sleep 400", 5*time.Second
	if w.team != nil {
		text, left = w.teamMessageFor(to.Agent), clientLeftMax
	}
	for range w.affectedCount(AgentBusy, min(w.plan.Limits.MaxPendingPerActor, burstPendingMax)+2) {
		c := w.addClient(to, text, left)
		c.burst = true
		w.submit(c)
	}
}

// burstPendingMax bounds the mailboxes of runs with bursts, so that one burst can fill
// a mailbox.
const burstPendingMax = 6

// faultyAgent wraps the behavior of an agent and injects faults into its turns.
type faultyAgent struct {
	w        *Simulation
	behavior actor.Behavior
}

// callFault is the fault chosen for a call.
type callFault uint8

const (
	noCallFault callFault = iota
	slowCall
	rejectedCall
)

// Begin implements actor.Behavior. The fault of a call is chosen once, so a turn that
// is run again meets the same fault.
func (b faultyAgent) Begin(begin actor.Begin) actor.Turn {
	w, call := b.w, &begin.Call
	w.transcripts.beginTurn(begin)
	f, chosen := w.callFaults[call.ID]
	if !chosen && !call.IsRoot() {
		switch {
		case w.faultFires(AgentCallTimeout):
			f = slowCall
		case w.faultFires(AgentCallRejected):
			f = rejectedCall
		}
		w.callFaults[call.ID] = f
	}
	t := &faultyTurn{w: w, turn: b.behavior.Begin(begin), fault: f, left: begin.Left, agent: call.To.Agent}
	if f == noCallFault && w.Stats.Steps%replayCheckEvery == 0 {
		t.check = &replayCheck{behavior: b.behavior, begin: begin}
	}
	if len(call.Chain) > 0 { // only the agent's copy changes; a replay gets another
		begin.Call.Chain[0] = actor.NewID("forged", "")
		w.checker.Premises.ChainKept++
	}
	return t
}

type faultyTurn struct {
	w     *Simulation
	turn  actor.Turn
	fault callFault
	left  actor.Duration
	agent string
	slept actor.Time   // when it began to sleep, because of slowCall; 0: not yet
	check *replayCheck // nil if the turn is not replayed
	asks  []actor.Ask  // asks of the last action
}

// replayCheck records a turn and replays it when it has ended. An agent whose replayed
// turn differs could not be resumed after a crash.
type replayCheck struct {
	behavior actor.Behavior
	begin    actor.Begin
	answers  [][]actor.Answer
}

// replayCheckEvery is the number of steps per recorded turn.
const replayCheckEvery = 64

// record records the answers that a turn received. If the action ends the turn, record
// replays the turn. The replay MUST yield the same actions.
func (r *replayCheck) record(w *Simulation, answers []actor.Answer, action actor.Action) {
	if answers != nil {
		r.answers = append(r.answers, slices.Clone(answers))
	}
	if action.Done == nil {
		return
	}
	if len(r.answers) > 0 {
		w.Stats.Audit.SameTurns++
	}
	if err := agents.SameTurn(r.behavior, r.behavior, r.begin, r.answers); err != nil {
		w.fail(SameTurns, fmt.Sprintf("replayed turn of %s differs: %v", r.begin.Call.To, err))
	}
	if done, err := agents.Replay(r.behavior, r.begin, r.answers); err != nil || len(done) != len(r.answers)+1 || done[len(done)-1].Done == nil {
		w.fail(SameTurns, fmt.Sprintf("replayed turn of %s: want %d steps and an end, got %d steps, error %v", r.begin.Call.To, len(r.answers)+1, len(done), err))
	}
}

// Stop implements actor.Turn.
func (t *faultyTurn) Stop() {
	t.wake()
	t.turn.Stop()
}

// wake ends the sleep of a slow call, also if it is stopped before the sleep is over.
func (t *faultyTurn) wake() {
	if t.fault == slowCall && t.slept != 0 && !t.w.done {
		t.fault = noCallFault
		recordChange(t.w, AgentCallTimeout, t.slept, t.w.now, "a call of %s is delayed by %v", t.agent, t.w.now.Sub(t.slept))
	}
}

// rejection ends the detail of the refusal of a rejected call.
const rejection = " rejects the call"

// Next implements actor.Turn.
func (t *faultyTurn) Next(answers []actor.Answer) (actor.Action, error) {
	if t.w.faultFires(CellPanic) && t.w.acts(CellPanic) {
		panic(injectedPanic{CellPanic, fmt.Sprintf("panic in a turn of %s", t.agent)})
	}
	switch {
	case t.fault == rejectedCall && t.w.acts(AgentCallRejected):
		return actor.Action{}, actor.Refuse(actor.Rejected, "%s", t.agent+rejection)
	case t.fault == slowCall && t.slept == 0:
		t.slept = t.w.now
		if sleep := t.w.extraDelay(AgentCallTimeout, t.left+5*time.Second); sleep > 0 {
			return actor.Action{Asks: []actor.Ask{{Kind: actor.AskSleep, Timeout: sleep}}}, nil
		}
		t.wake()
	case t.fault == slowCall:
		t.wake()
		answers = nil
	}
	action, err := t.turn.Next(answers)
	part := t.truncatedAnswer(answers)
	if part != nil {
		t.w.Stats.Audit.TruncationReported++
	}
	if err == nil && action.Done != nil && action.Done.Status == actor.Succeeded {
		if part != nil {
			t.w.fail(TruncationReported, fmt.Sprintf("%s reports a truncated answer as complete, finish reason %q: %.80q", t.agent, part.Finish, part.Text))
		}
	}
	if t.asks = action.Asks; t.check != nil && err == nil {
		t.check.record(t.w, answers, action)
	}
	return action, err
}

// truncatedAnswer returns an answer of a model or external agent that was cut off or has
// warnings, or nil if there is none.
func (t *faultyTurn) truncatedAnswer(answers []actor.Answer) *upstream.Completion {
	for i := range answers {
		if i >= len(t.asks) || t.asks[i].Kind != actor.AskModel && t.asks[i].Kind != actor.AskInvoke || answers[i].Refusal != nil {
			continue
		}
		completion, err := upstream.DecodeCompletion(answers[i].Parts[0].Bytes)
		switch {
		case err != nil:
		case len(answers[i].Warnings) > 0, completion.Finish == upstream.NoFinish, completion.Finish == upstream.FinishLength, completion.Finish == upstream.FinishFilter:
			return &completion
		}
	}
	return nil
}
