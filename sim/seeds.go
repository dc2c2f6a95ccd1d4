// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"fmt"
	"io"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/history"
	"github.com/troupe-run/troupe/internal/failpoint"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/specs"
)

// Result is the outcome of one seed.
type Result struct {
	Seed      uint64
	Hash      string // "": not computed
	Violation *Violation
	Choices   Choices
	Stats     Stats
	Plan      string  // plan of the run, formatted
	Report    *Report // nil if the run has no team
	// Inevitability is set by SaveFailure, unless resampling is disabled.
	Inevitability *Inevitability
	Repeated      bool // the seed was run twice
}

// RunSeed runs one simulation to completion.
func RunSeed(o Options) Result {
	w := New(o)
	defer w.Close()
	violation := w.Run()
	return Result{Seed: o.Seed, Hash: w.Hash(), Violation: violation, Choices: w.Choices(), Stats: w.Stats, Plan: w.plan.String(), Report: w.teamReport()}
}

// RunTwice runs a simulation twice: with the first options, and then with the second
// options, which may select other backends. Different hashes are a violation of
// Deterministic.
func RunTwice(o, again Options) Result {
	o.Unhashed, again.Unhashed = false, false
	r := RunSeed(o)
	if r.Violation != nil {
		return r
	}
	r.Repeated = true
	r.Stats.Audit.Deterministic++
	if second := RunSeed(again); second.Hash != r.Hash {
		r.Violation = &Violation{Spec: Deterministic, Step: r.Stats.Steps, Detail: fmt.Sprintf("the first run has the hash %s, the second %s; %s", r.Hash, second.Hash, divergence(o, again))}
	}
	return r
}

// resultsAheadMax is the number of finished results that a worker may buffer before
// the consumer has taken them.
const resultsAheadMax = 16

// RunSeeds runs n consecutive seeds, of which first is the lowest. It runs up to
// GOMAXPROCS seeds at a time. It passes every result to the callback each, in the order of
// the seeds. It stops when the callback returns false, and returns only after all workers
// have exited.
func RunSeeds(first uint64, n int, run func(seed uint64) Result, each func(Result) bool) {
	workers := min(goruntime.GOMAXPROCS(0), n)
	results := make([]chan Result, workers)
	stop := make(chan struct{})
	var running sync.WaitGroup
	for i := range results {
		results[i] = make(chan Result, resultsAheadMax)
		running.Go(func() {
			for no := i; no < n; no += workers {
				select {
				case results[i] <- run(first + uint64(no)):
				case <-stop:
					return
				}
			}
		})
	}
	defer running.Wait()
	defer close(stop)
	for no := range n {
		if !each(<-results[no%workers]) {
			return
		}
	}
}

// Summary aggregates the results of many seeds.
type Summary struct {
	Seeds          int
	Failed         []Result
	Total          Stats
	Repeated       int            // number of seeds that were run twice
	ExecutedSteps  int            // total steps, including second runs
	SimulatedTime  actor.Duration // total simulated time, including second runs
	steps          []int
	calls          []int
	deepSeeds      int
	threeNodeSeeds int
	snapshotSeeds  int
	crashedSeeds   int
	thinSeeds      []string // long runs with almost no steps in one tenth of their time
	idleSeeds      []string // long runs with a minute that has no client request
	undecidedSeeds []uint64 // seeds with undecided histories
}

// Add adds the result of one seed.
func (s *Summary) Add(r Result) {
	s.Seeds++
	if r.Violation != nil { // keep only a digest: many full failures would take too much memory
		s.Failed = append(s.Failed, Result{Seed: r.Seed, Violation: &Violation{Spec: r.Violation.Spec, Detail: r.Violation.Detail, At: r.Violation.At, Step: r.Violation.Step}})
	}
	s.Total.Add(&r.Stats)
	count := func(n *int, ok bool) {
		if ok {
			*n++
		}
	}
	times := 1
	if r.Repeated {
		times = 2
	}
	count(&s.Repeated, r.Repeated)
	s.ExecutedSteps += times * r.Stats.Steps
	s.SimulatedTime += actor.Duration(times) * r.Stats.SimulatedTime()
	if r.Violation == nil && r.Stats.HasThinTenth() {
		s.thinSeeds = append(s.thinSeeds, fmt.Sprintf("seed %d has %d steps in the tenths of its workload", r.Seed, r.Stats.TenthSteps))
	}
	if n := r.Stats.IdleMinutes; n > 0 {
		s.idleSeeds = append(s.idleSeeds, fmt.Sprintf("seed %d has %d minutes without a client's request", r.Seed, n))
	}
	if r.Stats.Undecided > 0 {
		s.undecidedSeeds = append(s.undecidedSeeds, r.Seed)
	}
	s.steps = append(s.steps, r.Stats.Steps)
	s.calls = append(s.calls, r.Stats.Calls)
	count(&s.deepSeeds, r.Stats.Depth >= 3)
	count(&s.threeNodeSeeds, r.Stats.Nodes >= 3)
	count(&s.snapshotSeeds, r.Stats.Points[FromSnapshot] > 0)
	count(&s.crashedSeeds, r.Stats.Points[NodeRestarted] > 0)
}

func median(values []int) int {
	if len(values) == 0 {
		return 0
	}
	v := slices.Sorted(slices.Values(values))
	return v[len(v)/2]
}

// refusalPossible reports whether refusals with this reason and scope exist. Only
// Busy has a scope. NoDevice cannot occur yet, because no client is a device.
func refusalPossible(r actor.Reason, scope actor.Scope) bool {
	return r != actor.NoDevice && (scope != actor.NoScope) == (r == actor.Busy)
}

// Shortfalls lists the ways in which the runs were too small to be significant.
func (s *Summary) Shortfalls() (shortfalls []string) {
	want := func(ok bool, what string) {
		if !ok {
			shortfalls = append(shortfalls, what)
		}
	}
	want(median(s.steps) >= 2000, "the median run has fewer than 2000 steps")
	want(median(s.calls) >= 200, "the median run has fewer than 200 calls")
	want(2*s.deepSeeds >= s.Seeds, "fewer than half of the runs have a call at depth 3 or more")
	want(2*s.threeNodeSeeds >= s.Seeds, "fewer than half of the runs have three nodes")
	want(2*s.snapshotSeeds >= s.Seeds, "fewer than half of the runs restore an actor from a snapshot and entries")
	return shortfalls
}

// CrashShortfall returns a line if fewer than half of the runs crashed and restarted.
// A store is compared with the simulated one mainly by what a crash leaves of it.
func (s *Summary) CrashShortfall() (shortfalls []string) {
	if 2*s.crashedSeeds < s.Seeds {
		shortfalls = append(shortfalls, fmt.Sprintf("%d of %d runs crash and restart, want half of them", s.crashedSeeds, s.Seeds))
	}
	return shortfalls
}

// LongTotals returns the figures that LongShortfalls checks.
func (s *Summary) LongTotals() string {
	n := max(s.Seeds, 1)
	return fmt.Sprintf("long worlds: %v each on average (at least %v), %d steps each (at least %d) and %.1e in all; %d minutes without a client's request, %d worlds with a tenth of the time with under 5 %% of the steps",
		(s.Total.SimulatedTime() / actor.Duration(n)).Round(time.Second), longSpanMin, s.Total.Steps/n, longStepsMeanMin, float64(s.Total.Steps), s.Total.IdleMinutes, len(s.thinSeeds))
}

// LongShortfalls lists the ways in which long runs missed their requirements.
func (s *Summary) LongShortfalls() (shortfalls []string) {
	if s.Seeds == 0 {
		return nil
	}
	if mean := s.Total.SimulatedTime() / actor.Duration(s.Seeds); mean < longSpanMin {
		shortfalls = append(shortfalls, fmt.Sprintf("a run lasts %v on average, want at least %v", mean, longSpanMin))
	}
	if mean := s.Total.Steps / s.Seeds; mean < longStepsMeanMin {
		shortfalls = append(shortfalls, fmt.Sprintf("a run has %d steps on average, want at least %d", mean, longStepsMeanMin))
	}
	shortfalls = append(shortfalls, s.idleSeeds...)
	for _, seed := range s.thinSeeds {
		shortfalls = append(shortfalls, seed+", of which one is under 5 %")
	}
	return shortfalls
}

// Undecided lists the seeds with histories that could not be checked in time. They do
// not count as passed.
func (s *Summary) Undecided() (missing []string) {
	for _, seed := range s.undecidedSeeds {
		missing = append(missing, fmt.Sprintf("a verdict on the histories of seed %d", seed))
	}
	return missing
}

// Print writes a table of everything the simulations counted, zero counts first. It
// returns the names of the rows with a zero count.
func (s *Summary) Print(out io.Writer) (missing []string) {
	var seen strings.Builder
	row := func(kind, name string, n int) {
		line := fmt.Sprintf("  %-9s %-34s %12d\n", kind, name, n)
		if n == 0 {
			missing = append(missing, kind+" "+name)
			io.WriteString(out, line) //nolint:errcheck // output that cannot be written is dropped
			return
		}
		seen.WriteString(line)
	}
	for _, k := range history.Kinds() {
		row("event", k.String(), s.Total.Events[k])
	}
	for _, f := range Faults() {
		row("fault", f.String(), s.Total.Faults[f])
	}
	for _, r := range actor.Reasons() {
		for scope, n := range s.Total.Refusals[r] {
			if n > 0 || refusalPossible(r, actor.Scope(scope)) {
				row("refusal", strings.TrimSpace(r.String()+" "+actor.Scope(scope).String()), n)
			}
		}
	}
	for _, p := range failpoint.All() {
		row("failpoint", p.String(), s.Total.Failpoints[p])
	}
	for _, t := range runs.Types() {
		row("published", t.String(), s.Total.Published[t])
	}
	for p := range points {
		row("point", Point(p).String(), s.Total.Points[p])
	}
	io.WriteString(out, seen.String()) //nolint:errcheck // output that cannot be written is dropped
	fmt.Fprintf(out, "of %d seeds: steps %d, calls %d (medians); depth ≥ 3 in %d, ≥ 3 nodes in %d, a restart from snapshot and entries in %d, a crash and restart in %d\n",
		s.Seeds, median(s.steps), median(s.calls), s.deepSeeds, s.threeNodeSeeds, s.snapshotSeeds, s.crashedSeeds)
	fmt.Fprintf(out, "linearizability: %d operations in %d histories, %d undecided\n", s.Total.JudgedOps, s.Total.JudgedHistories, s.Total.Undecided)
	return missing
}

// premisesShown is the number of specs with the lowest counts that PrintPremises shows.
const premisesShown = 8

// PrintPremises writes how often each spec or property could have been violated, lowest counts
// first: all of them, or those with a count of zero and the lowest others. It returns the names of
// those with a count of zero.
func (s *Summary) PrintPremises(out io.Writer, all bool) (missing []string) {
	list := append(s.Total.Premises.List(), specs.ListPremises(&s.Total.Audit)...)
	slices.SortStableFunc(list, func(a, b specs.Premise) int { return cmp.Compare(a.Count, b.Count) })
	shown := 0
	for _, p := range list {
		if p.Count == 0 {
			missing = append(missing, "premise "+p.Spec+": "+p.Situation)
		} else if shown++; shown > premisesShown && !all {
			continue
		}
		fmt.Fprintf(out, "  %-9s %-34s %12d  %s\n", "premise", p.Spec, p.Count, p.Situation)
	}
	return missing
}

// FailuresBySpec returns the number of failures of each spec on one line.
func (s *Summary) FailuresBySpec() string {
	counts := map[string]int{}
	for _, r := range s.Failed {
		counts[r.Violation.Spec]++
	}
	var b strings.Builder
	for _, r := range s.Failed {
		if n := counts[r.Violation.Spec]; n > 0 {
			fmt.Fprintf(&b, "%s %d  ", r.Violation.Spec, n)
			counts[r.Violation.Spec] = 0
		}
	}
	return b.String()
}
