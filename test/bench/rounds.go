// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"
)

// bench is one run of this program.
type bench struct {
	ctx     context.Context
	stderr  io.Writer
	current string
	profile string
	dir     string
	quick   bool

	rounds   int
	sideTime time.Duration // approximate duration of one side of a round
	actors   int           // size of each population in the memory study
	seeds    int           // seeds simulated in a round

	growth growth
}

// useQuickSizes reduces rounds, durations and sizes to the minimum.
func (b *bench) useQuickSizes() {
	b.rounds, b.sideTime, b.actors, b.seeds = 1, 20*time.Millisecond, 2000, 1
}

// tempDir creates an empty folder on the disk to be measured.
func (b *bench) tempDir() (dir string, remove func(), err error) {
	if dir, err = os.MkdirTemp(b.dir, "troupe-bench-"); err != nil {
		return "", nil, err
	}
	return dir, func() { os.RemoveAll(dir) }, nil //nolint:errcheck // only this program uses the folder
}

// progress shows the current measurement on a terminal.
func (b *bench) progress(format string, args ...any) {
	if b.isTerminal() {
		fmt.Fprintf(b.stderr, "\r\033[K%s  %s", b.current, fmt.Sprintf(format, args...))
	}
}

func (b *bench) clear() {
	if b.isTerminal() {
		fmt.Fprint(b.stderr, "\r\033[K")
	}
}

// isTerminal reports whether standard error is a terminal.
func (b *bench) isTerminal() bool {
	f, ok := b.stderr.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// A workload performs n operations and returns their total duration.
type workload func(n int) (time.Duration, error)

// comparison measures two ways to perform the same operation.
type comparison struct {
	name         string
	ours, theirs workload
	sideTime     time.Duration // 0 means bench.sideTime
}

// roundCost is the cost of an operation in one round, in nanoseconds.
type roundCost struct {
	ours, theirs       float64
	oursCPU, theirsCPU float64 // processor time of the whole process, including garbage collection
}

// runRounds alternates both sides for b.rounds rounds. The sides take turns to go
// first. Garbage is collected before each side, so that neither side pays for the
// garbage of the other.
func (b *bench) runRounds(d comparison) ([]roundCost, error) {
	each := b.sideTime
	if d.sideTime > 0 && !b.quick {
		each = d.sideTime
	}
	var n [2]int
	sides := [2]workload{d.ours, d.theirs}
	for i, side := range sides {
		var err error
		if n[i], err = b.calibrate(side, each); err != nil {
			return nil, err
		}
	}
	var all []roundCost
	for round := range b.rounds {
		b.progress("%s: round %d of %d", d.name, round+1, b.rounds)
		var cost, spent [2]float64
		for turn := range sides {
			i := (round + turn) % 2
			if err := b.ctx.Err(); err != nil {
				return nil, err
			}
			runtime.GC()
			before := cpuTime()
			took, err := sides[i](n[i])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", d.name, err)
			}
			cost[i], spent[i] = float64(took)/float64(n[i]), float64(cpuTime()-before)/float64(n[i])
		}
		all = append(all, roundCost{cost[0], cost[1], spent[0], spent[1]})
	}
	return all, b.maybeProfile(d.name, d.ours, n[0])
}

// addedCosts returns the rounds with the time that ours adds to the counterpart.
func addedCosts(rounds []roundCost) []roundCost {
	added := slices.Clone(rounds)
	for i := range added {
		added[i].ours -= added[i].theirs
	}
	return added
}

// calibrate returns the number of operations that take about the duration in the
// parameter each. Its trial runs also warm the side up.
func (b *bench) calibrate(side workload, each time.Duration) (int, error) {
	const most = 100_000_000
	for n := 64; ; {
		took, err := side(n)
		if err != nil || n == most || b.ctx.Err() != nil {
			return n, err
		}
		fit := int(float64(n) * float64(each) / float64(max(took, 1)))
		if took > each/4 {
			return min(max(fit, 64), most), nil
		}
		n = min(max(2*n, min(fit, 10*n)), most)
	}
}

// runConcurrent distributes n operations over concurrent callers and returns the
// total time. It returns the error of the first caller that failed.
func runConcurrent(callers, n int, one func(caller, i int) error) (time.Duration, error) {
	var all sync.WaitGroup
	errs := make([]error, callers)
	began := time.Now()
	for c := range callers {
		all.Go(func() {
			for i := range share(n, callers, c) {
				if errs[c] = one(c, i); errs[c] != nil {
					return
				}
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	for _, err := range errs {
		if err != nil {
			return took, err
		}
	}
	return took, nil
}

// eachOf performs n numbered operations with concurrent callers and returns the total time.
func eachOf(callers, n int, one func(i int) error) (time.Duration, error) {
	callers = min(callers, n)
	return runConcurrent(callers, n, func(caller, i int) error { return one(callers*i + caller) })
}

// share returns the number of operations that one of the callers performs if all
// perform n together.
func share(n, callers, caller int) int {
	k := n / callers
	if caller < n%callers {
		k++
	}
	return k
}

// latencies returns the duration of each of n operations in ascending order.
func latencies(callers, n int, one func(caller, i int) error) ([]time.Duration, error) {
	took := make([][]time.Duration, callers)
	for c := range took {
		took[c] = make([]time.Duration, 0, share(n, callers, c))
	}
	runtime.GC()
	_, err := runConcurrent(callers, n, func(c, i int) error {
		began := time.Now()
		err := one(c, i)
		took[c] = append(took[c], time.Since(began))
		return err
	})
	all := slices.Concat(took...)
	slices.Sort(all)
	return all, err
}

// quantile returns the q-quantile of a sorted list, for q in [0, 1].
func quantile[T any](sorted []T, q float64) T {
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func median(values []float64) float64 {
	v := slices.Sorted(slices.Values(values))
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

// column returns one value of each round.
func column(rounds []roundCost, value func(roundCost) float64) (all []float64) {
	for _, p := range rounds {
		all = append(all, value(p))
	}
	return all
}

// cpuTime returns the processor time used by this process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // only an invalid argument makes it fail
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// profileTime is the minimum duration of a profile.
const profileTime = 2 * time.Second

// maybeProfile repeats n operations under the CPU profiler, if profiles were
// requested.
func (b *bench) maybeProfile(name string, ours workload, n int) error {
	if b.profile == "" {
		return nil
	}
	b.progress("%s: profile", name)
	return profile(filepath.Join(b.profile, fileName(name)), func() error {
		for began := time.Now(); ; {
			_, err := ours(n)
			if err != nil || b.quick || time.Since(began) > profileTime || b.ctx.Err() != nil {
				return err
			}
		}
	})
}
