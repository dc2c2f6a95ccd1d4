// SPDX-License-Identifier: Apache-2.0

package sim

import (
	goruntime "runtime"
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
