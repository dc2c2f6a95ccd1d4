// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Overload is the offered load in the overload loop, as a multiple of the peak.
const Overload = 5

// sweepCallers lists the numbers of callers of the closed loops.
var sweepCallers = []int{1, 4, 16, 64, 256}

// peakFractions lists the loads of the open loops as fractions of the peak. They show
// the growth of latency with load.
var peakFractions = []float64{0.25, 0.5, 0.75, 1, 2}

// The durations and sizes of the loops.
const (
	sweepDuration     = 6 * time.Second // the result is the rate in the best PeakWindow of this time
	fractionDuration  = 3 * time.Second
	saturatedDuration = 20 * time.Second
	overloadDuration  = 20 * time.Second
	recoveryDuration  = 4 * time.Second
	shapeDuration     = 3 * time.Second
	slowRoundDuration = 2 * time.Second
	slowRounds        = 5

	shapeCallers = 16
	manyCallers  = 1024 // shows the cost of callers alone
	openCallers  = 256  // as in the widest closed loop; more would measure sockets
	// With these, calls of the workload Work exceed the limits of the node and of its
	// actors, so that it refuses calls at Overload.
	overloadCallers  = 4096
	overloadSessions = 16
	slowCallers      = 1024
	slowRate         = 1000 // calls per second to slowActors actors; each call takes SlowDuration
	slowActors       = 4
)

// The floors that must hold.
const (
	refusedFloor = 0.50                  // minimum fraction of refused attempts at Overload; else it is no overload
	unsentFloor  = 0.05                  // maximum fraction of arrivals not sent at Overload
	goodputFloor = 0.85                  // minimum fraction of the peak, saturated and at Overload
	refusalFloor = 10 * time.Millisecond // maximum p99 of the time to refuse
	growthFloor  = 0.10                  // maximum growth of memory in the second half, saturated and at Overload
	afterFloor   = 0.95                  // minimum fraction of arrivals completed at half the peak, after the overload
	slowFloor    = 2.0                   // maximum p99 with a slow agent, as a multiple of the p99 without one
)

// Place is an access path to a node: in process, or through its gateway.
type Place struct {
	Name   string
	Target func(CallOptions) (Target, error)
}

// Suite is the set of loops run against a node that serves Agents.
type Suite struct {
	Places  []Place
	Durable []bool
	// Progress, if set, is called before each loop with its name, the time elapsed and
	// the total.
	Progress func(what string, done, of time.Duration)

	done time.Duration
}

// Report holds the results of a suite.
type Report struct {
	Parts  []Part  `json:"parts"`
	Floors []Floor `json:"floors"`
}

// Part holds the results for one place and one durability.
type Part struct {
	Place            string  `json:"place"`
	Durable          bool    `json:"durable"`
	Peak             float64 `json:"peak_per_second"`
	PeakPerProcessor float64 `json:"peak_per_processor_second"` // calls per second of processor time in the loop that reached Peak

	Sweep     []Result `json:"sweep"`     // closed loops by number of callers
	Shapes    []Result `json:"shapes"`    // closed loops with many callers, chains and fans
	Fractions []Result `json:"fractions"` // open loops by rate
	Saturated Result   `json:"saturated"` // open loop at Overload, most of which the generator cannot send

	WorkPeak             float64 `json:"work_peak_per_second"` // of the workload Work
	WorkPeakPerProcessor float64 `json:"work_peak_per_processor_second"`
	WorkSweep            Result  `json:"work_sweep"` // the closed loop that reached WorkPeak
	Overload             Result  `json:"overload"`   // open loop of Work at Overload
	After                Result  `json:"after"`      // open loop of Work at half its peak

	Alone  []Result `json:"alone"`  // rounds without a slow agent
	Beside []Result `json:"beside"` // rounds with a slow agent, alternating with Alone
	Crowd  []Result `json:"crowd"`  // load of the slow agent in the rounds of Beside
}

// Floor is a requirement with the value measured.
type Floor struct {
	Name string `json:"name"`
	Got  string `json:"got"`
	Want string `json:"want"`
	Met  bool   `json:"met"`
}

// Duration returns the planned duration of the suite.
func (p *Suite) Duration() time.Duration {
	one := time.Duration(len(sweepCallers))*sweepDuration + time.Duration(len(peakFractions))*fractionDuration + saturatedDuration + sweepDuration + overloadDuration + recoveryDuration + 3*shapeDuration + 2*slowRounds*slowRoundDuration
	return one * time.Duration(len(p.Places)*len(p.Durable))
}

// Run runs all loops. After an error the report holds the parts completed before.
func (p *Suite) Run(ctx context.Context) (Report, error) {
	var r Report
	for _, place := range p.Places {
		for _, durable := range p.Durable {
			part, err := p.runPart(ctx, place, durable)
			if err != nil {
				return r, fmt.Errorf("%s: %w", part.Name(), err)
			}
			r.Parts = append(r.Parts, part)
			r.Floors = append(r.Floors, part.floors()...)
		}
	}
	return r, nil
}

// Name returns the place and the durability.
func (p *Part) Name() string {
	if p.Durable {
		return p.Place + ", durable"
	}
	return p.Place + ", unjournaled"
}

func (p *Suite) runPart(ctx context.Context, place Place, durable bool) (Part, error) {
	part := Part{Place: place.Name, Durable: durable}
	target := func(w Workload) (Target, error) { return place.Target(CallOptions{Agent: w.Agent(durable)}) }
	noop, err := target(Noop)
	if err != nil {
		return part, err
	}
	closed := func(name string, callers int, duration time.Duration, t Target, into *[]Result) error {
		p.startLoop(part.Name()+", "+name, duration)
		r, err := ClosedLoop{Callers: callers, For: duration}.Run(ctx, t)
		r.Name = name
		*into = append(*into, r)
		return err
	}
	open := func(name string, fraction float64, duration time.Duration) (Result, error) {
		p.startLoop(part.Name()+", "+name, duration)
		r, err := OpenLoop{Rate: fraction * part.Peak, For: duration, Callers: openCallers}.Run(ctx, noop)
		r.Name = name
		return r, err
	}
	for _, n := range sweepCallers {
		if err := closed(plural(n, "caller"), n, sweepDuration, noop, &part.Sweep); err != nil {
			return part, err
		}
		if last := &part.Sweep[len(part.Sweep)-1]; last.Best > part.Peak {
			part.Peak, part.PeakPerProcessor = last.Best, last.PerProcessor()
		}
	}
	if part.Peak == 0 {
		return part, fmt.Errorf("no call completed: %s", part.Sweep[0].refusalText())
	}
	if err := closed(plural(manyCallers, "caller"), manyCallers, shapeDuration, noop, &part.Shapes); err != nil {
		return part, err
	}
	for _, w := range []Workload{Chain, Fan} {
		t, err := target(w)
		if err == nil {
			err = closed(fmt.Sprintf("%s, %d callers", workloadTitle(w), shapeCallers), shapeCallers, shapeDuration, t, &part.Shapes)
		}
		if err != nil {
			return part, err
		}
	}
	for _, f := range peakFractions {
		r, err := open(fmt.Sprintf("%.2f × peak", f), f, fractionDuration)
		if part.Fractions = append(part.Fractions, r); err != nil {
			return part, err
		}
	}
	if err := p.runSlowAgent(ctx, place, durable, open, &part); err != nil {
		return part, err
	}
	if part.Saturated, err = open(fmt.Sprintf("%d × peak", Overload), Overload, saturatedDuration); err != nil {
		return part, err
	}
	return part, p.runOverload(ctx, place, &part)
}

// runOverload measures the peak of the workload Work and offers a multiple of it. A
// call of Work costs a hundred times its refusal, so that the generator can send them
// all and the node must refuse most of them.
func (p *Suite) runOverload(ctx context.Context, place Place, part *Part) error {
	work, err := place.Target(CallOptions{Agent: Work.Agent(part.Durable), Sessions: overloadSessions})
	if err != nil {
		return err
	}
	name := plural(overloadSessions, "caller") + " with 2 ms of work"
	p.startLoop(part.Name()+", "+name, sweepDuration)
	part.WorkSweep, err = ClosedLoop{Callers: overloadSessions, For: sweepDuration}.Run(ctx, work)
	part.WorkSweep.Name = name
	part.WorkPeak, part.WorkPeakPerProcessor = part.WorkSweep.Best, part.WorkSweep.PerProcessor()
	if err == nil && part.WorkPeak == 0 {
		err = fmt.Errorf("no work completed: %s", part.WorkSweep.refusalText())
	}
	if err != nil {
		return err
	}
	open := func(name string, fraction float64, duration time.Duration) (Result, error) {
		p.startLoop(part.Name()+", "+name, duration)
		r, err := OpenLoop{Rate: fraction * part.WorkPeak, For: duration, Callers: overloadCallers}.Run(ctx, work)
		r.Name = name
		return r, err
	}
	if part.Overload, err = open(fmt.Sprintf("work, %d × its peak", Overload), Overload, overloadDuration); err != nil {
		return err
	}
	part.After, err = open("work after it, 0.50 × its peak", 0.5, recoveryDuration)
	return err
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func workloadTitle(w Workload) string {
	if w == Chain {
		return fmt.Sprintf("chain of %d calls", ChainLength)
	}
	return fmt.Sprintf("fan of %d calls", FanWidth)
}

// runSlowAgent runs rounds at half the peak, alternately without and with load on
// slow agents. A slow agent takes SlowDuration per message and is overloaded.
func (p *Suite) runSlowAgent(ctx context.Context, place Place, durable bool, open func(string, float64, time.Duration) (Result, error), part *Part) error {
	target, err := place.Target(CallOptions{Agent: Slow.Agent(durable), Sessions: slowActors, Timeout: 2 * SlowDuration})
	if err != nil {
		return err
	}
	for range slowRounds {
		r, err := open("without a slow agent", 0.5, slowRoundDuration)
		if part.Alone = append(part.Alone, r); err != nil {
			return err
		}
		busy, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		var crowd Result
		go func() {
			var err error
			crowd, err = OpenLoop{Rate: slowRate, For: slowRoundDuration, Callers: slowCallers}.Run(busy, target)
			ended <- err
		}()
		r, err = open("with a slow agent", 0.5, slowRoundDuration)
		stop()
		if slowErr := <-ended; err == nil && slowErr != nil && !errors.Is(slowErr, context.Canceled) {
			err = fmt.Errorf("slow agent: %w", slowErr)
		}
		crowd.Name = "the slow agent"
		part.Crowd = append(part.Crowd, crowd)
		if part.Beside = append(part.Beside, r); err != nil {
			return err
		}
	}
	return nil
}

func (p *Suite) startLoop(name string, duration time.Duration) {
	if p.Progress != nil {
		p.Progress(name, p.done, p.Duration())
	}
	p.done += duration
}

// floors compares the results with the floors.
func (p *Part) floors() []Floor {
	o := &p.Overload
	name := func(what string) string { return p.Name() + ": " + what }
	refusals := Floor{Name: name("refusals are quick"), Want: "p99 ≤ " + formatDuration(refusalFloor), Got: "nothing was refused"}
	var slowest time.Duration
	for _, r := range append(p.Crowd[:len(p.Crowd):len(p.Crowd)], *o) {
		slowest = max(slowest, r.Refusal.P99)
	}
	if slowest > 0 {
		refusals.Got, refusals.Met = "p99 "+formatDuration(slowest)+" in the worst loop", slowest <= refusalFloor
	}
	alone, beside := medianP99(p.Alone), medianP99(p.Beside)
	return []Floor{
		goodput(name("goodput, saturated"), &p.Saturated, p.Peak, p.PeakPerProcessor),
		flatMemory(name("memory is flat, saturated"), &p.Saturated, saturatedDuration),
		{name(fmt.Sprintf("%d × peak of work overloads", Overload)), fmt.Sprintf("%.0f %% refused, %.1f %% not sent", 100*o.RefusedFraction(), 100*o.UnsentFraction()), fmt.Sprintf("> %.0f %%, ≤ %.0f %%", 100*refusedFloor, 100*unsentFloor), o.RefusedFraction() > refusedFloor && o.UnsentFraction() <= unsentFloor},
		goodput(name("goodput, overloaded"), o, p.WorkPeak, p.WorkPeakPerProcessor),
		refusals,
		flatMemory(name("memory is flat, overloaded"), o, overloadDuration),
		{name("as before when it is over"), fmt.Sprintf("%.0f %%", 100*p.After.PerSecond/p.After.Rate), fmt.Sprintf("≥ %.0f %% of the offered load", 100*afterFloor), p.After.PerSecond >= afterFloor*p.After.Rate},
		{name("a slow agent delays no other"), fmt.Sprintf("p99 %s, %s without it", formatDuration(beside), formatDuration(alone)), fmt.Sprintf("≤ %.0f ×", slowFloor), float64(beside) <= slowFloor*float64(alone)},
	}
}

// goodput compares the calls completed in a loop with a peak.
func goodput(name string, r *Result, peak, perProcessor float64) Floor {
	return Floor{name, fmt.Sprintf("%.0f %%; by processor time %.0f %%", 100*r.PerSecond/peak, 100*r.PerProcessor()/max(perProcessor, 1)),
		fmt.Sprintf("≥ %.0f %% of %s/s", 100*goodputFloor, formatRate(peak)), r.PerSecond >= goodputFloor*peak}
}

// flatMemory limits the growth of memory in the second half of a loop.
func flatMemory(name string, r *Result, duration time.Duration) Floor {
	grew := r.Memory.Slope * (duration / 2).Seconds() / float64(max(r.Memory.Max, 1))
	return Floor{name, fmt.Sprintf("%+.1f %% in the second half (%+.2f MB/s)", 100*grew, r.Memory.Slope/1e6), fmt.Sprintf("≤ %.0f %%", 100*growthFloor), grew <= growthFloor}
}

// medianP99 returns the median of the rounds' p99; 0 if there are none.
func medianP99(rounds []Result) time.Duration {
	var all []time.Duration
	for i := range rounds {
		all = append(all, rounds[i].Latency.P99)
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)/2]
}
