// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// refusedAfter fills the mailbox of an actor whose turns take d. It returns the retry
// delays of twenty further messages.
func refusedAfter(t *testing.T, d time.Duration, durability func(*actor.Definition)) (delays []actor.Duration) {
	t.Helper()
	n := newNode(t, 1, agent("a", sleeping(d), durability))
	n.limits.MaxPendingPerActor = 4
	n.restart(1)
	for range 5 {
		n.send("a", "x")
	}
	n.advance(d + d/2) // the first turn has ended, the second is half done
	n.send("a", "x")
	for range 20 {
		r := n.replies[n.send("a", "x")].Refusal
		if r == nil || r.Reason != actor.Busy || r.Scope != actor.ScopeCallee {
			t.Fatalf("got %+v, want Busy of the callee", r)
		}
		delays = append(delays, r.RetryAfter)
	}
	return delays
}

// A full actor requests a retry when it has probably served its queue of four. The
// delays of clients that are refused together differ.
func TestRetryDelayIsThatOfQueueAndVaries(t *testing.T) {
	for _, durability := range []func(*actor.Definition){func(*actor.Definition) {}, volatile} {
		for d, longest := range map[time.Duration]time.Duration{10 * time.Millisecond: time.Second, 2 * time.Second: 8 * time.Second, 20 * time.Second: time.Minute} {
			different := map[actor.Duration]bool{}
			for _, got := range refusedAfter(t, d, durability) {
				if different[got] = true; got > longest || got < longest*3/4 {
					t.Errorf("turns of %v: got %v, want %v less up to a quarter", d, got, longest)
				}
			}
			if len(different) < 10 {
				t.Errorf("turns of %v: got %d different delays of 20", d, len(different))
			}
		}
	}
}

// An agent at its limit of open calls receives a varied retry delay too.
func TestRetryDelayOfCallerAtItsLimit(t *testing.T) {
	different := map[actor.Duration]bool{}
	fan := script(func(_ actor.Begin, answers [][]actor.Answer) (actor.Action, error) {
		if len(answers) > 0 {
			for _, a := range answers[0] {
				if r := a.Refusal; r != nil && r.Reason == actor.Busy && r.Scope == actor.ScopeCaller {
					different[r.RetryAfter] = true
				}
			}
			return actor.Complete(nil), nil
		}
		var asks []actor.Ask
		for range 20 {
			asks = append(asks, actor.Ask{Kind: actor.AskCall, Name: "b", Parts: actor.Text("x")})
		}
		return actor.Action{Asks: asks}, nil
	})
	n := newNode(t, 1, agent("a", fan), agent("b", sleeping(time.Second)))
	n.limits.AgentConcurrentCallsMax = 2
	n.restart(1)
	n.send("a", "x")
	n.advance(time.Minute)
	for d := range different {
		if d <= 0 || d > time.Second {
			t.Errorf("got %v, want at most a second", d)
		}
	}
	if len(different) < 10 {
		t.Errorf("got %d different delays, want 18", len(different))
	}
}
