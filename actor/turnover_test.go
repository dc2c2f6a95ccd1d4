// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"testing"
	"time"
)

// refuse refuses requests while one request completes after each interval, and returns
// the delay of the last one.
func refuse(t *Turnover, from Time, n, perInterval int, interval Duration) (Duration, Time, uint64) {
	var d Duration
	done := t.done
	for i := range n {
		if i > 0 && i%perInterval == 0 {
			from, done = from.Add(interval), done+1
		}
		d = t.RetryAfter(from, done, 0)
	}
	return d, from, done
}

func TestTurnoverDelayIsQueueTimesInterval(t *testing.T) {
	const start = Time(time.Hour)
	for _, c := range []struct {
		refusals, perInterval int
		interval, want        Duration
	}{
		{1, 1, time.Second, time.Second},                                            // no sample: the minimum
		{100, 1, time.Millisecond, time.Second},                                     // one leaves for each that is refused
		{100, 2, 100 * time.Millisecond, 5100 * time.Millisecond},                   // 51 of 100 remain
		{40, 4, 500 * time.Millisecond, 15500 * time.Millisecond},                   // 31 of 40 remain
		{400, 4, 500 * time.Millisecond, time.Minute},                               // the maximum
		{10, 1, 20 * time.Second, 20 * time.Second},                                 // slow, but without a queue
		{2 * turnoverRefusedMax, turnoverRefusedMax, 50 * time.Second, time.Minute}, // no overflow
	} {
		var turnover Turnover
		if got, _, _ := refuse(&turnover, start, c.refusals, c.perInterval, c.interval); got != c.want {
			t.Errorf("%d refusals, %d in %v: got %v, want %v", c.refusals, c.perInterval, c.interval, got, c.want)
		}
	}
}

// A resource that completes nothing is asked ever less, and an idle hour between two
// overloads does not count as slowness.
func TestTurnoverOfStuckAndIdleResource(t *testing.T) {
	var turnover Turnover
	_, now, done := refuse(&turnover, Time(time.Hour), 10, 1, time.Millisecond)
	before := Duration(0)
	for range 10 {
		now = now.Add(200 * time.Millisecond)
		got := turnover.RetryAfter(now, done, 0)
		if got < before || got > RetryAfterMax {
			t.Fatalf("got %v after %v", got, before)
		}
		before = got
	}
	if before < 20*time.Second {
		t.Errorf("got %v for 11 refusals over 2 s without a completion, want at least 20 s", before)
	}
	if got := turnover.RetryAfter(now.Add(time.Hour), done+1000, 0); got != RetryAfterMin {
		t.Errorf("got %v after an idle hour, want %v", got, RetryAfterMin)
	}
	if got := turnover.RetryAfter(now, done+1000, 0); got != RetryAfterMin {
		t.Errorf("got %v after the clock went back, want %v", got, RetryAfterMin)
	}
}

func TestTurnoverDelayVaries(t *testing.T) {
	seen := map[Duration]bool{}
	for i := range uint64(100) {
		var turnover Turnover
		d := turnover.RetryAfter(1, 0, i*0x9e3779b97f4a7c15)
		if seen[d] = true; d > RetryAfterMin || d < RetryAfterMin*3/4 {
			t.Fatalf("got %v, want %v less at most a quarter", d, RetryAfterMin)
		}
	}
	if len(seen) < 50 {
		t.Errorf("got %d different delays of 100", len(seen))
	}
}
