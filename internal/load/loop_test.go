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

// server is a target that does as a function says; calls are numbered.
type server struct {
	mu    sync.Mutex
	count int
	do    func(n int) Answer
}

func (s *server) Caller(int) (Caller, error) { return s, nil }
func (s *server) Close()                     {}

func (s *server) Call() Answer {
	s.mu.Lock()
	s.count++
	n := s.count
	s.mu.Unlock()
	return s.do(n)
}

// run runs a loop by an imagined clock.
func run(t *testing.T, loop func(context.Context) (Result, error)) (r Result) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var err error
		if r, err = loop(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	return r
}

func TestAPauseShowsInTheTimesOfAllThatArriveMeanwhile(t *testing.T) {
	s := &server{do: func(n int) Answer {
		if n == 1000 {
			rest(context.Background(), 90*time.Millisecond)
		}
		return Answer{}
	}}
	r := run(t, func(ctx context.Context) (Result, error) {
		return Open{Rate: 1000, For: 3 * time.Second, Callers: 1}.Run(ctx, s)
	})
	if r.Done != 3000 || r.Unsent != 0 {
		t.Fatalf("%d done, %d not sent: want 3000 and none", r.Done, r.Unsent)
	}
	// 90 of 3000 arrived during the pause, and waited 45 ms on average.
	if r.Latency.P99 < 55*time.Millisecond || r.Latency.Max < 85*time.Millisecond || r.Lag.P99 < 55*time.Millisecond {
		t.Errorf("latency %+v, lag %+v: the pause is hidden", r.Latency, r.Lag)
	}
	if r.Service.P99 > time.Millisecond || r.Service.Max < 85*time.Millisecond {
		t.Errorf("service %+v: one call alone took long", r.Service)
	}
}

func TestWhatNoCallerIsFreeForIsCounted(t *testing.T) {
	s := &server{do: func(int) Answer { rest(context.Background(), 10*time.Millisecond); return Answer{} }}
	r := run(t, func(ctx context.Context) (Result, error) {
		return Open{Rate: 1000, For: 2 * time.Second, Callers: 2}.Run(ctx, s)
	})
	if all := r.Done + r.Late + r.Unsent; all != 2000 {
		t.Errorf("%d of 2000 are accounted for: %+v", all, r)
	}
	if r.Done < 390 || r.Done > 400 {
		t.Errorf("%d done: two callers can do 400", r.Done)
	}
	if r.Lag.Max > Patience+time.Millisecond {
		t.Errorf("one was sent %v late", r.Lag.Max)
	}
}

func TestWhoIsRefusedComesBackAsTold(t *testing.T) {
	tries := map[int]time.Time{}
	s := &server{}
	s.do = func(n int) Answer { // each arrival is refused once
		s.mu.Lock()
		defer s.mu.Unlock()
		tries[n] = time.Now()
		if n <= 10 {
			return Answer{Code: "agent_busy", Scope: "node", After: time.Second}
		}
		return Answer{}
	}
	r := run(t, func(ctx context.Context) (Result, error) {
		return Open{Rate: 10, For: 3 * time.Second, Callers: 4}.Run(ctx, s)
	})
	if r.Again != 10 || r.GivenUp != 0 || r.Waiting != 0 || r.Done != 30 {
		t.Fatalf("%+v", r)
	}
	if want := []Refused{{"agent_busy", "node", 10}}; !slices.Equal(r.Refusals, want) {
		t.Errorf("refusals %v, want %v", r.Refusals, want)
	}
	if waited := tries[12].Sub(tries[1]); waited < time.Second || waited > 1200*time.Millisecond {
		t.Errorf("the first came back after %v", waited)
	}
}

func TestTriesAreBounded(t *testing.T) {
	for _, c := range []struct {
		title       string
		answer      Answer
		sent, given int
	}{
		{"busy", Answer{Code: "agent_busy", After: 100 * time.Millisecond}, 3 * 10, 10},
		{"for good", Answer{Code: "invalid_request"}, 10, 10},
	} {
		s := &server{do: func(int) Answer { return c.answer }}
		r := run(t, func(ctx context.Context) (Result, error) {
			return Open{Rate: 5, For: 2 * time.Second, Callers: 4, Tries: 3}.Run(ctx, s)
		})
		if told := r.Refusal.Max > 0; told != (c.answer.After > 0) {
			t.Errorf("%s: refusals took %+v", c.title, r.Refusal)
		}
		// The last arrivals may still wait when the time is over.
		if r.Sent() > c.sent || r.Sent() < c.sent-4 || r.GivenUp+r.Waiting != c.given && r.GivenUp+r.Waiting+r.Unsent != c.given {
			t.Errorf("%s: sent %d, want about %d; %+v", c.title, r.Sent(), c.sent, r)
		}
	}
}

func TestAClosedLoopWaitsAsItIsTold(t *testing.T) {
	s := &server{do: func(n int) Answer {
		rest(context.Background(), 10*time.Millisecond)
		if n%2 == 0 {
			return Answer{Code: "agent_busy", After: time.Second}
		}
		return Answer{}
	}}
	r := run(t, func(ctx context.Context) (Result, error) {
		return Closed{Callers: 1, For: 10 * time.Second}.Run(ctx, s)
	})
	if r.Done != 10 || r.Refused() != 10 { // 1.02 s for one of each
		t.Errorf("%d done, %d refused", r.Done, r.Refused())
	}
	if r.Latency.P50 < 9*time.Millisecond || r.Latency.P50 > 11*time.Millisecond {
		t.Errorf("%+v", r.Latency)
	}
}

func TestALoopThatIsInterruptedSaysSo(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := &server{do: func(n int) Answer {
		if n == 100 {
			cancel()
		}
		return Answer{}
	}}
	if _, err := (Closed{Callers: 2, For: time.Hour}).Run(ctx, s); !errors.Is(err, context.Canceled) {
		t.Errorf("closed: %v", err)
	}
	if _, err := (Open{Rate: 1e6, For: time.Hour}).Run(ctx, s); !errors.Is(err, context.Canceled) {
		t.Errorf("open: %v", err)
	}
}

func TestBounds(t *testing.T) {
	s := &server{do: func(int) Answer { return Answer{} }}
	for _, err := range []error{
		second(Closed{Callers: 0, For: time.Second}.Run(t.Context(), s)),
		second(Closed{Callers: CallersMax + 1, For: time.Second}.Run(t.Context(), s)),
		second(Open{Rate: 0, For: time.Second}.Run(t.Context(), s)),
		second(Open{Rate: math.Inf(1), For: time.Second}.Run(t.Context(), s)),
		second(Open{Rate: math.NaN(), For: time.Second}.Run(t.Context(), s)),
		second(Open{Rate: 1, Callers: CallersMax + 1, For: time.Second}.Run(t.Context(), s)),
	} {
		if err == nil {
			t.Error("want an error")
		}
	}
}

func second(_ Result, err error) error { return err }

func TestBestSecondsAreFound(t *testing.T) {
	windows := make([]int, 101) // 10 s, and the instant of the end
	for i := 20; i < 70; i++ {
		windows[i] = 7
	}
	windows[0], windows[100] = 30, 99
	if got := best(windows); got != 70 {
		t.Errorf("best %v a second, want 70", got)
	}
	if got := best([]int{4, 6, 0}); got != 50 {
		t.Errorf("best of a short loop %v, want 50", got)
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
		t.Skip("this system does not say what a process holds")
	}
	if m := watchMemory()(); m.Most < m.First || m.Last == 0 {
		t.Errorf("%+v", m)
	}
}
