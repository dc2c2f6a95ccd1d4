// SPDX-License-Identifier: Apache-2.0

package sim

import (
	goruntime "runtime"
	"sync/atomic"
	"testing"
)

// Results come in the order of the seeds, and nobody runs far ahead of who looks at them.
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
	most := 495 + int64(goruntime.GOMAXPROCS(0))*(resultsAheadMax+2)
	if after := ran.Load(); after < 495 || after > most {
		t.Errorf("%d worlds were run for 495 results, want %d at most", after, most)
	}
}
