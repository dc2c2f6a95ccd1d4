// SPDX-License-Identifier: Apache-2.0

package sim

import (
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
)

// Result is what came of one seed.
type Result struct {
	Seed    uint64
	Hash    string // "": not asked for
	Broken  *Violation
	Choices Choices
	Stats   Stats
	Plan    string  // what the world was made of
	Report  *Report // of a team, if one played
	Twice   bool    // it was run twice
}

// RunSeed runs one world from its beginning to its end.
func RunSeed(o Options) Result {
	w := New(o)
	defer w.Close()
	broken := w.Run()
	return Result{Seed: o.Seed, Hash: w.Hash(), Broken: broken, Choices: w.Choices(), Stats: w.Stats, Plan: w.plan.String(), Report: w.report()}
}

// RunTwice runs a world and then the same again, perhaps with other parts: two
// hashes are a violation.
func RunTwice(o, again Options) Result {
	o.Unhashed, again.Unhashed = false, false
	r := RunSeed(o)
	if r.Broken != nil {
		return r
	}
	r.Twice = true
	if second := RunSeed(again); second.Hash != r.Hash {
		r.Broken = &Violation{Spec: Deterministic, Step: r.Stats.Steps, Detail: fmt.Sprintf("the hash is %s, and the next time %s; %s", r.Hash, second.Hash, diverges(o, again))}
	}
	return r
}

// ahead is how many worlds one core may have run more than another.
const ahead = 16

// Many runs worlds of n seeds, two at a time, and gives each the results in the
// order of the seeds. It stops where each says so, and leaves no world running.
func Many(first uint64, n int, run func(seed uint64) Result, each func(Result) bool) {
	workers := min(goruntime.GOMAXPROCS(0), n)
	results := make([]chan Result, workers)
	stop := make(chan struct{})
	var running sync.WaitGroup
	for i := range results {
		results[i] = make(chan Result, ahead)
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

// Summary is what many seeds came to.
type Summary struct {
	Seeds     int
	Failed    []Result
	Total     Stats
	Twice     int            // of them were run twice
	Ran       int            // steps in all, of both runs
	Simulated actor.Duration // likewise
	steps     []int
	calls     []int
	deep      int
	nodes     int
	snapshots int
	crashed   int
	thin      []string // long worlds in which next to nothing happened for a tenth of the time
	quiet     []string // and those in which nobody came for a minute
	undecided []uint64 // seeds
}

// Add takes in one more.
func (s *Summary) Add(r Result) {
	s.Seeds++
	if r.Broken != nil { // all of many failures would be too much to hold on to
		s.Failed = append(s.Failed, Result{Seed: r.Seed, Broken: &Violation{Spec: r.Broken.Spec, Detail: r.Broken.Detail, At: r.Broken.At, Step: r.Broken.Step}})
	}
	s.Total.Add(&r.Stats)
	count := func(n *int, ok bool) {
		if ok {
			*n++
		}
	}
	times := 1
	if r.Twice {
		times = 2
	}
	count(&s.Twice, r.Twice)
	s.Ran += times * r.Stats.Steps
	s.Simulated += actor.Duration(times) * r.Stats.Lasted()
	if r.Broken == nil && r.Stats.Thin() {
		s.thin = append(s.thin, fmt.Sprintf("seed %d has %d steps in the tenths of its time", r.Seed, r.Stats.Tenths))
	}
	if n := r.Stats.Quiet; n > 0 {
		s.quiet = append(s.quiet, fmt.Sprintf("seed %d has %d minutes without a client's request", r.Seed, n))
	}
	if r.Stats.Undecided > 0 {
		s.undecided = append(s.undecided, r.Seed)
	}
	s.steps = append(s.steps, r.Stats.Steps)
	s.calls = append(s.calls, r.Stats.Calls)
	count(&s.deep, r.Stats.Depth >= 3)
	count(&s.nodes, r.Stats.Nodes >= 3)
	count(&s.snapshots, r.Stats.Sometimes[FromSnapshot] > 0)
	count(&s.crashed, r.Stats.Sometimes[NodeRestarted] > 0)
}

func median(values []int) int {
	if len(values) == 0 {
		return 0
	}
	v := slices.Sorted(slices.Values(values))
	return v[len(v)/2]
}

// happens tells whether there are refusals of a reason and a scope. Busy says
// whose limit it was, and no other reason has one; nothing makes NoDevice yet,
// as no client is a device.
func happens(r actor.Reason, scope actor.Scope) bool {
	return r != actor.NoDevice && (scope != actor.NoScope) == (r == actor.Busy)
}

// Short says in which way the worlds were too small to show anything.
func (s *Summary) Short() (short []string) {
	want := func(ok bool, what string) {
		if !ok {
			short = append(short, what)
		}
	}
	want(median(s.steps) >= 2000, "the median world has fewer than 2000 steps")
	want(median(s.calls) >= 200, "the median world has fewer than 200 calls")
	want(2*s.deep >= s.Seeds, "fewer than half of the worlds have a call below three others")
	want(2*s.nodes >= s.Seeds, "fewer than half of the worlds have three nodes")
	want(2*s.snapshots >= s.Seeds, "in fewer than half of the worlds an actor comes back from a snapshot and entries")
	return short
}

// Lengths is what TooShort judges, in numbers.
func (s *Summary) Lengths() string {
	n := max(s.Seeds, 1)
	return fmt.Sprintf("long worlds: %v each on average (at least %v), %d steps each (at least %d) and %.1e in all; %d minutes without a client's request, %d worlds with a tenth of the time with under 5 %% of the steps",
		(s.Total.Lasted() / actor.Duration(n)).Round(time.Second), longLeast, s.Total.Steps/n, longStepsLeast, float64(s.Total.Steps), s.Total.Quiet, len(s.thin))
}

// TooShort says in which way long worlds were not what they should be.
func (s *Summary) TooShort() (short []string) {
	if s.Seeds == 0 {
		return nil
	}
	if mean := s.Total.Lasted() / actor.Duration(s.Seeds); mean < longLeast {
		short = append(short, fmt.Sprintf("a world lasts %v on average, which is less than %v", mean, longLeast))
	}
	if mean := s.Total.Steps / s.Seeds; mean < longStepsLeast {
		short = append(short, fmt.Sprintf("a world has %d steps on average, which is less than %d", mean, longStepsLeast))
	}
	short = append(short, s.quiet...)
	for _, seed := range s.thin {
		short = append(short, seed+", of which one is under 5 %")
	}
	return short
}

// Undecided says if histories could not be judged in their time, which is no pass.
func (s *Summary) Undecided() (missing []string) {
	for _, seed := range s.undecided {
		missing = append(missing, fmt.Sprintf("a verdict on the histories of seed %d", seed))
	}
	return missing
}

// Print writes the table of all that was seen, first what never was, and names that.
func (s *Summary) Print(out io.Writer) (missing []string) {
	var seen strings.Builder
	row := func(kind, name string, n int) {
		line := fmt.Sprintf("  %-8s %-34s %12d\n", kind, name, n)
		if n == 0 {
			missing = append(missing, kind+" "+name)
			io.WriteString(out, line) //nolint:errcheck // a page of text
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
			if n > 0 || happens(r, actor.Scope(scope)) {
				row("refusal", strings.TrimSpace(r.String()+" "+actor.Scope(scope).String()), n)
			}
		}
	}
	for _, p := range failpoint.All() {
		row("rare", p.String(), s.Total.Rare[p])
	}
	for _, t := range runs.Types() {
		row("told", t.String(), s.Total.Told[t])
	}
	for p := range points {
		row("point", Point(p).String(), s.Total.Sometimes[p])
	}
	io.WriteString(out, seen.String()) //nolint:errcheck // a page of text
	fmt.Fprintf(out, "of %d seeds: steps %d, calls %d (medians); depth ≥ 3 in %d, ≥ 3 nodes in %d, a restart from snapshot and entries in %d, a crash and restart in %d\n",
		s.Seeds, median(s.steps), median(s.calls), s.deep, s.nodes, s.snapshots, s.crashed)
	fmt.Fprintf(out, "judged as one machine's: %d operations in %d histories, %d undecided\n", s.Total.Judged, s.Total.Judgements, s.Total.Undecided)
	return missing
}

// Classes counts failures by spec, for a short look at many.
func (s *Summary) Classes() string {
	counts := map[string]int{}
	for _, r := range s.Failed {
		counts[r.Broken.Spec]++
	}
	var b strings.Builder
	for _, r := range s.Failed {
		if n := counts[r.Broken.Spec]; n > 0 {
			fmt.Fprintf(&b, "%s %d  ", r.Broken.Spec, n)
			counts[r.Broken.Spec] = 0
		}
	}
	return b.String()
}
