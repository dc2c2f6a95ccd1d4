// SPDX-License-Identifier: Apache-2.0

package dispatcher

import (
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// fullMailbox returns a mailbox with n messages. Its actor has processed messages that
// took the given time each.
func fullMailbox(n int, each time.Duration) (*Mailbox, actor.Time) {
	m, now := &Mailbox{}, actor.Time(time.Hour)
	m.Pop(now)
	for i := range 64 {
		m.Push(Queued{Call: callID(uint64(i)), At: now})
		if i > 0 {
			now = now.Add(each)
		}
		m.Pop(now)
	}
	for i := range n {
		m.Push(Queued{Call: callID(uint64(100 + i)), At: now})
	}
	return m, now
}

func TestRetryAfterIsTimeToServeQueue(t *testing.T) {
	for _, test := range []struct {
		waiting int
		each    time.Duration
		want    time.Duration
	}{
		{128, time.Millisecond, time.Second}, // 128 ms; the minimum
		{128, 100 * time.Millisecond, 12800 * time.Millisecond},
		{10, 4 * time.Second, 40 * time.Second},
		{128, 4 * time.Second, time.Minute}, // 512 s; the maximum
		{5, time.Hour, time.Minute},
	} {
		m, now := fullMailbox(test.waiting, test.each)
		l := DefaultLimits()
		l.MaxPendingPerActor = test.waiting
		r := m.Admit(l, now, actor.NewID("a", ""), 1)
		if r == nil || r.RetryAfter != test.want {
			t.Errorf("%d messages of %v each: got %v, want %v", test.waiting, test.each, r, test.want)
		}
	}
}

// The rate follows the last turns. A turn that takes longer than the average counts
// already before it ends.
func TestRetryAfterFollowsCurrentRate(t *testing.T) {
	m, now := fullMailbox(10, time.Second)
	if got := m.RetryAfter(now); got != 10*time.Second {
		t.Errorf("got %v, want 10s", got)
	}
	if got := m.RetryAfter(now.Add(3 * time.Second)); got != 30*time.Second {
		t.Errorf("during a turn of 3s: got %v, want 30s", got)
	}
	for range 20 { // served at twice the rate from now on
		m.Push(Queued{At: now})
		now = now.Add(500 * time.Millisecond)
		m.Pop(now)
	}
	if got := m.RetryAfter(now); got < 5*time.Second || got > 5100*time.Millisecond {
		t.Errorf("at the new rate: got %v, want 5s", got)
	}
}

// The time in which the actor was idle reveals nothing about its rate.
func TestIdleTimeIsNotMeasured(t *testing.T) {
	m, now := fullMailbox(0, time.Second)
	now = now.Add(time.Hour)
	m.Push(Queued{At: now})
	m.Pop(now)
	for range 4 {
		m.Push(Queued{At: now})
	}
	if got := m.RetryAfter(now); got != 4*time.Second {
		t.Errorf("got %v, want 4s", got)
	}
}

func TestJitterShortensByUpToQuarter(t *testing.T) {
	seen := map[actor.Duration]bool{}
	for random := range uint64(1000) {
		d := actor.Jitter(4*time.Second, random*0x9e3779b97f4a7c15)
		if seen[d] = true; d > 4*time.Second || d < 3*time.Second {
			t.Fatalf("got %v, want 3s to 4s", d)
		}
	}
	if len(seen) < 900 {
		t.Errorf("got %d different delays of 1000", len(seen))
	}
	if d := actor.Jitter(0, 7); d != 0 {
		t.Errorf("got %v, want 0", d)
	}
}

func TestCallerAtItsLimitIsGivenRetryDelay(t *testing.T) {
	caller := Caller{Self: actor.NewID("a", "s"), Left: time.Minute, Budget: 9, Outstanding: AgentConcurrentCallsMax}
	_, r := Route(DefaultLimits(), caller, actor.NewID("b", "s"), &actor.Definition{Name: "b"}, 0)
	if r == nil || r.Reason != actor.Busy || r.Scope != actor.ScopeCaller || r.RetryAfter != time.Second {
		t.Errorf("got %+v, want Busy of the caller for a second", r)
	}
}
