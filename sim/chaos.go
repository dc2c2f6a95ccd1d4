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

// strike asks for each fault that comes by the clock.
func (w *World) strike() {
	if w.calm {
		return
	}
	w.strikes++
	w.account(aboutWorld + w.strikes)
	w.after(w.plan.Strike, w.strike)
	if w.plan.Steps > 0 {
		w.putClocksRight()
	}
	for _, f := range Faults() {
		if faultTable[f].clocked && w.fault(f) {
			before := w.turn(aboutFault + StreamID(f))
			w.befall(f)
			w.turn(before)
		}
	}
}

// putClocksRight looks after the clocks of a long world: in an hour they would
// come to be further off than anybody lets them.
func (w *World) putClocksRight() {
	for _, n := range w.nodes {
		if by := n.clock.putRight(w.now); by != 0 {
			w.log.world(w.now, "the clock of %s, %v off, is put right", n.id, by)
			w.delayed(by)
		}
	}
}

// befall has a fault of the clock happen, if there is somebody it can happen to.
func (w *World) befall(f Fault) {
	n := w.someNode()
	switch f {
	case AgentNotFound:
		w.withdraw()
		return
	case ClientReconnectStorm:
		w.storm(3)
		return
	case ClientRevokedKey:
		w.revoke()
		return
	case AgentBusy:
		w.burst()
		return
	case ClientCancelStorm:
		w.cancelStorm()
		return
	case LoadHotActor, LoadDeadlineStorm, LoadRetryStorm, LoadPoison, LoadFanOut, LoadDeadlocks:
		w.storms(f)
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
		w.strain(f, n)
	case NetworkReset:
		if to := w.someLink(n); to != nil {
			if lost := w.reset(n, to); lost > 0 {
				w.hit(NetworkReset, "%d messages between %s and %s are lost", lost, n.id, to.id)
			}
		}
	case NetworkPartial:
		if to := w.someLink(n); to != nil {
			w.apart(NetworkPartial, n, to, soon(300*time.Millisecond, 6*time.Second))
		}
	case NetworkFlapping:
		if to := w.someLink(n); to != nil {
			w.flap(n, to, 2+w.choose.Int(6))
		}
	case NetworkOneWay:
		until := soon(300*time.Millisecond, 6*time.Second)
		for to := range w.nodes {
			w.net.block[n.index][to] = cutting{until, NetworkOneWay}
		}
	case StoreCutOff:
		w.net.cut[n.index] = max(w.net.cut[n.index], soon(300*time.Millisecond, 8*time.Second))
		w.hit(StoreCutOff, "%s cannot reach the store until %v", n.id, w.net.cut[n.index].Sub(Origin))
	case NodeCrash:
		n.crashIn = 1 + w.choose.Int(48)
	case NodeStop:
		w.stop(n)
	case NodePause:
		n.paused = max(n.paused, soon(100*time.Millisecond, 8*time.Second))
		w.hit(NodePause, "%s stands still until %v", n.id, n.paused.Sub(Origin))
	case NodeFreeze:
		n.paused = max(n.paused, soon(leaseTTL, 3*leaseTTL))
		w.hit(NodeFreeze, "%s stands still until %v, longer than its lease runs", n.id, n.paused.Sub(Origin))
	case CellSlow:
		c := n.cells[w.choose.Int(len(n.cells))]
		c.slow = max(c.slow, soon(300*time.Millisecond, 6*time.Second))
	case ClockDrift:
		was := n.clock.drift
		if n.clock.drifts(w.now, drawDrift(w.choose)); n.clock.drift != was {
			w.hit(ClockDrift, "the clock of %s runs %d in a million faster", n.id, n.clock.drift)
		}
	case ClockAhead:
		to := w.between(8*time.Second, clockJumpMax)
		by := n.clock.jumps(w.now, to)
		w.hit(ClockAhead, "the clock of %s jumps by %v", n.id, by)
		w.delayed(-by)
	case DiskFull:
		n.full = max(n.full, soon(300*time.Millisecond, 10*time.Second))
	case ClockSkew:
		to := w.between(0, 4*time.Second)
		by := n.clock.jumps(w.now, to)
		w.hit(ClockSkew, "the clock of %s jumps by %v", n.id, by)
		w.delayed(-by)
	case ShardMove:
		w.moveSome()
	}
}

// drawDrift draws how much too fast a clock is, in a million; what is benign is right.
func drawDrift(c Chooser) int64 {
	by := int64(c.Int(2 * driftMax))
	if by%2 == 1 {
		return -(by + 1) / 2
	}
	return by / 2
}

// stop has a process end as it is asked to: it lets go of who reads there, and
// is given a moment for what it has not said.
func (w *World) stop(n *node) {
	w.hit(NodeStop, "%s is told to stop, %d read there", n.id, len(n.streams))
	for _, c := range slices.Clone(n.streams) {
		c.step(ingress.Draining{})
	}
	n.later(w.between(time.Millisecond, 500*time.Millisecond), func() { w.halt(n, "stop") })
}

// moveSome moves a group of shards to another cell, if there is one.
func (w *World) moveSome() {
	g := w.choose.Int(len(w.claims.groups))
	to := w.someNode()
	cell := uint16(w.choose.Int(len(to.cells)))
	cl := &w.claims.groups[g]
	if cl.node == nil || !cl.node.up || cl.stopping || cl.node == to && cl.cell == cell {
		return
	}
	w.hit(ShardMove, "group %d moves from %s.%d to %s.%d", g, cl.node.id, cl.cell, to.id, cell)
	w.move(g, to, cell)
}

// partition cuts the nodes into two sides.
func (w *World) partition() {
	if len(w.nodes) < 2 {
		return
	}
	side := 1 + w.choose.Int(1<<len(w.nodes)-2)
	until := w.now.Add(w.between(300*time.Millisecond, 6*time.Second))
	w.log.world(w.now, "side %b is cut off until %v", side, until.Sub(Origin))
	for i := range w.nodes {
		for j := range w.nodes {
			if side>>i&1 != side>>j&1 {
				w.net.block[i][j] = cutting{until, NetworkPartition}
			}
		}
	}
}

// withdraw takes an agent out of the registry for a while.
func (w *World) withdraw() {
	if w.absent >= 0 {
		return
	}
	w.absent = w.choose.Int(len(w.plan.Agents))
	w.hit(AgentNotFound, "%s is gone", w.plan.Agents[w.absent].Name)
	w.tellAgents()
	w.after(w.between(200*time.Millisecond, 4*time.Second), w.reinstate)
}

func (w *World) reinstate() {
	if w.absent < 0 {
		return
	}
	w.log.world(w.now, "%s is back", w.plan.Agents[w.absent].Name)
	w.absent = -1
	w.tellAgents()
}

// agents are those that are a part of the program, as they are now.
func (w *World) agents() []actor.Definition {
	if w.absent < 0 {
		return w.plan.Agents
	}
	all := append([]actor.Definition(nil), w.plan.Agents[:w.absent]...)
	return append(all, w.plan.Agents[w.absent+1:]...)
}

func (w *World) tellAgents() {
	for _, n := range w.nodes {
		if n.up {
			n.later(w.between(100*time.Microsecond, 20*time.Millisecond), n.tellCells)
		}
	}
}

// burst has many clients ask the same actor for something slow.
func (w *World) burst() {
	to := drawer{w: w}.target()
	w.log.world(w.now, "a burst for %s", to)
	text, left := "sleep 400", 5*time.Second
	if w.team != nil {
		text, left = w.teamMessage(to.Agent), clientLeftMax
	}
	for range min(w.plan.Limits.MaxPendingPerActor, busyPendingMax) + 2 {
		c := w.addClient(to, text, left)
		c.burst = true
		w.ask(c)
	}
}

// busyPendingMax bounds the mailboxes of worlds with bursts, so that these can fill one.
const busyPendingMax = 6

// wild is an agent whom faults may befall.
type wild struct {
	w        *World
	behavior actor.Behavior
}

// fate is what the world has decided of a call.
type fate uint8

const (
	spared fate = iota
	slow
	rejected
)

// Begin implements actor.Behavior. What befalls a call is decided once: a turn
// that runs again finds the same.
func (b wild) Begin(begin actor.Begin) actor.Turn {
	w, call := b.w, &begin.Call
	f, known := w.fates[call.ID]
	if !known && !call.IsRoot() {
		switch {
		case w.fault(AgentCallTimeout):
			f = slow
			w.hit(AgentCallTimeout, "%s takes longer over %s than its caller waits", call.To, call.ID.Short())
		case w.fault(AgentCallRejected):
			f = rejected
			w.hit(AgentCallRejected, "%s refuses %s", call.To, call.ID.Short())
		}
		w.fates[call.ID] = f
	}
	t := &wildTurn{w: w, turn: b.behavior.Begin(begin), fate: f, left: begin.Left, who: call.To.Agent}
	if f == spared && w.Stats.Steps%replayedEvery == 0 {
		t.again = &replay{behavior: b.behavior, begin: begin}
	}
	return t
}

type wildTurn struct {
	w     *World
	turn  actor.Turn
	fate  fate
	left  actor.Duration
	who   string
	slept bool
	again *replay     // nil: it is not made once more
	asked []actor.Ask // the last time
}

// replay is a turn to be made once more when it has ended: an agent whose turn is
// another then would be lost in a crash.
type replay struct {
	behavior actor.Behavior
	begin    actor.Begin
	answers  [][]actor.Answer
}

// replayedEvery is how many steps share one.
const replayedEvery = 64

// took takes note of what the turn was answered, and came to.
func (r *replay) took(w *World, answers []actor.Answer, action actor.Action) {
	if answers != nil {
		r.answers = append(r.answers, slices.Clone(answers))
	}
	if action.Done == nil {
		return
	}
	if err := agents.SameTurn(r.behavior, r.behavior, r.begin, r.answers); err != nil {
		w.violate(SameTurns, fmt.Sprintf("%s makes a turn once more, and %v", r.begin.Call.To, err))
	}
	if done, err := agents.Replay(r.behavior, r.begin, r.answers); err != nil || len(done) != len(r.answers)+1 || done[len(done)-1].Done == nil {
		w.violate(SameTurns, fmt.Sprintf("%s makes a turn of %d steps once more, and it comes to %d that do not end it, %v", r.begin.Call.To, len(r.answers)+1, len(done), err))
	}
}

// Stop implements actor.Turn.
func (t *wildTurn) Stop() { t.turn.Stop() }

// Next implements actor.Turn.
func (t *wildTurn) Next(answers []actor.Answer) (actor.Action, error) {
	if t.w.fault(CellPanic) {
		panic(plannedPanic{CellPanic, fmt.Sprintf("panics in a turn of %s", t.who)})
	}
	switch {
	case t.fate == rejected:
		return actor.Action{}, actor.Refuse(actor.Rejected, "%s does not want to", t.who)
	case t.fate == slow && !t.slept:
		t.slept = true
		return actor.Action{Asks: []actor.Ask{{Kind: actor.AskSleep, Timeout: t.left + 5*time.Second}}}, nil
	case t.fate == slow:
		answers, t.fate = nil, spared
	}
	action, err := t.turn.Next(answers)
	if err == nil && action.Done != nil && action.Done.Status == actor.Succeeded {
		if part := t.part(answers); part != nil {
			t.w.violate(PartsAreSaid, fmt.Sprintf("%s calls an answer whole that ended by %q: %.80q", t.who, part.Finish, part.Text))
		}
	}
	if t.asked = action.Asks; t.again != nil && err == nil {
		t.again.took(t.w, answers, action)
	}
	return action, err
}

// part is an answer that is a part of what a model or an agent outside would have
// said; nil if there is none.
func (t *wildTurn) part(answers []actor.Answer) *upstream.Completion {
	for i := range answers {
		if i >= len(t.asked) || t.asked[i].Kind != actor.AskModel && t.asked[i].Kind != actor.AskInvoke || answers[i].Refusal != nil {
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
