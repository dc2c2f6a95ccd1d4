// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"fmt"
	"path/filepath"

	"github.com/troupe-run/troupe/sim"
)

// Options say which worlds the team is put into.
type Options struct {
	First     uint64 // seed; 0 is 1
	Seeds     int    // so many, from First on; 0 is SeedsDefault
	Faultless bool   // no faults but Odds
	Odds      []sim.Odds
	Strategy  string // of scheduling, as sim.ParseStrategy reads it; "": drawn
	Dir       string // where a failed world leaves its folder; "": nowhere
	Progress  func(done int)
	Columns   *sim.Columns // is shown what happens, if it is one seed
}

// SeedsDefault is how many seeds are run if nobody says.
const SeedsDefault = 20

// replayEvery is how many seeds share one that is run a second time: an agent in
// Go that is no function of its message and answers shows there.
const replayEvery = 10

// failuresMax is how many failed worlds leave their folders.
const failuresMax = 3

// Failure is a world that was not as it has to be.
type Failure struct {
	Seed      uint64
	Property  string // the spec, or the expectation
	Detail    string
	Aggregate bool   // it is about all worlds together, and Seed is the worst
	Dir       string // its folder, if it left one
}

// Result is what became of the team in all worlds.
type Result struct {
	Seeds    int
	Steps    int
	Total    sim.Report // Depth and FanOut are the greatest
	Faults   []FaultCount
	Failures []Failure
	first    uint64
	folders  int
}

// FaultCount is how often a fault changed something.
type FaultCount struct {
	Fault sim.Fault
	Times int
}

// OK tells whether all was as it has to be.
func (r *Result) OK() bool { return len(r.Failures) == 0 }

// Run puts the team into the worlds of the seeds. An error is the team's own:
// it cannot be played.
func Run(team *Team, o Options) (*Result, error) {
	cast, err := team.build()
	if err != nil {
		return nil, err
	}
	if o.First == 0 {
		o.First = 1
	}
	if o.Seeds <= 0 {
		o.Seeds = SeedsDefault
	}
	options := func(seed uint64) sim.Options {
		return sim.Options{Seed: seed, Faultless: o.Faultless, Odds: o.Odds, Strategy: o.Strategy, Team: cast}
	}
	result := &Result{first: o.First}
	var stats sim.Stats
	var shares []successRate
	for i := range team.Expect {
		shares = append(shares, successRate{expect: &team.Expect[i]})
	}
	sim.RunSeeds(o.First, o.Seeds, func(seed uint64) sim.Result {
		if first := options(seed); (seed-o.First)%replayEvery == 0 {
			if o.Seeds == 1 {
				first.Columns = o.Columns
			}
			return sim.RunTwice(first, options(seed))
		}
		return sim.RunSeed(options(seed))
	}, func(r sim.Result) bool {
		result.Seeds++
		result.Steps += r.Stats.Steps
		stats.Add(&r.Stats)
		if r.Violation != nil {
			result.addFailure(o, options(r.Seed), r)
		} else {
			result.addReport(r.Report)
			if n := r.Stats.Undecided; n > 0 {
				result.Failures = append(result.Failures, Failure{Seed: r.Seed, Property: "all histories are judged", Detail: fmt.Sprintf("%d could not be in their time; run it again where nothing else runs", n)})
			}
			for i := range shares {
				shares[i].add(r.Seed, r.Report)
				if why := shares[i].expect.violation(r.Report); why != "" {
					result.Failures = append(result.Failures, Failure{Seed: r.Seed, Property: shares[i].expect.String(), Detail: why})
				}
			}
		}
		if o.Progress != nil {
			o.Progress(result.Seeds)
		}
		return true
	})
	for i := range shares {
		if f := shares[i].violation(); f != nil {
			result.Failures = append(result.Failures, *f)
		}
	}
	for _, f := range sim.Faults() {
		if n := stats.Faults[f]; n > 0 {
			result.Faults = append(result.Faults, FaultCount{f, n})
		}
	}
	return result, nil
}

// addFailure notes a spec that broke, and leaves the folder of the first few.
func (r *Result) addFailure(o Options, world sim.Options, broken sim.Result) {
	f := Failure{Seed: broken.Seed, Property: broken.Violation.Spec, Detail: broken.Violation.Detail}
	if o.Dir != "" && r.folders < failuresMax {
		r.folders++
		f.Dir = filepath.Join(o.Dir, fmt.Sprintf("seed-%d", broken.Seed))
		if _, err := sim.SaveFailure(f.Dir, world, broken); err != nil {
			f.Detail += fmt.Sprintf(" (its folder could not be written: %v)", err)
		}
	}
	r.Failures = append(r.Failures, f)
}

func (r *Result) addReport(one *sim.Report) {
	t := &r.Total
	t.Asked += one.Asked
	t.Succeeded += one.Succeeded
	t.Partial += one.Partial
	t.Refused += one.Refused
	t.Held += one.Held
	t.Unanswered += one.Unanswered
	t.Depth, t.FanOut = max(t.Depth, one.Depth), max(t.FanOut, one.FanOut)
	t.Unfinished = append(t.Unfinished, one.Unfinished...)
	for _, c := range one.Refusals {
		t.AddRefusals(c)
	}
	for _, a := range one.Agents {
		t.AddAgentCount(a)
	}
}

// successRate follows what part of all that was asked succeeds.
type successRate struct {
	expect           *Expect
	asked, succeeded int
	worst            uint64  // the seed in which the least did
	lowest           float64 // which part
}

func (s *successRate) add(seed uint64, r *sim.Report) {
	if s.expect.SucceededPercent == nil {
		return
	}
	asked, succeeded := s.expect.succeeded(r)
	s.asked, s.succeeded = s.asked+asked, s.succeeded+succeeded
	if asked == 0 {
		return
	}
	if part := float64(succeeded) / float64(asked); s.worst == 0 || part < s.lowest {
		s.worst, s.lowest = seed, part
	}
}

func (s *successRate) violation() *Failure {
	if s.expect.SucceededPercent == nil || s.succeeded*100 >= *s.expect.SucceededPercent*s.asked && s.asked > 0 {
		return nil
	}
	return &Failure{Seed: s.worst, Aggregate: true, Property: s.expect.String(), Detail: fmt.Sprintf("%d of %d; the least, %.0f %%, in seed %d", s.succeeded, s.asked, 100*s.lowest, s.worst)}
}
