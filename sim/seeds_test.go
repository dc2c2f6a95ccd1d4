// SPDX-License-Identifier: Apache-2.0

package sim

import (
	goruntime "runtime"
	"strings"
	"sync/atomic"
	"testing"
)

// TestRunSeedsIsOrderedAndBounded checks that results arrive in the order of the
// seeds, and that the workers run only a bounded number of seeds ahead of the
// consumer.
func TestRunSeedsIsOrderedAndBounded(t *testing.T) {
	var ran atomic.Int64
	run := func(seed uint64) Result {
		ran.Add(1)
		return Result{Seed: seed}
	}
	next := uint64(5)
	RunSeeds(5, 1_000_000, run, func(r Result) bool {
		if r.Seed != next {
			t.Fatalf("seed %d, want %d", r.Seed, next)
		}
		next++
		return next < 500
	})
	ranMax := 495 + int64(goruntime.GOMAXPROCS(0))*(resultsAheadMax+2)
	if total := ran.Load(); total < 495 || total > ranMax {
		t.Errorf("%d runs for 495 results, want at most %d", total, ranMax)
	}
}

func TestCrashShortfall(t *testing.T) {
	for _, c := range []struct {
		crashed int
		want    string
	}{{1, "1 of 4 runs crash and restart, want half of them"}, {2, ""}} {
		s := Summary{Seeds: 4, crashedSeeds: c.crashed}
		if got := strings.Join(s.CrashShortfall(), "\n"); got != c.want {
			t.Errorf("%d of 4 crashed: %q, want %q", c.crashed, got, c.want)
		}
	}
	// Without faults no run crashes.
	var s Summary
	s.Add(RunSeed(Options{Seed: 1, Plan: &Plan{}}))
	if s.CrashShortfall() == nil {
		t.Error("a run without a crash is no shortfall")
	}
}
