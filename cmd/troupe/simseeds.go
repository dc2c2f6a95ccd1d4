// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	goruntime "runtime"
	"runtime/debug"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/sim"
	"github.com/troupe-run/troupe/specs"
)

// gcMemoryPerCore is the memory limit per core, in bytes, that triggers a garbage
// collection. Simulations are short and produce much garbage, so rare collections
// are cheaper.
const gcMemoryPerCore = 256 << 20

// runMany simulates a number of seeds, or as many as fit into the budget.
func (c *SimCmd) runMany(out *bufio.Writer, stderr io.Writer, o sim.Options) error {
	first := uint64(1)
	if c.Seed != nil {
		first = *c.Seed
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(int64(goruntime.GOMAXPROCS(0)) * gcMemoryPerCore))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	context.AfterFunc(ctx, stop) // a second interrupt ends the process
	p := newSeedProgress(stderr, c.Runs, c.Budget)
	options := func(seed uint64) sim.Options {
		o := o
		o.Seed = seed
		return o
	}
	run := func(seed uint64) sim.Result {
		primary, second := options(seed), options(seed)
		primary.Unhashed, second.Backends = true, c.backends()
		runSeed := sim.RunSeed
		if c.runsTwice(seed) {
			runSeed = func(o sim.Options) sim.Result { return sim.RunTwice(o, second) }
		}
		return runTracedSeed(c.Trace, primary, runSeed)
	}
	seeds := c.Runs
	if seeds == 0 {
		seeds = math.MaxInt
	}
	sum := &p.sum
	sim.RunSeeds(first, seeds, run, func(r sim.Result) bool {
		sum.Add(r)
		if r.Violation != nil && len(sum.Failed) <= failuresShown {
			p.clear()
			if err := c.reportFailure(out, stderr, options(r.Seed), r); err != nil && !errors.Is(err, exitCode(exitFailed)) {
				fmt.Fprintf(stderr, "saving the failure of seed %d: %v\n", r.Seed, err)
			}
			out.Flush()
		}
		return p.update(time.Now()) && ctx.Err() == nil
	})
	p.clear()
	if ctx.Err() != nil {
		fmt.Fprintf(stderr, "interrupted; results of %d seeds:\n", sum.Seeds)
	}
	missing := sum.Print(out)
	missing = append(missing, sum.PrintPremises(out, c.Premises)...)
	if c.Faults == "none" || c.Strategy != "drawn" || c.Registry == "off" || c.Plain || sum.Seeds < coverageRuns {
		missing = nil // unreached points are no failure: these flags exclude some points, or the seeds are too few
	} else {
		missing = append(missing, sum.Shortfalls()...)
	}
	if c.Store == "pebble" && c.Faults != "none" && sum.Seeds >= crashRuns {
		missing = append(missing, sum.CrashShortfall()...)
	}
	if c.Long && !c.Plain { // few calls of plain agents are open when a fault adds load, so it may outweigh a tenth
		missing = append(missing, sum.LongShortfalls()...)
	}
	missing = append(missing, sum.Undecided()...)
	fmt.Fprintf(out, "premises: of %d specs and %d properties; a run of at least %d seeds without flags that exclude faults fails if a count is 0\n", len(specs.All()), len(sim.Properties()), coverageRuns)
	fmt.Fprintln(out, p.summary())
	if c.Long {
		fmt.Fprintln(out, sum.LongTotals())
	}
	for _, m := range missing {
		fmt.Fprintf(out, "missing: %s\n", m)
	}
	if len(sum.Failed) > 0 {
		fmt.Fprintf(out, "%d seeds, %d violations: %s\n", sum.Seeds, len(sum.Failed), sum.FailuresBySpec())
		return exitCode(exitFailed)
	}
	fmt.Fprintf(out, "%d seeds ok, 0 violations\n", sum.Seeds)
	if ctx.Err() != nil {
		return exitCode(exitFailed)
	}
	if len(missing) > 0 {
		fmt.Fprintf(out, "FAILED: %d counts are 0; the lines with missing above name them\n", len(missing))
		return exitCode(exitFailed)
	}
	return nil
}

// runsTwice reports whether a seed is run twice to compare the hashes. With a real
// backend, every seed is run twice.
func (c *SimCmd) runsTwice(seed uint64) bool {
	return c.usesRealBackends() || int(seed%100) < c.Twice
}

// seedProgress prints the progress of many seeds and their rate.
type seedProgress struct {
	start    time.Time
	runs     int           // number of seeds; 0 for no limit
	budget   time.Duration // maximum duration; 0 for no limit
	out      io.Writer
	terminal bool // out is a terminal: one line is overwritten
	printed  time.Time
	sum      sim.Summary
}

// The intervals between progress lines on a terminal and in a file.
const (
	terminalInterval = 200 * time.Millisecond
	fileInterval     = time.Minute
)

func newSeedProgress(stderr io.Writer, runs int, budget time.Duration) *seedProgress {
	now := time.Now()
	return &seedProgress{start: now, printed: now, runs: runs, budget: budget, out: stderr, terminal: isTerminal(stderr)}
}

// update prints the progress if its interval has passed. It reports whether the
// budget allows another seed.
func (p *seedProgress) update(now time.Time) bool {
	switch since := now.Sub(p.printed); {
	case p.terminal && since >= terminalInterval:
		p.printed = now
		fmt.Fprintf(controls(p.out), "\r\033[K%s", p.line(now.Sub(p.start)))
	case !p.terminal && since >= fileInterval:
		p.printed = now
		fmt.Fprintln(p.out, p.line(now.Sub(p.start)))
	}
	return p.budget == 0 || now.Sub(p.start) < p.budget
}

// line formats the progress as one line.
func (p *seedProgress) line(took time.Duration) string {
	of := ""
	switch {
	case p.runs > 0:
		of = fmt.Sprintf(" of %d", p.runs)
	case p.budget > 0:
		of = fmt.Sprintf(" in %s of %s", took.Round(time.Second), p.budget)
	}
	seconds := took.Seconds()
	return fmt.Sprintf("%d%s seeds, %d failed, %.1f seeds/s, %.0f steps/s, %s simulated each second",
		p.sum.Seeds, of, len(p.sum.Failed), float64(p.sum.Seeds)/seconds, float64(p.sum.ExecutedSteps)/seconds, p.speed(seconds))
}

func (p *seedProgress) speed(seconds float64) time.Duration {
	return time.Duration(float64(p.sum.SimulatedTime) / seconds).Round(time.Second)
}

// clear erases the progress line on a terminal.
func (p *seedProgress) clear() {
	if p.terminal {
		fmt.Fprint(controls(p.out), "\r\033[K")
	}
}

// stepsFloor is the required number of steps per second and core, with all specs
// enabled.
const stepsFloor = 300_000

// summary returns the totals and rates as two lines.
func (p *seedProgress) summary() string {
	took, s := time.Since(p.start), &p.sum
	seconds, cores := took.Seconds(), goruntime.GOMAXPROCS(0)
	perCore := float64(s.ExecutedSteps) / seconds / float64(cores)
	floor := "met"
	if perCore < stepsFloor {
		floor = "missed"
	}
	perSeed := s.Total.SimulatedTime() / actor.Duration(max(s.Seeds, 1))
	return fmt.Sprintf("%d steps of %d seeds, %d of them twice, in %.1f s: %.1f seeds/s, %s simulated each second; a seed is %s long and has %d steps on average\n"+
		"%.0f steps/s on each of %d cores, all specs on; the floor of %d is %s",
		s.Total.Steps, s.Seeds, s.Repeated, seconds, float64(s.Seeds)/seconds, p.speed(seconds), perSeed.Round(time.Second), s.Total.Steps/max(s.Seeds, 1),
		perCore, cores, stepsFloor, floor)
}
