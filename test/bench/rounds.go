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
	sideTime time.Duration // how long each side of a round takes, about
	actors   int           // of which memory is measured
	seeds    int           // of the simulator, in a round
}

// useQuickSizes makes everything small.
func (b *bench) useQuickSizes() {
	b.rounds, b.sideTime, b.actors, b.seeds = 1, 20*time.Millisecond, 2000, 1
}

// tempDir makes an empty folder on the disk that is measured.
func (b *bench) tempDir() (dir string, remove func(), err error) {
	if dir, err = os.MkdirTemp(b.dir, "troupe-bench-"); err != nil {
		return "", nil, err
	}
	return dir, func() { os.RemoveAll(dir) }, nil //nolint:errcheck // it is ours alone
}

// progress says on a terminal what is being done.
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

// isTerminal tells whether somebody reads along.
func (b *bench) isTerminal() bool {
	f, ok := b.stderr.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// A lap does n operations and says how long they took together.
type workload func(n int) (time.Duration, error)

// comparison is two ways to do the same.
type comparison struct {
	name         string
	ours, theirs workload
	sideTime     time.Duration // 0: the bench's lap
}

// roundCost is what an operation cost in one round, in nanoseconds.
type roundCost struct {
	ours, theirs       float64
	oursCPU, theirsCPU float64 // by processors, for whatever the process did meanwhile
}

// rounds has both sides take turns, each beginning every other time, and each
// with nobody else's garbage to clear away.
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

// calibrate finds how many operations take so long, and warms up on the way.
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

// runConcurrent has n operations done by so many callers at once.
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

// share is a caller's part of n operations.
func share(n, callers, caller int) int {
	k := n / callers
	if caller < n%callers {
		k++
	}
	return k
}

// latencies is how long each of n operations took, shortest first.
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

// quantile is the value below which the share q of a sorted list lies.
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

// column takes one value out of each round.
func column(rounds []roundCost, value func(roundCost) float64) (all []float64) {
	for _, p := range rounds {
		all = append(all, value(p))
	}
	return all
}

// cpuTime is the time that processors have spent on this process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // it knows no other failure than a mistake of ours
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// profileTime is how long a profile is taken.
const profileTime = 2 * time.Second

// maybeProfile does n operations more with a profiler looking on, if one is wanted.
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
