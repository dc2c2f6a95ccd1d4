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

// wordAgent returns an agent that replies with one word. If its message is
// "wait", it waits for a signal first.
func wordAgent(name, word string) actor.Definition {
	return agents.Define(name, word, "test agent", agents.Blocking(agents.Func(func(turn *agents.Turn) (string, error) {
		if turn.Message() == "wait" {
			if _, err := turn.Wait("go", 0); err != nil {
				return "", err
			}
		}
		return word, nil
	})))
}

func TestDefineUpdatesEveryCell(t *testing.T) {
	bomb := rawAgent("bomb", func(actor.Begin) (actor.Action, error) { panic("test failure") })
	old := wordAgent("agent", "old")
	n := startNode(t, t.TempDir(), func(c *Config) { c.Cells = 4 }, old, bomb)
	held := n.askCall(n.newCall("agent", "held", "wait"))
	if held.HeldUntil == 0 {
		t.Fatalf("got %+v", held)
	}
	if a := n.ask("agent", "k", "x"); replyText(a) != "old" {
		t.Errorf("before Define: got %+v, want old", a.Reply)
	}
	next := append(agents.Builtin(), wordAgent("agent", "new"), bomb)
	if err := n.Define(testContext(t), next, []actor.Definition{old}, nil); err != nil {
		t.Fatal(err)
	}
	for i := range 64 {
		if a := n.ask("agent", fmt.Sprint(i), "x"); replyText(a) != "new" {
			t.Fatalf("after Define: got %+v, want new", a.Reply)
		}
	}
	if got := n.Agents(); len(got) != len(next) || got[len(got)-2].Hash != next[len(next)-2].Hash {
		t.Errorf("Agents returned %v", got)
	}
	// Restarted cells use the latest definitions; open runs keep the
	// definitions with which they started.
	for i := range 16 {
		n.ask("bomb", fmt.Sprint(i), "x")
	}
	for i := range 64 {
		if a := n.ask("agent", fmt.Sprint(i), "x"); replyText(a) != "new" {
			t.Fatalf("after cell restarts: got %+v, want new", a.Reply)
		}
	}
	signal := n.newCall("agent", "held", "x")
	if a := n.signal(held.Reply.Run, signal.To, "go"); a.Reply.Refusal != nil {
		t.Errorf("signal: %+v", a.Reply)
	}
	if got := n.waitForResult(held.Reply.Run); got != "old" {
		t.Errorf("held run replied %q, want old", got)
	}
}

// A starting node MUST know the definitions of its open runs before any of them
// resumes.
func TestOpenRunKeepsFormerDefinitionAfterRestart(t *testing.T) {
	dir, old, now := t.TempDir(), wordAgent("agent", "old"), wordAgent("agent", "new")
	n := startNode(t, dir, nil, old)
	held := n.newCall("agent", "held", "wait")
	run := n.askCall(held).Reply.Run
	n.close()

	n = startNode(t, dir, func(c *Config) { c.Former = []actor.Definition{old} }, now)
	if a := n.signal(run, held.To, "go"); a.Reply.Refusal != nil {
		t.Errorf("signal: %+v", a.Reply)
	}
	if got := n.waitForResult(run); got != "old" {
		t.Errorf("held run replied %q, want old", got)
	}
	if a := n.ask("agent", "k", "x"); replyText(a) != "new" {
		t.Errorf("new run: got %+v, want new", a.Reply)
	}
}

func TestDefineHonoursContext(t *testing.T) {
	started, release := make(chan struct{}), make(chan struct{})
	n := startNode(t, t.TempDir(), func(c *Config) { c.Cells = 1 }, rawAgent("slow", func(actor.Begin) (actor.Action, error) {
		close(started)
		<-release
		return actor.Complete(actor.Text("ok")), nil
	}))
	answer := make(chan Answer, 1)
	go func() { answer <- n.ask("slow", "s", "x") }()
	<-started
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := n.Define(ctx, nil, nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Define with a cancelled context: got %v", err)
	}
	if _, err := n.State(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("State with a cancelled context: got %v", err)
	}
	close(release)
	<-answer
	// The cancelled change still took effect, before any later change.
	if err := n.Define(testContext(t), nil, nil, nil); err != nil {
		t.Error(err)
	}
	n.close()
	if err := n.Define(context.Background(), nil, nil, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("Define after Close: got %v, want ErrClosed", err)
	}
}
