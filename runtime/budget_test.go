// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
)

// fanOut returns an agent that makes all its calls in one action and completes with
// the answers.
func fanOut(targets ...string) script {
	return func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) == 0 && len(targets) > 0 {
			var asks []actor.Ask
			for _, to := range targets {
				asks = append(asks, actor.Ask{Kind: actor.AskCall, Name: to, Parts: b.Call.Parts})
			}
			return actor.Action{Asks: asks}, nil
		}
		text := b.Call.To.Agent + "("
		for _, step := range answers {
			for _, a := range step {
				text += answerText(a) + " "
			}
		}
		return actor.Complete(actor.Text(text + ")")), nil
	}
}

func TestCallsOfOneActionShareTheTreeBudget(t *testing.T) {
	for _, test := range []struct {
		name   string
		max    uint32
		agents []actor.Definition
		want   string
		made   int
		left   uint32
	}{
		{"three calls with two left", 2, []actor.Definition{agent("a", fanOut("b", "c", "d")), agent("b", echo()), agent("c", echo()), agent("d", echo())},
			"a(b: c: Budget )", 2, 0},
		{"volatile", 2, []actor.Definition{agent("a", fanOut("b", "c", "d"), volatile), agent("b", echo(), volatile), agent("c", echo(), volatile), agent("d", echo(), volatile)},
			"a(b: c: Budget )", 2, 0},
		{"no share left for a grandchild", 2, []actor.Definition{agent("a", fanOut("b", "c")), agent("b", fanOut("d")), agent("c", fanOut("d")), agent("d", echo())},
			"a(b(Budget ) c(Budget ) )", 2, 0},
		{"shares of both levels", 8, []actor.Definition{agent("a", fanOut("b", "c")), agent("b", fanOut("d", "e", "f")), agent("c", fanOut("d", "e", "f")), agent("d", echo()), agent("e", echo()), agent("f", echo())},
			"a(b(d: e: Budget ) c(d: e: Budget ) )", 6, 2},
		{"unused share returned", 6, []actor.Definition{agent("a", calling("b", "b", "b", "b")), agent("b", calling("c")), agent("c", echo())},
			"a(b(c:)b(c:)b(Budget)b(Budget))", 6, 0},
		{"refused calls cost nothing", 2, []actor.Definition{agent("a", fanOut("nobody", "b", "nobody", "b", "b")), agent("b", echo())},
			"a(NotFound b: NotFound b: Budget )", 2, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newNode(t, 2, test.agents...)
			n.limits.CallsPerTreeMax = test.max
			n.restart(2)
			id := n.send("a", "")
			n.want(id, test.want)
			if got := n.childCalls; got != test.made {
				t.Errorf("got %d calls, want %d", got, test.made)
			}
			if got := n.replies[id].Budget; got != test.left {
				t.Errorf("got a rest of %d calls, want %d", got, test.left)
			}
		})
	}
}

// Agents of random fan-out in random trees never make more calls than the budget of
// their tree. A tree without timeouts returns exactly the rest.
func TestTreeNeverExceedsItsBudget(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		names := []string{"a", "b", "c", "d", "e"}
		var agents []actor.Definition
		timeouts := rapid.Bool().Draw(rt, "timeouts")
		for i, name := range names {
			steps := rapid.SliceOfN(rapid.SliceOfN(rapid.IntRange(i+1, len(names)), 1, 4), 0, 3).Draw(rt, name)
			slow := timeouts && rapid.IntRange(0, 3).Draw(rt, name+" is slow") == 0
			agents = append(agents, agent(name, func(b actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
				if len(answers) < len(steps) {
					var asks []actor.Ask
					for _, to := range steps[len(answers)] {
						target := "nobody"
						if to < len(names) {
							target = fmt.Sprint(names[to], "/", len(asks))
						}
						asks = append(asks, actor.Ask{Kind: actor.AskCall, Name: target, Timeout: 10 * time.Second})
					}
					return actor.Action{Asks: asks}, nil
				}
				if slow && len(answers) == len(steps) {
					return actor.Action{Asks: []actor.Ask{{Kind: actor.AskSleep, Timeout: 4 * time.Second}}}, nil
				}
				return actor.Complete(actor.Text("done")), nil
			}, func(d *actor.Definition) {
				if rapid.IntRange(0, 3).Draw(rt, name+" is volatile") == 0 {
					d.Durability = actor.Volatile
				}
			}))
		}
		n := newNode(t, 2, agents...)
		n.limits.CallsPerTreeMax = rapid.Uint32Range(1, 40).Draw(rt, "budget")
		n.restart(2)
		id := n.send("a", "")
		n.advance(10 * time.Minute)
		made, left := uint32(n.childCalls), n.replies[id].Budget
		if made+left > n.limits.CallsPerTreeMax || !timeouts && made+left != n.limits.CallsPerTreeMax {
			rt.Fatalf("%d calls made and %d left of %d: %s", made, left, n.limits.CallsPerTreeMax, n.result(id))
		}
	})
}

func TestCallbacksShareTheTreeBudget(t *testing.T) {
	n := newNode(t, 2, externalAgent(false), agent("helper", fanOut("a")), agent("a", echo()))
	n.limits.CallsPerTreeMax = 5
	n.restart(2)
	root := n.send("worker", "go")
	for _, want := range []string{"helper(a: )", "helper(a: )", "helper(Budget )", "Budget"} {
		callCount++
		n.want(n.sendCallback(root, fmt.Sprintf(`{"agent_id":"helper/%d","message":""}`, callCount)), want)
	}
	n.sendOutcome(n.external[0], completion("worked"))
	n.want(root, "worked")
	if n.childCalls != 5 {
		t.Errorf("got %d calls, want 5", n.childCalls)
	}
}
