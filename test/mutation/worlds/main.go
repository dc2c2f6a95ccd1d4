// SPDX-License-Identifier: Apache-2.0

//go:build mutants

// Command worlds simulates seeds until the first one fails, and prints the outcome as JSON.
//
// It is built from the sources that test/mutation writes. The environment variable
// MUTANT selects the mutant. The standard input holds the seeds. With -reach N it runs
// one simulation at a time and prints for each seed the mutants that it evaluated.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/troupe-run/troupe/internal/mutant"
	"github.com/troupe-run/troupe/sim"
)

// stuckAfter is the processor time without the end of a simulation after which they are
// taken for endless. A simulation has at most 400,000 steps, which take less.
const stuckAfter = 40 * time.Second

// An Outcome is the last line of the output.
type Outcome struct {
	Worlds int // number of simulations that ended
	Seed   uint64
	Spec   string // "": no violation
	Detail string
}

// A Reach is one line of the output of -reach.
type Reach struct {
	Seed    uint64
	Mutants []int
	Hash    string
}

func main() {
	reach := flag.Int("reach", 0, "number of drawn mutants; print those that each seed evaluates")
	flag.Parse()
	debug.SetGCPercent(400)
	var seeds []uint64
	out := json.NewEncoder(os.Stdout)
	check(json.NewDecoder(os.Stdin).Decode(&seeds))
	if *reach > 0 {
		for _, seed := range seeds {
			mutant.Reached = make([]bool, *reach)
			r := sim.RunSeed(sim.Options{Seed: seed})
			line := Reach{Seed: seed, Hash: r.Hash}
			for n, reached := range mutant.Reached {
				if reached {
					line.Mutants = append(line.Mutants, n)
				}
			}
			check(out.Encode(line))
			if r.Violation != nil {
				check(fmt.Errorf("seed %d fails without a mutant: %w", seed, r.Violation))
			}
		}
		return
	}
	var ended atomic.Int64
	go watch(&ended)
	var o Outcome
	sim.RunSeeds(0, len(seeds), func(i uint64) sim.Result {
		defer ended.Add(1)
		return sim.RunSeed(sim.Options{Seed: seeds[i], Unhashed: true})
	}, func(r sim.Result) bool {
		o.Worlds++
		if r.Violation != nil {
			o.Seed, o.Spec, o.Detail = r.Seed, r.Violation.Spec, r.Violation.Detail
		}
		return r.Violation == nil
	})
	check(out.Encode(o))
}

// watch exits with an outcome when the simulations do not end.
func watch(ended *atomic.Int64) {
	last, since := int64(-1), time.Duration(0)
	for range time.Tick(time.Second) {
		now := processorTime()
		if n := ended.Load(); n != last {
			last, since = n, now
		}
		if now-since > stuckAfter {
			check(json.NewEncoder(os.Stdout).Encode(Outcome{Worlds: int(last), Spec: "endless", Detail: "the simulation does not end"}))
			os.Exit(0)
		}
	}
}

func processorTime() time.Duration {
	var u syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "worlds:", err)
		os.Exit(1)
	}
}
