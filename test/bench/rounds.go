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
	talk    io.Writer
	doing   string
	profile string
	dir     string
	quick   bool

	rounds int
	lap    time.Duration // how long each side of a round takes, about
	actors int           // of which memory is measured
	seeds  int           // of the simulator, in a round
}

// hurry makes everything small.
func (b *bench) hurry() {
	b.rounds, b.lap, b.actors, b.seeds = 1, 20*time.Millisecond, 2000, 1
}

// folder makes an empty folder on the disk that is measured.
func (b *bench) folder() (dir string, remove func(), err error) {
	if dir, err = os.MkdirTemp(b.dir, "troupe-bench-"); err != nil {
		return "", nil, err
	}
	return dir, func() { os.RemoveAll(dir) }, nil //nolint:errcheck // it is ours alone
}

// progress says on a terminal what is being done.
func (b *bench) progress(format string, args ...any) {
	if b.person() {
		fmt.Fprintf(b.talk, "\r\033[K%s  %s", b.doing, fmt.Sprintf(format, args...))
	}
}

func (b *bench) clear() {
	if b.person() {
		fmt.Fprint(b.talk, "\r\033[K")
	}
}

// person tells whether somebody reads along.
func (b *bench) person() bool {
	f, ok := b.talk.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// A lap does n operations and says how long they took together.
type lap func(n int) (time.Duration, error)

// duel is two ways to do the same.
type duel struct {
	name         string
	ours, theirs lap
	each         time.Duration // 0: the bench's lap
}

// pair is what an operation cost in one round, in nanoseconds.
type pair struct {
	ours, theirs           float64
	oursSpent, theirsSpent float64 // by processors, for whatever the process did meanwhile
}

// rounds has both sides take turns, each beginning every other time, and each
// with nobody else's garbage to clear away.
func (b *bench) alternate(d duel) ([]pair, error) {
	each := b.lap
	if d.each > 0 && !b.quick {
		each = d.each
	}
	var n [2]int
	sides := [2]lap{d.ours, d.theirs}
	for i, side := range sides {
		var err error
		if n[i], err = b.calibrate(side, each); err != nil {
			return nil, err
		}
	}
	var all []pair
	for round := range b.rounds {
		b.progress("%s: round %d of %d", d.name, round+1, b.rounds)
		var cost, spent [2]float64
		for turn := range sides {
			i := (round + turn) % 2
			if err := b.ctx.Err(); err != nil {
				return nil, err
			}
			runtime.GC()
			before := processor()
			took, err := sides[i](n[i])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", d.name, err)
			}
			cost[i], spent[i] = float64(took)/float64(n[i]), float64(processor()-before)/float64(n[i])
		}
		all = append(all, pair{cost[0], cost[1], spent[0], spent[1]})
	}
	return all, b.profiled(d.name, d.ours, n[0])
}

// calibrate finds how many operations take so long, and warms up on the way.
func (b *bench) calibrate(side lap, each time.Duration) (int, error) {
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

// crowd has n operations done by so many callers at once.
func crowd(callers, n int, one func(caller, i int) error) (time.Duration, error) {
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
	_, err := crowd(callers, n, func(c, i int) error {
		began := time.Now()
		err := one(c, i)
		took[c] = append(took[c], time.Since(began))
		return err
	})
	all := slices.Concat(took...)
	slices.Sort(all)
	return all, err
}

// at is the value below which the share q of a sorted list lies.
func at[T any](sorted []T, q float64) T {
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
func column(rounds []pair, value func(pair) float64) (all []float64) {
	for _, p := range rounds {
		all = append(all, value(p))
	}
	return all
}

// processor is the time that processors have spent on this process.
func processor() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // it knows no other failure than a mistake of ours
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// profileLap is how long a profile is taken.
const profileLap = 2 * time.Second

// profiled does n operations more with a profiler looking on, if one is wanted.
func (b *bench) profiled(name string, ours lap, n int) error {
	if b.profile == "" {
		return nil
	}
	b.progress("%s: profile", name)
	return profile(filepath.Join(b.profile, slug(name)), func() error {
		for began := time.Now(); ; {
			_, err := ours(n)
			if err != nil || b.quick || time.Since(began) > profileLap || b.ctx.Err() != nil {
				return err
			}
		}
	})
}
