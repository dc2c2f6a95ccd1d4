// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/sim"
)

// says answers with its own name.
func says(t *agents.Turn) (string, error) { return "response from " + t.Self().Agent, nil }

// asks passes what it is told on to another agent, and its answer back.
func asks(target string, within time.Duration) agents.Func {
	return func(t *agents.Turn) (string, error) {
		text, err := t.Call(target, t.Message(), agents.Within(within))
		if err != nil {
			return "", err
		}
		return t.Self().Agent + " heard: " + text, nil
	}
}

// sleeps takes its time.
func sleeps(d time.Duration) agents.Func {
	return func(t *agents.Turn) (string, error) {
		if err := t.Sleep(d); err != nil {
			return "", err
		}
		return says(t)
	}
}

func team(members map[string]agents.Func, order ...string) []actor.Definition {
	var all []actor.Definition
	for _, name := range order {
		all = append(all, actor.Definition{Name: name, Behavior: agents.Blocking(members[name])})
	}
	return all
}

func nodes(n int) []int {
	cells := make([]int, n)
	for i := range cells {
		cells[i] = 1 + i%2
	}
	return cells
}

func odds(t *testing.T, texts ...string) []sim.Odds {
	t.Helper()
	var all []sim.Odds
	for _, text := range texts {
		o, err := sim.ParseOdds(text)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, o)
	}
	return all
}

func answer(t *testing.T, w *sim.World, r sim.Request, within time.Duration) actor.Reply {
	t.Helper()
	reply, broken := w.Answer(r, within)
	if broken != nil {
		t.Fatal(broken)
	}
	return reply
}

func settle(t *testing.T, w *sim.World) {
	t.Helper()
	if broken := w.Settle(); broken != nil {
		t.Fatal(broken)
	}
}

func refused(t *testing.T, reply actor.Reply, reason actor.Reason, text string) {
	t.Helper()
	if reply.Refusal == nil || reply.Refusal.Reason != reason || !strings.Contains(reply.Refusal.Error(), text) {
		t.Fatalf("got %s %q with refusal %v, want %s that says %q", reply.Status, actor.TextOf(reply.Parts), reply.Refusal, reason, text)
	}
}

func TestAgentCallsAgentSuccess(t *testing.T) {
	for n := 1; n <= 3; n++ {
		w := sim.New(sim.Options{Seed: uint64(n), Plan: &sim.Plan{Cells: nodes(n), Agents: team(map[string]agents.Func{
			"agent-a": asks("agent-b", 5*time.Second), "agent-b": says}, "agent-a", "agent-b")}})
		reply := answer(t, w, w.Ask("agent-a", "hello", 10*time.Second, ""), 10*time.Second)
		if text := actor.TextOf(reply.Parts); !strings.Contains(text, "response from agent-b") {
			t.Errorf("on %d nodes agent-a answers %q, %v", n, text, reply.Refusal)
		}
		settle(t, w)
	}
}

func TestAgentCallCycleDetection(t *testing.T) {
	members := map[string]agents.Func{"a": asks("b", 0), "b": asks("c", 0), "c": asks("a", 0), "self": asks("self", 0)}
	w := sim.New(sim.Options{Seed: 2, Plan: &sim.Plan{Cells: nodes(2), Agents: team(members, "a", "b", "c", "self")}})
	refused(t, answer(t, w, w.Ask("a", "round", 10*time.Second, ""), 10*time.Second), actor.Cycle, "cycle detected")
	refused(t, answer(t, w, w.Ask("self", "round", 10*time.Second, ""), 10*time.Second), actor.Cycle, "Cycle detected: self already in call chain")
	settle(t, w)
}

func TestAgentCallTimeout(t *testing.T) {
	members := map[string]agents.Func{"hasty": asks("slow", time.Second), "slow": sleeps(60 * time.Second)}
	for seed := range uint64(10) {
		w := sim.New(sim.Options{Seed: seed, Odds: odds(t, "NetworkDelay:0.5"), Plan: &sim.Plan{Cells: nodes(3), Agents: team(members, "hasty", "slow")}})
		refused(t, answer(t, w, w.Ask("hasty", "quick", 90*time.Second, ""), 20*time.Second), actor.Deadline, "timeout")
		settle(t, w)
	}
}

func TestAgentCallUnderNetworkPartition(t *testing.T) {
	members := map[string]agents.Func{"a": asks("b", 4*time.Second), "b": asks("c", 3*time.Second), "c": sleeps(100 * time.Millisecond)}
	lost, answers, refusals := 0, 0, 0
	for seed := range uint64(10) {
		w := sim.New(sim.Options{Seed: seed, Odds: odds(t, "NetworkPartition:0.3"), Plan: &sim.Plan{Cells: nodes(3), Agents: team(members, "a", "b", "c")}})
		var all []sim.Request
		for i := range 8 {
			all = append(all, w.Ask(fmt.Sprintf("a/s%d", i), "hello", 15*time.Second, ""))
			if broken := w.For(time.Second); broken != nil {
				t.Fatal(broken)
			}
		}
		settle(t, w)
		for _, r := range all {
			switch reply, ok := r.Reply(); {
			case !ok:
				t.Errorf("seed %d: a call has neither answer nor refusal", seed)
			case reply.Refusal != nil:
				refusals++
			default:
				answers++
			}
		}
		lost += w.Stats.Faults[sim.NetworkPartition]
	}
	if lost == 0 || answers == 0 || refusals == 0 {
		t.Errorf("%d messages lost, %d answers, %d refusals: want some of each", lost, answers, refusals)
	}
}

func TestAgentCallDepthLimit(t *testing.T) {
	members := map[string]agents.Func{"a": asks("b", 0), "b": asks("c", 0), "c": asks("d", 0), "d": asks("e", 0), "e": asks("f", 0), "f": says}
	w := sim.New(sim.Options{Seed: 5, Plan: &sim.Plan{Cells: nodes(2), Agents: team(members, "a", "b", "c", "d", "e", "f")}})
	reply := answer(t, w, w.Ask("a", "down", 20*time.Second, ""), 20*time.Second)
	if text := actor.TextOf(reply.Parts); !strings.Contains(text, "response from f") {
		t.Errorf("five calls below each other end with %q, %v", text, reply.Refusal)
	}
	settle(t, w)

	members["f"], members["g"] = asks("g", 0), says
	w = sim.New(sim.Options{Seed: 5, Plan: &sim.Plan{Cells: nodes(2), Agents: team(members, "a", "b", "c", "d", "e", "f", "g")}})
	refused(t, answer(t, w, w.Ask("a", "down", 20*time.Second, ""), 20*time.Second), actor.Depth, "Maximum call depth exceeded")
	settle(t, w)
}

func TestSingleActivationDuringCrossCall(t *testing.T) {
	members := map[string]agents.Func{"a": asks("b", 8*time.Second), "b": asks("c", 6*time.Second), "c": sleeps(300 * time.Millisecond)}
	moved, adopted := 0, 0
	for seed := range uint64(10) {
		w := sim.New(sim.Options{Seed: seed, Odds: odds(t, "ShardMove:1", "StoreCutOff:0.3", "NodePause:0.2", "NetworkPartition:0.1"),
			Plan: &sim.Plan{Cells: nodes(4), Agents: team(members, "a", "b", "c")}})
		for i := range 12 {
			w.Ask(fmt.Sprintf("a/s%d", i%3), "hello", 15*time.Second, fmt.Sprintf("key-%d", i))
			if broken := w.For(700 * time.Millisecond); broken != nil {
				t.Fatalf("seed %d: %v", seed, broken)
			}
		}
		settle(t, w)
		moved += w.Stats.Sometimes[sim.Moved]
		adopted += w.Stats.Sometimes[sim.Adopted]
	}
	if moved == 0 || adopted == 0 {
		t.Errorf("shards moved %d times, were adopted %d times: want both", moved, adopted)
	}
}

func TestDeterminismMultiAgent(t *testing.T) {
	if os.Getenv("SIM_HASH") != "" {
		fmt.Println("hash", sim.RunSeed(sim.Options{Seed: 11}).Hash)
		return
	}
	first := sim.RunTwice(sim.Options{Seed: 11}, sim.Options{Seed: 11})
	if first.Broken != nil {
		t.Fatal(first.Broken)
	}
	if other := sim.RunSeed(sim.Options{Seed: 12}); other.Hash == first.Hash {
		t.Error("two seeds have one hash")
	}
	again := exec.Command(os.Args[0], "-test.run=^TestDeterminismMultiAgent$")
	again.Env = append(os.Environ(), "SIM_HASH=1", "GOMAXPROCS=1")
	out, err := again.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "hash "+first.Hash) {
		t.Errorf("another process says %s (%v), this one %s", out, err, first.Hash)
	}
}

func TestConcurrentCallLimit(t *testing.T) {
	refusals := map[string]int{}
	fan := func(t *agents.Turn) (string, error) {
		var all []actor.Ask
		for i := range dispatcher.AgentConcurrentCallsMax + 1 {
			all = append(all, agents.Call(fmt.Sprintf("b/s%d", i), "hello"))
		}
		for _, a := range t.All(all...) {
			if a.Refusal != nil {
				refusals[a.Refusal.Reason.String()+" "+a.Refusal.Scope.String()]++
			}
		}
		return "done", nil
	}
	w := sim.New(sim.Options{Seed: 8, Plan: &sim.Plan{Cells: nodes(2), Agents: team(map[string]agents.Func{"a": fan, "b": says}, "a", "b")}})
	answer(t, w, w.Ask("a", "fan out", 20*time.Second, ""), 20*time.Second)
	if len(refusals) != 1 || refusals["Busy caller"] != 1 {
		t.Errorf("of %d calls at once these were refused: %v", dispatcher.AgentConcurrentCallsMax+1, refusals)
	}
	settle(t, w)
}
