// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakeTarget is a target whose outcomes come from a function of the call number.
type fakeTarget struct {
	mu      sync.Mutex
	count   int
	respond func(n int) Outcome
}

func (s *fakeTarget) Caller(int) (Caller, error) { return s, nil }
func (s *fakeTarget) Close()                     {}

func (s *fakeTarget) Call() Outcome {
	s.mu.Lock()
	s.count++
	n := s.count
	s.mu.Unlock()
	return s.respond(n)
}

// runLoop runs a loop on the virtual clock of synctest.
func runLoop(t *testing.T, loop func(context.Context) (Result, error)) (r Result) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var err error
		if r, err = loop(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	return r
}

func TestOpenLoopLatencyIncludesPauses(t *testing.T) {
	s := &fakeTarget{respond: func(n int) Outcome {
		if n == 1000 {
			sleep(context.Background(), 90*time.Millisecond)
		}
		return Outcome{}
	}}
	r := runLoop(t, func(ctx context.Context) (Result, error) {
		return OpenLoop{Rate: 1000, For: 3 * time.Second, Callers: 1}.Run(ctx, s)
	})
	if r.Done != 3000 || r.Unsent != 0 {
		t.Fatalf("%d completed, %d not sent; want 3000 and none", r.Done, r.Unsent)
	}
	// 90 of 3000 calls arrive during the pause and wait 45 ms on average.
	if r.Latency.P99 < 55*time.Millisecond || r.Latency.Max < 85*time.Millisecond || r.Lag.P99 < 55*time.Millisecond {
		t.Errorf("latency %+v, lag %+v: want the pause in both", r.Latency, r.Lag)
	}
	if r.Service.P99 > time.Millisecond || r.Service.Max < 85*time.Millisecond {
		t.Errorf("service %+v: want one slow call", r.Service)
	}
}

func TestOpenLoopCountsUnsentCalls(t *testing.T) {
	s := &fakeTarget{respond: func(int) Outcome { sleep(context.Background(), 10*time.Millisecond); return Outcome{} }}
	r := runLoop(t, func(ctx context.Context) (Result, error) {
		return OpenLoop{Rate: 1000, For: 2 * time.Second, Callers: 2}.Run(ctx, s)
	})
	if all := r.Done + r.Late + r.Unsent; all != 2000 {
		t.Errorf("want 2000 calls accounted for, got %d: %+v", all, r)
	}
	if r.Done < 390 || r.Done > 400 {
		t.Errorf("%d completed: want 390 to 400", r.Done)
	}
	if r.Lag.Max > LatenessMaxDefault+time.Millisecond {
		t.Errorf("maximum lag %v: want at most LatenessMaxDefault", r.Lag.Max)
	}
}

func TestRetryHonoursRetryAfter(t *testing.T) {
	tries := map[int]time.Time{}
	s := &fakeTarget{}
	s.respond = func(n int) Outcome { // each of the first ten calls is refused once
		s.mu.Lock()
		defer s.mu.Unlock()
		tries[n] = time.Now()
		if n <= 10 {
			return Outcome{Code: "agent_busy", Scope: "node", RetryAfter: time.Second}
		}
		return Outcome{}
	}
	r := runLoop(t, func(ctx context.Context) (Result, error) {
		return OpenLoop{Rate: 10, For: 3 * time.Second, Callers: 4}.Run(ctx, s)
	})
	if r.Retried != 10 || r.GivenUp != 0 || r.Waiting != 0 || r.Done != 30 {
		t.Fatalf("want 10 retries and 30 completed calls, got %+v", r)
	}
	if want := []Refused{{"agent_busy", "node", 10}}; !slices.Equal(r.Refusals, want) {
		t.Errorf("refusals %v, want %v", r.Refusals, want)
	}
	if waited := tries[12].Sub(tries[1]); waited < time.Second || waited > 1200*time.Millisecond {
		t.Errorf("first retry after %v: want 1 s to 1.2 s", waited)
	}
}

func TestTriesAreBounded(t *testing.T) {
	for _, c := range []struct {
		title       string
		answer      Outcome
		sent, given int
	}{
		{"busy", Outcome{Code: "agent_busy", RetryAfter: 100 * time.Millisecond}, 3 * 10, 10},
		{"permanent", Outcome{Code: "invalid_request"}, 10, 10},
	} {
		s := &fakeTarget{respond: func(int) Outcome { return c.answer }}
		r := runLoop(t, func(ctx context.Context) (Result, error) {
			return OpenLoop{Rate: 5, For: 2 * time.Second, Callers: 4, Tries: 3}.Run(ctx, s)
		})
		if timed := r.Refusal.Max > 0; timed != (c.answer.RetryAfter > 0) {
			t.Errorf("%s: unexpected refusal times %+v", c.title, r.Refusal)
		}
		// The last retries may be pending at the end.
		if r.Sent() > c.sent || r.Sent() < c.sent-4 || r.GivenUp+r.Waiting != c.given && r.GivenUp+r.Waiting+r.Unsent != c.given {
			t.Errorf("%s: sent %d, want about %d; %+v", c.title, r.Sent(), c.sent, r)
		}
	}
}

func TestClosedLoopHonoursRetryAfter(t *testing.T) {
	s := &fakeTarget{respond: func(n int) Outcome {
		sleep(context.Background(), 10*time.Millisecond)
		if n%2 == 0 {
			return Outcome{Code: "agent_busy", RetryAfter: time.Second}
		}
		return Outcome{}
	}}
	r := runLoop(t, func(ctx context.Context) (Result, error) {
		return ClosedLoop{Callers: 1, For: 10 * time.Second}.Run(ctx, s)
	})
	if r.Done != 10 || r.Refused() != 10 { // a success and a refusal take 1.02 s
		t.Errorf("%d completed, %d refused; want 10 each", r.Done, r.Refused())
	}
	if r.Latency.P50 < 9*time.Millisecond || r.Latency.P50 > 11*time.Millisecond {
		t.Errorf("latency: want a p50 of 10 ms, got %+v", r.Latency)
	}
}

func TestLoopReturnsCancellation(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := &fakeTarget{respond: func(n int) Outcome {
		if n == 100 {
			cancel()
		}
		return Outcome{}
	}}
	if _, err := (ClosedLoop{Callers: 2, For: time.Hour}).Run(ctx, s); !errors.Is(err, context.Canceled) {
		t.Errorf("closed loop: want Canceled, got %v", err)
	}
	if _, err := (OpenLoop{Rate: 1e6, For: time.Hour}).Run(ctx, s); !errors.Is(err, context.Canceled) {
		t.Errorf("open loop: want Canceled, got %v", err)
	}
}

func TestLoopRejectsOutOfRangeOptions(t *testing.T) {
	s := &fakeTarget{respond: func(int) Outcome { return Outcome{} }}
	for _, err := range []error{
		errorOf(ClosedLoop{Callers: 0, For: time.Second}.Run(t.Context(), s)),
		errorOf(ClosedLoop{Callers: CallersMax + 1, For: time.Second}.Run(t.Context(), s)),
		errorOf(OpenLoop{Rate: 0, For: time.Second}.Run(t.Context(), s)),
		errorOf(OpenLoop{Rate: math.Inf(1), For: time.Second}.Run(t.Context(), s)),
		errorOf(OpenLoop{Rate: math.NaN(), For: time.Second}.Run(t.Context(), s)),
		errorOf(OpenLoop{Rate: 1, Callers: CallersMax + 1, For: time.Second}.Run(t.Context(), s)),
	} {
		if err == nil {
			t.Error("want an error")
		}
	}
}

func errorOf(_ Result, err error) error { return err }

func TestPeakRate(t *testing.T) {
	windows := make([]int, 101) // 10 s and the end instant
	for i := 20; i < 70; i++ {
		windows[i] = 7
	}
	windows[0], windows[100] = 30, 99
	if got := peakRate(windows); got != 70 {
		t.Errorf("peak rate %v per second, want 70", got)
	}
	if got := peakRate([]int{4, 6, 0}); got != 50 {
		t.Errorf("peak rate of a short loop %v per second, want 50", got)
	}
}

func TestSlope(t *testing.T) {
	if got := slope([]int64{5, 7, 9, 11}); math.Abs(got-2) > 1e-9 {
		t.Error(got)
	}
	if got := slope([]int64{5}); got != 0 {
		t.Error(got)
	}
	if resident() == 0 {
		t.Skip("this system does not report resident memory")
	}
	if m := sampleMemory()(); m.Max < m.First || m.Last == 0 {
		t.Errorf("memory samples: got %+v", m)
	}
}
