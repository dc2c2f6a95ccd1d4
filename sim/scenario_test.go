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

// replyWithName answers with the name of the agent.
func replyWithName(t *agents.Turn) (string, error) { return "response from " + t.Self().Agent, nil }

// forwardTo forwards its message to the target agent and returns the target's answer.
func forwardTo(target string, within time.Duration) agents.Func {
	return func(t *agents.Turn) (string, error) {
		text, err := t.Call(target, t.Message(), agents.Within(within))
		if err != nil {
			return "", err
		}
		return t.Self().Agent + " got: " + text, nil
	}
}

// sleepThenReply answers after the given time.
func sleepThenReply(d time.Duration) agents.Func {
	return func(t *agents.Turn) (string, error) {
		if err := t.Sleep(d); err != nil {
			return "", err
		}
		return replyWithName(t)
	}
}

func agentSet(agentFuncs map[string]agents.Func, order ...string) []actor.Definition {
	var all []actor.Definition
	for _, name := range order {
		all = append(all, actor.Definition{Name: name, Behavior: agents.Blocking(agentFuncs[name])})
	}
	return all
}

func cellsPerNode(n int) []int {
	cells := make([]int, n)
	for i := range cells {
		cells[i] = 1 + i%2
	}
	return cells
}

func parseOdds(t *testing.T, texts ...string) []sim.Odds {
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

func awaitReply(t *testing.T, w *sim.Simulation, r sim.Request, within time.Duration) actor.Reply {
	t.Helper()
	reply, violation := w.AwaitReply(r, within)
	if violation != nil {
		t.Fatal(violation)
	}
	return reply
}

func settle(t *testing.T, w *sim.Simulation) {
	t.Helper()
	if violation := w.Settle(); violation != nil {
		t.Fatal(violation)
	}
}

func wantRefusal(t *testing.T, reply actor.Reply, reason actor.Reason, text string) {
	t.Helper()
	if reply.Refusal == nil || reply.Refusal.Reason != reason || !strings.Contains(reply.Refusal.Error(), text) {
		t.Fatalf("got %s %q with refusal %v, want %s containing %q", reply.Status, actor.TextOf(reply.Parts), reply.Refusal, reason, text)
	}
}

func TestAgentCallsAgentSuccess(t *testing.T) {
	for n := 1; n <= 3; n++ {
		w := sim.New(sim.Options{Seed: uint64(n), Plan: &sim.Plan{Cells: cellsPerNode(n), Agents: agentSet(map[string]agents.Func{
			"agent-a": forwardTo("agent-b", 5*time.Second), "agent-b": replyWithName}, "agent-a", "agent-b")}})
		reply := awaitReply(t, w, w.Submit("agent-a", "hello", 10*time.Second, ""), 10*time.Second)
		if text := actor.TextOf(reply.Parts); !strings.Contains(text, "response from agent-b") {
			t.Errorf("%d nodes: agent-a answered %q, refusal %v", n, text, reply.Refusal)
		}
		settle(t, w)
	}
}

func TestAgentCallCycleDetection(t *testing.T) {
	members := map[string]agents.Func{"a": forwardTo("b", 0), "b": forwardTo("c", 0), "c": forwardTo("a", 0), "self": forwardTo("self", 0)}
	w := sim.New(sim.Options{Seed: 2, Plan: &sim.Plan{Cells: cellsPerNode(2), Agents: agentSet(members, "a", "b", "c", "self")}})
	wantRefusal(t, awaitReply(t, w, w.Submit("a", "round", 10*time.Second, ""), 10*time.Second), actor.Cycle, "cycle detected")
	wantRefusal(t, awaitReply(t, w, w.Submit("self", "round", 10*time.Second, ""), 10*time.Second), actor.Cycle, "Cycle detected: self already in call chain")
	settle(t, w)
}

func TestAgentCallTimeout(t *testing.T) {
	members := map[string]agents.Func{"hasty": forwardTo("slow", time.Second), "slow": sleepThenReply(60 * time.Second)}
	for seed := range uint64(10) {
		w := sim.New(sim.Options{Seed: seed, Odds: parseOdds(t, "NetworkDelay:0.5"), Plan: &sim.Plan{Cells: cellsPerNode(3), Agents: agentSet(members, "hasty", "slow")}})
		wantRefusal(t, awaitReply(t, w, w.Submit("hasty", "quick", 90*time.Second, ""), 20*time.Second), actor.Deadline, "timeout")
		settle(t, w)
	}
}

func TestAgentCallUnderNetworkPartition(t *testing.T) {
	members := map[string]agents.Func{"a": forwardTo("b", 4*time.Second), "b": forwardTo("c", 3*time.Second), "c": sleepThenReply(100 * time.Millisecond)}
	lost, answers, refusals := 0, 0, 0
	for seed := range uint64(10) {
		w := sim.New(sim.Options{Seed: seed, Odds: parseOdds(t, "NetworkPartition:0.3"), Plan: &sim.Plan{Cells: cellsPerNode(3), Agents: agentSet(members, "a", "b", "c")}})
		var all []sim.Request
		for range 8 {
			all = append(all, w.Submit("a", "hello", 15*time.Second, "")) // the agents of a session would all be on one node
			if violation := w.RunFor(time.Second); violation != nil {
				t.Fatal(violation)
			}
		}
		settle(t, w)
		for _, r := range all {
			switch reply, ok := r.Reply(); {
			case !ok:
				t.Errorf("seed %d: call without a reply", seed)
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
	members := map[string]agents.Func{"a": forwardTo("b", 0), "b": forwardTo("c", 0), "c": forwardTo("d", 0), "d": forwardTo("e", 0), "e": forwardTo("f", 0), "f": replyWithName}
	w := sim.New(sim.Options{Seed: 5, Plan: &sim.Plan{Cells: cellsPerNode(2), Agents: agentSet(members, "a", "b", "c", "d", "e", "f")}})
	reply := awaitReply(t, w, w.Submit("a", "down", 20*time.Second, ""), 20*time.Second)
	if text := actor.TextOf(reply.Parts); !strings.Contains(text, "response from f") {
		t.Errorf("chain of five calls: got %q, refusal %v", text, reply.Refusal)
	}
	settle(t, w)

	members["f"], members["g"] = forwardTo("g", 0), replyWithName
	w = sim.New(sim.Options{Seed: 5, Plan: &sim.Plan{Cells: cellsPerNode(2), Agents: agentSet(members, "a", "b", "c", "d", "e", "f", "g")}})
	wantRefusal(t, awaitReply(t, w, w.Submit("a", "down", 20*time.Second, ""), 20*time.Second), actor.Depth, "Maximum call depth exceeded")
	settle(t, w)
}

func TestSingleActivationDuringCrossCall(t *testing.T) {
	members := map[string]agents.Func{"a": forwardTo("b", 8*time.Second), "b": forwardTo("c", 6*time.Second), "c": sleepThenReply(300 * time.Millisecond)}
	moved, adopted := 0, 0
	for seed := range uint64(10) {
		w := sim.New(sim.Options{Seed: seed, Odds: parseOdds(t, "ShardMove:1", "StoreCutOff:0.3", "NodePause:0.2", "NetworkPartition:0.1"),
			Plan: &sim.Plan{Cells: cellsPerNode(4), Agents: agentSet(members, "a", "b", "c")}})
		for i := range 12 {
			w.Submit(fmt.Sprintf("a/s%d", i%3), "hello", 15*time.Second, fmt.Sprintf("key-%d", i))
			if violation := w.RunFor(700 * time.Millisecond); violation != nil {
				t.Fatalf("seed %d: %v", seed, violation)
			}
		}
		settle(t, w)
		moved += w.Stats.Points[sim.Moved]
		adopted += w.Stats.Points[sim.Adopted]
	}
	if moved == 0 || adopted == 0 {
		t.Errorf("%d shard moves, %d adoptions: want some of each", moved, adopted)
	}
}

func TestDeterminismMultiAgent(t *testing.T) {
	if os.Getenv("SIM_HASH") != "" {
		fmt.Println("hash", sim.RunSeed(sim.Options{Seed: 11}).Hash)
		return
	}
	first := sim.RunTwice(sim.Options{Seed: 11}, sim.Options{Seed: 11})
	if first.Violation != nil {
		t.Fatal(first.Violation)
	}
	if other := sim.RunSeed(sim.Options{Seed: 12}); other.Hash == first.Hash {
		t.Error("seeds 11 and 12 have the same hash")
	}
	child := exec.Command(os.Args[0], "-test.run=^TestDeterminismMultiAgent$")
	child.Env = append(os.Environ(), "SIM_HASH=1", "GOMAXPROCS=1")
	out, err := child.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "hash "+first.Hash) {
		t.Errorf("child process printed %s (%v), want hash %s", out, err, first.Hash)
	}
}

func TestConcurrentCallLimit(t *testing.T) {
	refusals := map[string]int{}
	fanOut := func(t *agents.Turn) (string, error) {
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
	w := sim.New(sim.Options{Seed: 8, Plan: &sim.Plan{Cells: cellsPerNode(2), Agents: agentSet(map[string]agents.Func{"a": fanOut, "b": replyWithName}, "a", "b")}})
	awaitReply(t, w, w.Submit("a", "fan out", 20*time.Second, ""), 20*time.Second)
	if len(refusals) != 1 || refusals["Busy caller"] != 1 {
		t.Errorf("%d concurrent calls: refusals %v, want one Busy caller", dispatcher.AgentConcurrentCallsMax+1, refusals)
	}
	settle(t, w)
}
