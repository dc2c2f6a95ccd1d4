// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/troupe-run/troupe/sim"
)

const (
	stepsFloor      = 300_000 // minimum steps per second of processor time
	plainStepsFloor = 40_000  // the same for long plain simulations
	plainSpeedFloor = 700     // minimum simulated time per processor time of long plain simulations
	// plainSeedsDivisor is the number of other simulations that take as long as a long plain one.
	plainSeedsDivisor = 2
	// simMemoryLimit is the heap size in bytes at which garbage is collected, the
	// same as in `troupe sim --runs`.
	simMemoryLimit = 512 << 20
)

// simulations maps each kind of measured simulations to their options.
var simulations = map[string]*sim.Options{
	"simulator":             {},
	"simulator, long plain": {Plain: true, Long: true},
}

// simulated is the result of some simulations. Times are in seconds.
type simulated struct {
	Steps   int     `json:"steps"`
	Virtual float64 `json:"virtual"`
	Spent   float64 `json:"spent"` // processor time
}

// studySim measures simulations by processor time, so the result is per core and independent
// of other load. Each round is a process of its own: what other rows leave in memory would
// count against the limit, and garbage would be collected all the time.
func studySim(b *bench) (rows []row, err error) {
	all, err := b.simRows("simulator", b.seeds, stepsFloor, 0, "all faults and specs enabled, without the log that compares two runs of a seed")
	if err != nil {
		return nil, err
	}
	plain, err := b.simRows("simulator, long plain", max(1, b.seeds/plainSeedsDivisor), plainStepsFloor, plainSpeedFloor, "`--long --plain`: an hour or more of plain agents, whose bytes are judged in one seed of 16")
	return append(all, plain...), err
}

// simRows returns the rows of one kind of simulations. A floor of 0 is none.
func (b *bench) simRows(kind string, seeds, steps, speed int, note string) ([]row, error) {
	var rates, speeds []float64
	var last simulated
	for round := range b.rounds {
		b.progress("%s: round %d of %d", kind, round+1, b.rounds)
		s, err := measureInChild[simulated](b, kind, seeds)
		if err != nil {
			return nil, err
		}
		last = s
		rates = append(rates, float64(s.Steps)/s.Spent)
		speeds = append(speeds, s.Virtual/s.Spent)
	}
	err := b.maybeProfile(kind, func(int) (time.Duration, error) {
		s, err := simulate(*simulations[kind], seeds)
		return time.Duration(s.Spent * float64(time.Second)), err
	}, 1)
	rate := row{Name: kind + ", steps in a second of one core", Counterpart: "none", Ours: figure{median(rates), perSecond}, Floor: atLeast(float64(steps))}
	rate.Low, rate.High = minMax(rates)
	rate.addNote("%d seeds, %s steps, %s", seeds, groupDigits(int64(last.Steps)), note)
	ran := row{Name: kind + ", imagined time in time of one core", Counterpart: "the time itself", Ours: figure{median(speeds), times}, Theirs: figure{1, times}, Ratio: median(speeds)}
	if ran.Low, ran.High = minMax(speeds); speed > 0 {
		ran.Floor = atLeast(float64(speed))
	}
	return []row{rate.withVerdict(), ran.withVerdict()}, err
}

// simulate runs the first seeds on one processor.
func simulate(o sim.Options, seeds int) (s simulated, err error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(simMemoryLimit))
	before := cpuTime()
	for seed := range seeds {
		o.Seed, o.Unhashed = uint64(seed+1), true
		w := sim.New(o)
		failure := w.Run()
		s.Steps += w.Stats.Steps
		s.Virtual += w.Elapsed().Seconds()
		w.Close()
		if failure != nil {
			return s, fmt.Errorf("seed %d: %w", seed+1, failure)
		}
	}
	s.Spent = (cpuTime() - before).Seconds()
	return s, nil
}

func minMax(values []float64) (low, high float64) {
	low, high = values[0], values[0]
	for _, v := range values {
		low, high = min(low, v), max(high, v)
	}
	return low, high
}
