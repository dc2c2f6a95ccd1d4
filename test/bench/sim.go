// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"runtime/debug"
	"time"

	"github.com/troupe-run/troupe/sim"
)

const (
	stepsFloor = 300_000 // minimum steps per second of processor time
	// simMemoryLimit is the heap size in bytes at which garbage is collected, the
	// same as in `troupe sim --runs`.
	simMemoryLimit = 512 << 20
)

// studySim measures simulations with all faults and specs enabled. It divides by
// processor time, so the result is per core and independent of other load.
func studySim(b *bench) ([]row, error) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(simMemoryLimit))
	var rates, speeds []float64
	steps := 0
	runSeeds := func() (stepCount int, virtual, spent time.Duration, err error) {
		before := cpuTime()
		for seed := range b.seeds {
			w := sim.New(sim.Options{Seed: uint64(seed + 1), Unhashed: true})
			failure := w.Run()
			stepCount += w.Stats.Steps
			virtual += w.Elapsed()
			w.Close()
			if failure != nil {
				return 0, 0, 0, fmt.Errorf("seed %d: %w", seed+1, failure)
			}
			if err := b.ctx.Err(); err != nil {
				return 0, 0, 0, err
			}
		}
		return stepCount, virtual, cpuTime() - before, nil
	}
	for round := range b.rounds {
		b.progress("round %d of %d", round+1, b.rounds)
		stepCount, virtual, spent, err := runSeeds()
		if err != nil {
			return nil, err
		}
		steps = stepCount
		rates = append(rates, float64(stepCount)/spent.Seconds())
		speeds = append(speeds, virtual.Seconds()/spent.Seconds())
	}
	err := b.maybeProfile("simulator", func(int) (time.Duration, error) { _, _, d, err := runSeeds(); return d, err }, 1)
	rate := row{Name: "simulator, steps in a second of one core", Counterpart: "none", Ours: figure{median(rates), perSecond}, Floor: atLeast(stepsFloor)}
	rate.Low, rate.High = minMax(rates)
	rate.addNote("%d seeds, %s steps, all faults and specs enabled, without the log that compares two runs of a seed", b.seeds, groupDigits(int64(steps)))
	speed := row{Name: "simulator, imagined time in time of one core", Counterpart: "the time itself", Ours: figure{median(speeds), times}, Theirs: figure{1, times}, Ratio: median(speeds)}
	speed.Low, speed.High = minMax(speeds)
	return []row{rate.withVerdict(), speed.withVerdict()}, err
}

func minMax(values []float64) (low, high float64) {
	low, high = values[0], values[0]
	for _, v := range values {
		low, high = min(low, v), max(high, v)
	}
	return low, high
}
