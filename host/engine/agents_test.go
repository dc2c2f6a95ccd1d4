// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
)

// says is an agent that says one word, and waits for a signal before it does if
// it is told to.
func says(name, word string) actor.Definition {
	return agents.Define(name, word, "of a test", agents.Blocking(agents.Func(func(turn *agents.Turn) (string, error) {
		if turn.Message() == "wait" {
			if _, err := turn.Wait("go", 0); err != nil {
				return "", err
			}
		}
		return word, nil
	})))
}

func TestAgentsChangeForEveryCellAtOnce(t *testing.T) {
	bomb := rawAgent("bomb", func(actor.Begin) (actor.Action, error) { panic("as told") })
	old := says("agent", "old")
	n := start(t, t.TempDir(), func(c *Config) { c.Cells = 4 }, old, bomb)
	held := n.await(n.call("agent", "held", "wait"))
	if held.HeldUntil == 0 {
		t.Fatalf("got %+v", held)
	}
	if a := n.ask("agent", "k", "x"); text(a) != "old" {
		t.Errorf("before: %+v", a.Reply)
	}
	next := append(agents.Builtin(), says("agent", "new"), bomb)
	if err := n.Define(patient(t), next, []actor.Definition{old}); err != nil {
		t.Fatal(err)
	}
	for i := range 64 {
		if a := n.ask("agent", fmt.Sprint(i), "x"); text(a) != "new" {
			t.Fatalf("after: %+v", a.Reply)
		}
	}
	if got := n.Agents(); len(got) != len(next) || got[len(got)-2].Hash != next[len(next)-2].Hash {
		t.Errorf("Agents lists %v", got)
	}
	// Cells that begin anew begin with the latest; runs keep what they began with.
	for i := range 16 {
		n.ask("bomb", fmt.Sprint(i), "x")
	}
	for i := range 64 {
		if a := n.ask("agent", fmt.Sprint(i), "x"); text(a) != "new" {
			t.Fatalf("after a restart: %+v", a.Reply)
		}
	}
	again := n.call("agent", "held", "x")
	if a := n.signal(held.Reply.Run, again.To, "go"); a.Reply.Refusal != nil {
		t.Errorf("signal: %+v", a.Reply)
	}
	if got := n.outcome(held.Reply.Run); got != "old" {
		t.Errorf("the run that was held says %q", got)
	}
}

// A node that starts knows what its open runs began with before any of them goes on.
func TestANodeStartsWithWhatAgentsWere(t *testing.T) {
	dir, old, now := t.TempDir(), says("agent", "old"), says("agent", "new")
	n := start(t, dir, nil, old)
	held := n.call("agent", "held", "wait")
	run := n.await(held).Reply.Run
	n.close()

	n = start(t, dir, func(c *Config) { c.Former = []actor.Definition{old} }, now)
	if a := n.signal(run, held.To, "go"); a.Reply.Refusal != nil {
		t.Errorf("signal: %+v", a.Reply)
	}
	if got := n.outcome(run); got != "old" {
		t.Errorf("the run that was held says %q", got)
	}
	if a := n.ask("agent", "k", "x"); text(a) != "new" {
		t.Errorf("a new one: %+v", a.Reply)
	}
}

func TestDefineWaitsAsLongAsItMay(t *testing.T) {
	begun, let := make(chan struct{}), make(chan struct{})
	n := start(t, t.TempDir(), func(c *Config) { c.Cells = 1 }, rawAgent("slow", func(actor.Begin) (actor.Action, error) {
		close(begun)
		<-let
		return actor.Complete(actor.Text("ok")), nil
	}))
	answer := make(chan Answer, 1)
	go func() { answer <- n.ask("slow", "s", "x") }()
	<-begun
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := n.Define(ctx, nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := n.State(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("State: %v", err)
	}
	close(let)
	<-answer
	// The change came all the same, and before what came later.
	if err := n.Define(patient(t), nil, nil); err != nil {
		t.Error(err)
	}
	n.close()
	if err := n.Define(context.Background(), nil, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}
