// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/store"
)

// routeByMessage calls the targets listed in the message: for "b c" sent to a, a
// calls b, b calls c, and c answers.
func routeByMessage() script {
	return func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		next, rest, _ := strings.Cut(actor.TextOf(b.Call.Parts), " ")
		switch {
		case next == "":
			return actor.Complete(actor.Text("ok")), nil
		case len(answers) == 0:
			var asks []actor.Ask
			for branch := range strings.SplitSeq(next, "+") {
				asks = append(asks, actor.Ask{Kind: actor.AskCall, Name: branch, Parts: actor.Text(rest)})
			}
			return actor.Action{Asks: asks}, nil
		}
		text := ""
		for _, a := range answers[0] {
			text += answerText(a) + " "
		}
		return actor.Complete(actor.Text(strings.TrimSpace(text))), nil
	}
}

// delayedRoute is routeByMessage after one second.
func delayedRoute() script {
	return func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) == 0 {
			return actor.Action{Asks: []actor.Ask{{Kind: actor.AskSleep, Timeout: time.Second}}}, nil
		}
		return routeByMessage()(b, answers[1:])
	}
}

// An actor restored while its agent was deleted is serial, though several turns are
// running. Calls queued at the actor wait for each of these turns, and a wait cycle
// may pass through any of these turns.
func TestWaitCycleThroughSecondHolder(t *testing.T) {
	n := newNode(t, 1, agent("a", routeByMessage(), interleaved), agent("b", delayedRoute()), agent("slow", sleeping(20*time.Second)))
	n.send("a", "slow")
	n.send("b", "a")
	n.send("a", "b")
	all := n.agents
	n.agents = all[1:]
	n.restart(1)
	n.drain()
	n.step(n.cells[0], Agents{Definitions: all})
	n.advance(1100 * time.Millisecond) // b has slept and calls a
	if got := n.eventCounts[history.RefuseWaitCycle]; got != 1 {
		t.Errorf("%d calls were refused for the cycle, want 1", got)
	}
}

// An interleaved actor at its turn limit cannot be part of a wait cycle: a call
// that would have to wait there is refused at once.
func TestFullInterleavedActorFormsNoWaitCycle(t *testing.T) {
	n := newNode(t, 1, agent("a", routeByMessage(), interleaved), agent("b", delayedRoute()))
	n.limits.MaxPendingPerActor = 2
	n.restart(1)
	n.send("b", "a")
	first, second := n.send("a", "b"), n.send("a", "b")
	n.advance(1100 * time.Millisecond) // b has slept and calls a, whose turns all wait for b
	n.advance(3 * time.Second)
	for _, id := range []actor.CallID{first, second} {
		if got := n.result(id); got == "nothing" || strings.Contains(got, "Deadline") {
			t.Errorf("got %q, want a reply or Busy", got)
		}
	}
}

// sendTogether sends several messages at the same time, so that each turn has
// started before the first call arrives.
func (n *node) sendTogether(messages ...string) []actor.CallID {
	var ids []actor.CallID
	var inputs []func()
	for _, m := range messages {
		to, text, _ := strings.Cut(m, " ")
		before := n.inputs
		n.inputs = nil
		hold := n.paused
		n.paused = true
		ids = append(ids, n.send(to, text))
		n.paused = hold
		inputs = append(inputs, n.inputs...)
		n.inputs = before
	}
	n.inputs = append(n.inputs, inputs...)
	n.drain()
	return ids
}

// TestWaitCyclesAreBroken closes wait cycles within one cell and across several.
// All calls MUST end without time passing, and exactly one call of each cycle is
// refused.
func TestWaitCyclesAreBroken(t *testing.T) {
	for _, test := range []struct {
		name     string
		messages []string
		refused  int
	}{
		{"two agents that call each other", []string{"a b", "b a"}, 1},
		{"cycle of three", []string{"a b", "b c", "c a"}, 1},
		{"cycle through a third agent", []string{"a b c", "c a"}, 1},
		{"two branches of one tree", []string{"a b+c", "b c", "c b"}, 1},
		{"no cycle", []string{"a b c", "c d"}, 0},
	} {
		for cells := 1; cells <= 4; cells++ {
			n := newNode(t, cells, agent("a", routeByMessage()), agent("b", routeByMessage()), agent("c", routeByMessage()), agent("d", routeByMessage()))
			ids := n.sendTogether(test.messages...)
			refused := 0
			for i, id := range ids {
				got := n.result(id)
				if got == "nothing" {
					t.Errorf("%s, %d cells: %q hangs", test.name, cells, test.messages[i])
				}
				refused += strings.Count(got, "WaitCycle")
			}
			if refused != test.refused {
				t.Errorf("%s, %d cells: %d refused, want %d", test.name, cells, refused, test.refused)
			}
		}
	}
}

// Two branches of one tree: a calls b and c, b calls c, c calls b. There is only
// one client call, and no chain holds an agent twice.
func TestWaitCycleInOneCallTree(t *testing.T) {
	fork := script(func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) == 0 {
			return actor.Action{Asks: []actor.Ask{
				{Kind: actor.AskCall, Name: "b", Parts: actor.Text("c")},
				{Kind: actor.AskCall, Name: "c", Parts: actor.Text("b")}}}, nil
		}
		return actor.Complete(actor.Text(answerText(answers[0][0]) + "," + answerText(answers[0][1]))), nil
	})
	n := newNode(t, 3, agent("a", fork), agent("b", routeByMessage()), agent("c", routeByMessage()))
	id := n.send("a", "")
	got := n.result(id)
	if strings.Count(got, "WaitCycle") != 1 || strings.Count(got, "ok") != 1 {
		t.Errorf("got %q, want one branch refused and one done", got)
	}
}

// The refusal lists the actors of the cycle, in its chain and in its text.
func TestWaitCycleRefusalListsCycle(t *testing.T) {
	var refusal *actor.Refusal
	capture := script(func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) > 0 && answers[0][0].Refusal != nil {
			refusal = answers[0][0].Refusal
		}
		return routeByMessage()(b, answers)
	})
	n := newNode(t, 2, agent("a", capture), agent("b", capture))
	n.sendTogether("a b", "b a")
	if refusal == nil || refusal.Reason != actor.WaitCycle || len(refusal.Chain) != 2 {
		t.Fatalf("got refusal %+v, want WaitCycle with a chain of 2", refusal)
	}
	if d := refusal.RetryAfter; d <= 0 || d > time.Second {
		t.Errorf("got retry delay %v, want a short one", d)
	}
	text := refusal.Error()
	if !strings.Contains(text, "wait cycle: ") || !strings.Contains(text, "a/main -> b/main -> a/main") && !strings.Contains(text, "b/main -> a/main -> b/main") {
		t.Errorf("got refusal %q", text)
	}
}

// A lost probe is replaced after one second.
func TestLostProbeIsResent(t *testing.T) {
	n := newNode(t, 4, agent("a", routeByMessage()), agent("b", routeByMessage()))
	lost := 0
	n.drop = func(env actor.Envelope) bool {
		_, probe := env.Body.(actor.Probe)
		if probe && lost < 1 {
			lost++
			return true
		}
		return false
	}
	ids := n.sendTogether("a b", "b a")
	n.advance(3 * time.Second)
	for _, id := range ids {
		if n.result(id) == "nothing" {
			t.Error("the cycle was not broken")
		}
	}
	if lost == 0 {
		t.Error("no probe was lost")
	}
}

// A wait cycle survives a crash: queues are restored from the log. The restored
// calls send probes, although none of them is new.
func TestWaitCycleIsBrokenAfterRestart(t *testing.T) {
	for cells := 1; cells <= 4; cells++ {
		n := newNode(t, cells, agent("a", routeByMessage()), agent("b", routeByMessage()))
		dropReplies := true
		n.drop = func(env actor.Envelope) bool {
			_, probe := env.Body.(actor.Probe)
			_, reply := env.Body.(actor.Answered)
			return dropReplies && (probe || reply)
		}
		n.sendTogether("a b", "b a")
		if cells == 4 && n.eventCounts[history.RefuseWaitCycle] != 0 {
			t.Fatal("the cycle was broken before the restart")
		}
		dropReplies = false
		n.restart(cells)
		n.advance(3 * time.Second)
		if got := n.eventCounts[history.RefuseWaitCycle]; got != 1 {
			t.Errorf("%d cells: %d calls were refused, want 1", cells, got)
		}
		for _, c := range n.cells {
			for _, a := range c.State().Actors {
				if len(a.Turns) > 0 {
					t.Errorf("%d cells: %s still waits: %+v", cells, a.ID, a)
				}
			}
		}
	}
}

// A cell loads its actors one after the other and drops the probes to actors that it has
// not loaded. A restored wait cycle is broken all the same before time passes, whichever
// of its actors is loaded last: actors are loaded in the order of their names.
func TestRestoredWaitCycleIsBrokenAtOnce(t *testing.T) {
	for _, test := range []struct {
		name     string
		messages []string
		refused  int
	}{
		{"the last actor has a queued call", []string{"a b z", "z a"}, 1},
		{"the last actor runs a call", []string{"a z c", "c a"}, 1},
		{"the last actor runs a call and is interleaved", []string{"a zi c", "c a"}, 1},
		{"the last two actors run calls", []string{"a y z c", "c a"}, 1},
		{"no cycle", []string{"a z c", "c slow"}, 0},
	} {
		n := newNode(t, 16, agent("a", routeByMessage()), agent("b", routeByMessage()), agent("c", routeByMessage()), agent("y", routeByMessage()),
			agent("z", routeByMessage()), agent("zi", routeByMessage(), interleaved), agent("slow", sleeping(20*time.Second)))
		n.drop = func(env actor.Envelope) bool {
			_, probe := env.Body.(actor.Probe)
			return probe
		}
		n.sendTogether(test.messages...)
		n.drop = nil
		if n.eventCounts[history.RefuseWaitCycle] != 0 {
			t.Fatalf("%s: the cycle was broken before the restart", test.name)
		}
		n.restart(1)
		n.drain()
		if got := n.eventCounts[history.RefuseWaitCycle]; got != test.refused {
			t.Errorf("%s: %d calls were refused, want %d", test.name, got, test.refused)
		}
	}
}

// A cancel arrives before the messages of the second lap. These messages find the
// cycle broken, and no call is refused.
func TestCancelDuringConfirmationPreventsRefusal(t *testing.T) {
	n := newNode(t, 4, agent("a", routeByMessage()), agent("b", routeByMessage()))
	var confirms []actor.Envelope
	n.drop = func(env actor.Envelope) bool {
		p, probe := env.Body.(actor.Probe)
		if probe && p.Confirm > 0 {
			confirms = append(confirms, env)
		}
		return probe && p.Confirm > 0
	}
	ids := n.sendTogether("a b", "b a")
	if len(confirms) == 0 {
		t.Fatal("no confirmation was sent to another cell")
	}
	n.step(n.cells[0], Deliver{actor.Envelope{To: actor.NewID("a", ""), Body: actor.Cancel{Call: ids[0], Reason: actor.Stopped}}})
	n.drain()
	for _, env := range confirms {
		n.step(n.cells[n.cells[0].owner(n.shard(env.To)).Cell], Deliver{env})
	}
	n.drain()
	n.want(ids[0], "Stopped")
	n.want(ids[1], "ok")
}

// A probe of the second lap arrives after a restart, under which the same calls wait again. It confirms no wait
// of before: between its laps the wait may have ended.
func TestWaitIsConfirmedUnderItsEpochOnly(t *testing.T) {
	for _, moved := range []bool{false, true} {
		n := newNode(t, 4, agent("a", routeByMessage()), agent("b", routeByMessage()))
		var confirms []actor.Envelope
		n.drop = func(env actor.Envelope) bool {
			p, probe := env.Body.(actor.Probe)
			if probe && p.Confirm == 1 && len(confirms) == 0 {
				confirms = append(confirms, env)
			}
			return probe && (p.Confirm > 0 || len(confirms) > 0)
		}
		n.sendTogether("a b", "b a")
		if len(confirms) == 0 {
			t.Fatal("no confirmation was sent to another cell")
		}
		if moved {
			n.restart(4)
			n.drain()
		}
		env := confirms[0]
		owner := n.cells[0].owner(n.shard(env.To))
		env.Epoch = owner.Epoch
		before := n.eventCounts[history.Confirm]
		n.step(n.cells[owner.Cell], Deliver{env})
		if got := n.eventCounts[history.Confirm] > before; got == moved {
			t.Errorf("moved %v: the wait was confirmed: %v", moved, got)
		}
	}
}

// The cycle closes through the second of two branches. The first branch is only
// slow.
func TestWaitCycleThroughSecondBranch(t *testing.T) {
	n := newNode(t, 2, agent("a", routeByMessage()), agent("b", routeByMessage()), agent("slow", sleeping(10*time.Second)))
	ids := n.sendTogether("a slow+b", "b a")
	if n.eventCounts[history.RefuseWaitCycle] != 1 {
		t.Errorf("%d calls were refused at once, want 1", n.eventCounts[history.RefuseWaitCycle])
	}
	n.advance(20 * time.Second)
	got := n.result(ids[0]) + "|" + n.result(ids[1])
	if strings.Count(got, "WaitCycle") != 1 || strings.Contains(got, "Deadline") {
		t.Errorf("got %q, want one call refused for the cycle", got)
	}
}

// Eight agents all call each other at once, which gives thousands of paths along
// the waits. The cycles are broken without any time passing, with few probes.
func TestManyOverlappingWaitCyclesAreBroken(t *testing.T) {
	const crowd = 8
	var agents []actor.Definition
	var messages []string
	for i := range crowd {
		name := string(rune('a' + i))
		var others []string
		for j := range crowd {
			if j != i {
				others = append(others, string(rune('a'+j)))
			}
		}
		agents = append(agents, agent(name, routeByMessage()))
		messages = append(messages, name+" "+strings.Join(others, "+"))
	}
	for _, cells := range []int{1, 4} {
		n := newNode(t, cells, agents...)
		for i, id := range n.sendTogether(messages...) {
			if n.result(id) == "nothing" {
				t.Errorf("%d cells: %q hangs", cells, messages[i])
			}
		}
		calls := crowd * (crowd - 1)
		if limit := calls * actor.BranchesMax * crowd; n.eventCounts[history.Probe] > limit {
			t.Errorf("%d cells: got %d probes, want at most %d", cells, n.eventCounts[history.Probe], limit)
		}
		t.Logf("%d cells: %d calls, %d refused, %d probes", cells, calls, n.eventCounts[history.RefuseWaitCycle], n.eventCounts[history.Probe])
	}
}

// The copies of a probe that follows several turns share no memory.
func TestProbesOfTurnsDoNotShareHops(t *testing.T) {
	n := newNode(t, 1, agent("a", calling("slow"), interleaved), agent("slow", sleeping(20*time.Second), interleaved))
	n.send("a", "one")
	n.send("a", "two")
	c := n.cells[0]
	act := c.actors.find(actor.NewID("a", ""))
	if len(act.turns) != 2 {
		t.Fatalf("got %d turns, want 2", len(act.turns))
	}
	probe := actor.Probe{Hops: make([]actor.Hop, 1, 8), Branches: actor.BranchesMax}
	waiter := &store.Run{Call: actor.Call{ID: actor.NewCallID(n.now, 1, 1)}}
	for _, t := range act.turns {
		waitCycle{c, act}.forwardProbeVia(waiter, t, probe)
	}
	turns := map[actor.CallID]actor.CallID{act.turns[0].run.Last()[0].Call: act.turns[0].run.Call.ID, act.turns[1].run.Last()[0].Call: act.turns[1].run.Call.ID}
	if len(c.localProbes) != 2 {
		t.Fatalf("got %d probes, want 2", len(c.localProbes))
	}
	for _, p := range c.localProbes {
		if hops := p.msg.Hops; len(hops) != 2 || hops[1].Turn != turns[p.msg.To] {
			t.Errorf("the probe to call %s has hops %+v", p.msg.To, hops)
		}
	}
}
