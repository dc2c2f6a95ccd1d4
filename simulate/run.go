// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"fmt"

	"github.com/troupe-run/troupe/sim"
)

// Options select the simulations to run.
type Options struct {
	First     uint64 // first seed; 0 means 1
	Seeds     int    // number of consecutive seeds; 0 means SeedsDefault
	Faultless bool   // no faults except those in Odds
	Odds      []sim.Odds
	Strategy  string // scheduling strategy, as parsed by sim.ParseStrategy; empty: chosen by the seed
	Dir       string // folder for reports of failures; empty: none are written
	Progress  func(done int)
	Columns   *sim.Columns // receives the events, if Seeds is 1
}

// SeedsDefault is the default number of seeds.
const SeedsDefault = 20

// replayEvery is the interval between seeds that are run twice. The second run detects
// Go agents whose result depends on more than their message and answers.
const replayEvery = 10

// failuresMax is the maximum number of failures with a report folder.
const failuresMax = 3

// Failure is a violation found in one simulation.
type Failure struct {
	Seed      uint64
	Property  string // violated spec or expectation
	Detail    string
	Aggregate bool   // the violation concerns all simulations; Seed is the worst seed
	Dir       string // report folder; may be empty
}

// Result is the result of all simulations.
type Result struct {
	Seeds    int
	Steps    int
	Total    sim.Report // Depth and FanOut are maxima
	Faults   []FaultCount
	Failures []Failure
	first    uint64
	folders  int
}

// FaultCount is the number of times a fault had an effect.
type FaultCount struct {
	Fault sim.Fault
	Times int
}

// OK reports whether no violation was found.
func (r *Result) OK() bool { return len(r.Failures) == 0 }

// Run simulates the team with each seed. It returns an error if the team itself is
// invalid.
func Run(team *Team, o Options) (*Result, error) {
	simTeam, err := team.build()
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
		return sim.Options{Seed: seed, Faultless: o.Faultless, Odds: o.Odds, Strategy: o.Strategy, Team: simTeam}
	}
	result := &Result{first: o.First}
	var stats sim.Stats
	var rates []successRate
	for i := range team.Expect {
		rates = append(rates, successRate{expect: &team.Expect[i]})
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
				result.Failures = append(result.Failures, Failure{Seed: r.Seed, Property: "all histories are checked", Detail: fmt.Sprintf("%d checks exceeded their time limit; retry on an idle machine", n)})
			}
			for i := range rates {
				rates[i].add(r.Seed, r.Report)
				if detail := rates[i].expect.violation(r.Report); detail != "" {
					result.Failures = append(result.Failures, Failure{Seed: r.Seed, Property: rates[i].expect.String(), Detail: detail})
				}
			}
		}
		if o.Progress != nil {
			o.Progress(result.Seeds)
		}
		return true
	})
	for i := range rates {
		if f := rates[i].violation(); f != nil {
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

// addFailure records a violated spec. The first failuresMax violations get a report
// folder.
func (r *Result) addFailure(o Options, simOptions sim.Options, broken sim.Result) {
	f := Failure{Seed: broken.Seed, Property: broken.Violation.Spec, Detail: broken.Violation.Detail}
	if o.Dir != "" && r.folders < failuresMax {
		r.folders++
		dir, err := sim.FailureDir(o.Dir, simOptions, broken)
		if f.Dir = dir; err == nil {
			_, err = sim.SaveFailure(dir, simOptions, broken)
		}
		if err != nil {
			f.Detail += fmt.Sprintf(" (report folder could not be written: %v)", err)
		}
	}
	r.Failures = append(r.Failures, f)
}

func (r *Result) addReport(report *sim.Report) {
	t := &r.Total
	t.Asked += report.Asked
	t.Succeeded += report.Succeeded
	t.Partial += report.Partial
	t.Refused += report.Refused
	t.Held += report.Held
	t.Unanswered += report.Unanswered
	t.Depth, t.FanOut = max(t.Depth, report.Depth), max(t.FanOut, report.FanOut)
	t.Unfinished = append(t.Unfinished, report.Unfinished...)
	for _, c := range report.Refusals {
		t.AddRefusals(c)
	}
	for _, a := range report.Agents {
		t.AddAgentCount(a)
	}
}

// successRate tracks the success rate of client requests for one expectation.
type successRate struct {
	expect           *Expect
	asked, succeeded int
	worst            uint64  // seed with the lowest rate
	lowest           float64 // rate of that seed
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
	if rate := float64(succeeded) / float64(asked); s.worst == 0 || rate < s.lowest {
		s.worst, s.lowest = seed, rate
	}
}

func (s *successRate) violation() *Failure {
	if s.expect.SucceededPercent == nil || s.succeeded*100 >= *s.expect.SucceededPercent*s.asked && s.asked > 0 {
		return nil
	}
	return &Failure{Seed: s.worst, Aggregate: true, Property: s.expect.String(), Detail: fmt.Sprintf("%d of %d; lowest %.0f %% in seed %d", s.succeeded, s.asked, 100*s.lowest, s.worst)}
}
