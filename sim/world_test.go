// SPDX-License-Identifier: Apache-2.0

package sim

import "testing"

func BenchmarkSeed(b *testing.B) {
	steps := 0
	for i := range b.N {
		r := RunSeed(Options{Seed: uint64(i%20 + 1)})
		if r.Broken != nil {
			b.Fatal(r.Broken)
		}
		steps += r.Stats.Steps
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(steps), "µs/step")
}
