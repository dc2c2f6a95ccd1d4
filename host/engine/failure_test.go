// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	goruntime "runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// A call that makes its cell fail is refused after three failures. No other
// client loses an answer.
func TestFailedCellRestarts(t *testing.T) {
	for name, fail := range map[string]func(){"panic": func() { panic("test failure") }, "goexit": goruntime.Goexit} {
		t.Run(name, func(t *testing.T) {
			var times atomic.Int32
			n := startNode(t, t.TempDir(), func(c *Config) { c.Cells = 2 },
				rawAgent("bomb", func(actor.Begin) (actor.Action, error) {
					times.Add(1)
					fail()
					return actor.Action{}, nil
				}),
				blockingAgent("relay", func(turn *agents.Turn) (string, error) { return turn.Call("bomb/b", "x") }))
			n.ask("coordinator", "s-1", "xyzzy")
			epochs := [2]actor.Epoch{n.owned.epochs[0], n.owned.epochs[1]}
			var others sync.WaitGroup
			for i := range 16 {
				others.Go(func() {
					for j := range 20 {
						want := fmt.Sprintf("response from helper: %d.%d", i, j)
						if a := n.ask("helper", fmt.Sprintf("h-%d", i), fmt.Sprintf("%d.%d", i, j)); replyText(a) != want {
							t.Errorf("got %q %+v, want %q", replyText(a), a.Reply.Refusal, want)
						}
					}
				})
			}
			for _, agent := range []string{"bomb", "relay"} {
				if a := n.ask(agent, "b", "x"); a.Reply.Refusal == nil || a.Reply.Refusal.Reason != actor.Unavailable {
					t.Errorf("%s: got %+v, want Unavailable", agent, a.Reply)
				}
			}
			others.Wait()
			if got := times.Load(); got != 3+1+3 {
				t.Errorf("cell failed %d times, want 3 for each of two calls, and once for the one that relay made in its first step", got)
			}
			victim := dispatcher.ShardOf(actor.NewID("bomb", "b")) % 2
			for i := range epochs {
				o, _ := n.owners().Of(uint16(i))
				if grown := o.Epoch > epochs[i]; grown != (uint16(i) == victim) {
					t.Errorf("cell %d: epoch %d, was %d; only the failed cell gets a new one", i, o.Epoch, epochs[i])
				}
			}
			// Open work of the failed cell resumes.
			var run actor.CallID
			if err := n.Read(testContext(t), func(log store.Reader) error {
				return store.EachRun(log, actor.DefaultTenant, runs.Filter{Agent: "coordinator"}, func(s *runs.Summary) { run = s.Run })
			}); err != nil {
				t.Fatal(err)
			}
			n.signal(run, actor.NewID("coordinator", "s-1"), "go")
			n.waitForEvent(run, runs.RunDone)
		})
	}
}

// Work that is running when its cell fails is not repeated. Its outcome goes to
// the next incarnation.
func TestWorkSurvivesCellRestart(t *testing.T) {
	release, started := make(chan struct{}), make(chan struct{}, 8)
	n := startNode(t, t.TempDir(), func(c *Config) { c.Cells = 1 },
		rawAgent("bomb", func(actor.Begin) (actor.Action, error) { panic("test failure") }),
		blockingAgent("worker", func(turn *agents.Turn) (string, error) {
			b, err := turn.Do("work", func(context.Context) ([]byte, error) {
				started <- struct{}{}
				<-release
				return []byte("done"), nil
			})
			return string(b), err
		}))
	call := n.newCall("worker", "s", "x")
	answer := make(chan Answer, 1)
	go func() { answer <- n.askCall(call) }()
	<-started
	n.ask("bomb", "b", "x")
	// The refusal of the signal shows that the actor has been loaded again.
	if a := n.signal(call.ID, call.To, "go"); a.Reply.Refusal == nil || a.Reply.Refusal.Reason != actor.Rejected {
		t.Errorf("signal: got %+v, want Rejected", a)
	}
	close(release)
	if a := <-answer; replyText(a) != "done" {
		t.Errorf("got %+v, want done", a.Reply)
	}
	if len(started) > 0 {
		t.Error("work was performed twice")
	}
}

// A node whose cells keep failing stops and reports the reason.
func TestNodeStopsAfterTooManyRestarts(t *testing.T) {
	n := startNode(t, t.TempDir(), func(c *Config) { c.Cells = 1 }, volatile(rawAgent("bomb", func(actor.Begin) (actor.Action, error) { panic("test failure") })))
	ctx := testContext(t)
	for i := 0; ; i++ {
		a, err := n.Ask(ctx, n.newCall("bomb", fmt.Sprint(i), "x"))
		if err != nil {
			if !strings.Contains(err.Error(), "failed more than 100 times") || !errors.Is(err, n.Err()) || n.Ready() != n.Err() {
				t.Errorf("got %v, want an error about 100 failures from Ask, Err and Ready", err)
			}
			var r *actor.Refusal
			if !errors.As(err, &r) || r.Reason != actor.Unavailable || !strings.Contains(r.Detail, "reply channel closed") || r.RetryAfter <= 0 {
				t.Errorf("got %v, want Unavailable because the reply channel closed", err)
			}
			break
		}
		if a.Reply.Refusal == nil || a.Reply.Refusal.Reason != actor.Unavailable {
			t.Fatalf("got %+v, want Unavailable", a)
		}
	}
	select {
	case <-n.Done():
	case <-ctx.Done():
		t.Error("Done is not closed")
	}
}

// volatile makes an agent volatile, so that its calls do not wait for the disk.
func volatile(d actor.Definition) actor.Definition {
	d.Durability = actor.Volatile
	return d
}
