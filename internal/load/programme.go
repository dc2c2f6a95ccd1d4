// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Overload is how many times its peak a node is offered.
const Overload = 5

// sweep is how many callers the closed loops have, one after the other.
var sweep = []int{1, 4, 16, 64, 256}

// fractions of the peak are offered to show how times grow with the load.
var fractions = []float64{0.25, 0.5, 0.75, 1, 2}

// How long each loop of the programme takes.
const (
	sweepFor    = 6 * time.Second // the best BestOf count
	fractionFor = 3 * time.Second
	overloadFor = 20 * time.Second
	afterFor    = 4 * time.Second
	shapeFor    = 3 * time.Second
	slowFor     = 2 * time.Second
	slowRounds  = 5

	shapeCallers = 16
	manyCallers  = 1024 // to show what callers cost by themselves
	openCallers  = 256  // as many as the widest closed loop has: more would measure sockets
	slowCallers  = 1024
	slowRate     = 1000 // of calls that take SlowTurn, to slowActors
	slowActors   = 4
)

// Floors that must hold.
const (
	goodputFloor = 0.85                  // of the peak, at Overload
	refusalFloor = 10 * time.Millisecond // p99
	growthFloor  = 0.10                  // of memory, in the second half of the overload
	afterFloor   = 0.95                  // of what arrives, at half the peak, after the overload
	slowFloor    = 2.0                   // of p99 without a slow agent beside
)

// Place is where a node is asked.
type Place struct {
	Name   string
	Target func(Ask) (Target, error)
}

// Programme is all that is measured of a node that has Agents.
type Programme struct {
	Places  []Place
	Durable []bool
	// Step is told what begins, and how much of the whole was done before.
	Step func(what string, done, of time.Duration)

	done time.Duration
}

// Report is what came of it.
type Report struct {
	Parts  []Part  `json:"parts"`
	Floors []Floor `json:"floors"`
}

// Part is one place with agents of one durability.
type Part struct {
	Place   string  `json:"place"`
	Durable bool    `json:"durable"`
	Peak    float64 `json:"peak_per_second"`
	Frugal  float64 `json:"peak_per_processor_second"` // of that loop

	Sweep     []Result `json:"sweep"`     // closed, by callers
	Shapes    []Result `json:"shapes"`    // closed: many callers, chains, fans
	Fractions []Result `json:"fractions"` // open, by rate
	Overload  Result   `json:"overload"`
	After     Result   `json:"after"`
	Alone     []Result `json:"alone"`  // without a slow agent beside
	Beside    []Result `json:"beside"` // and with it, turn by turn
	Crowd     []Result `json:"crowd"`  // what the slow agent was asked meanwhile
}

// Floor is something that must hold.
type Floor struct {
	Name string `json:"name"`
	Got  string `json:"got"`
	Want string `json:"want"`
	Met  bool   `json:"met"`
}

// Length is how long the programme takes.
func (p *Programme) Length() time.Duration {
	one := time.Duration(len(sweep))*sweepFor + time.Duration(len(fractions))*fractionFor + overloadFor + afterFor + 3*shapeFor + 2*slowRounds*slowFor
	return one * time.Duration(len(p.Places)*len(p.Durable))
}

// Run measures. What was seen until an error is in the report.
func (p *Programme) Run(ctx context.Context) (Report, error) {
	var r Report
	for _, place := range p.Places {
		for _, durable := range p.Durable {
			part, err := p.part(ctx, place, durable)
			if err != nil {
				return r, fmt.Errorf("%s: %w", part.Name(), err)
			}
			r.Parts = append(r.Parts, part)
			r.Floors = append(r.Floors, part.floors()...)
		}
	}
	return r, nil
}

// Name is what the part measures.
func (p *Part) Name() string {
	if p.Durable {
		return p.Place + ", durable"
	}
	return p.Place + ", unjournaled"
}

func (p *Programme) part(ctx context.Context, place Place, durable bool) (Part, error) {
	part := Part{Place: place.Name, Durable: durable}
	to := func(w Workload) (Target, error) { return place.Target(Ask{Agent: w.Agent(durable)}) }
	noop, err := to(Noop)
	if err != nil {
		return part, err
	}
	closed := func(name string, callers int, long time.Duration, t Target, into *[]Result) error {
		p.begin(part.Name()+", "+name, long)
		r, err := Closed{Callers: callers, For: long}.Run(ctx, t)
		r.Name = name
		*into = append(*into, r)
		return err
	}
	open := func(name string, fraction float64, long time.Duration) (Result, error) {
		p.begin(part.Name()+", "+name, long)
		r, err := Open{Rate: fraction * part.Peak, For: long, Callers: openCallers}.Run(ctx, noop)
		r.Name = name
		return r, err
	}
	for _, n := range sweep {
		if err := closed(plural(n, "caller"), n, sweepFor, noop, &part.Sweep); err != nil {
			return part, err
		}
		if last := &part.Sweep[len(part.Sweep)-1]; last.Best > part.Peak {
			part.Peak, part.Frugal = last.Best, last.PerProcessor()
		}
	}
	if part.Peak == 0 {
		return part, fmt.Errorf("nothing was done: %s", part.Sweep[0].reasons())
	}
	if err := closed(plural(manyCallers, "caller"), manyCallers, shapeFor, noop, &part.Shapes); err != nil {
		return part, err
	}
	for _, w := range []Workload{Chain, Fan} {
		t, err := to(w)
		if err == nil {
			err = closed(fmt.Sprintf("%s, %d callers", describe(w), shapeCallers), shapeCallers, shapeFor, t, &part.Shapes)
		}
		if err != nil {
			return part, err
		}
	}
	for _, f := range fractions {
		r, err := open(fmt.Sprintf("%.2f × peak", f), f, fractionFor)
		if part.Fractions = append(part.Fractions, r); err != nil {
			return part, err
		}
	}
	if err := p.slow(ctx, place, durable, open, &part); err != nil {
		return part, err
	}
	if part.Overload, err = open(fmt.Sprintf("%d × peak", Overload), Overload, overloadFor); err != nil {
		return part, err
	}
	part.After, err = open("after it, 0.50 × peak", 0.5, afterFor)
	return part, err
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func describe(w Workload) string {
	if w == Chain {
		return fmt.Sprintf("chain of %d calls", Links)
	}
	return fmt.Sprintf("fan of %d calls", FanWidth)
}

// slow measures others at half the peak, turn by turn without and with agents
// beside them that take a second for a message and are asked for far more.
func (p *Programme) slow(ctx context.Context, place Place, durable bool, open func(string, float64, time.Duration) (Result, error), part *Part) error {
	target, err := place.Target(Ask{Agent: Slow.Agent(durable), Sessions: slowActors, Timeout: 2 * SlowTurn})
	if err != nil {
		return err
	}
	for range slowRounds {
		r, err := open("without a slow agent", 0.5, slowFor)
		if part.Alone = append(part.Alone, r); err != nil {
			return err
		}
		busy, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		var crowd Result
		go func() {
			var err error
			crowd, err = Open{Rate: slowRate, For: slowFor, Callers: slowCallers}.Run(busy, target)
			ended <- err
		}()
		r, err = open("beside a slow agent", 0.5, slowFor)
		stop()
		if broke := <-ended; err == nil && broke != nil && !errors.Is(broke, context.Canceled) {
			err = fmt.Errorf("the slow agent: %w", broke)
		}
		crowd.Name = "the slow agent meanwhile"
		part.Crowd = append(part.Crowd, crowd)
		if part.Beside = append(part.Beside, r); err != nil {
			return err
		}
	}
	return nil
}

func (p *Programme) begin(what string, takes time.Duration) {
	if p.Step != nil {
		p.Step(what, p.done, p.Length())
	}
	p.done += takes
}

// floors says which hold.
func (p *Part) floors() []Floor {
	o := &p.Overload
	name := func(what string) string { return p.Name() + ": " + what }
	refused := Floor{Name: name("refusals are quick"), Want: "p99 ≤ " + brief(refusalFloor), Got: "nothing was refused"}
	var slowest time.Duration
	for _, r := range append(p.Crowd[:len(p.Crowd):len(p.Crowd)], *o) {
		slowest = max(slowest, r.Refusal.P99)
	}
	if slowest > 0 {
		refused.Got, refused.Met = "p99 "+brief(slowest)+" in the worst loop", slowest <= refusalFloor
	}
	grew := o.Memory.Slope * (overloadFor / 2).Seconds() / float64(max(o.Memory.Most, 1))
	alone, beside := median99(p.Alone), median99(p.Beside)
	return []Floor{
		{name(fmt.Sprintf("goodput at %d × peak", Overload)), fmt.Sprintf("%.0f %%; by processor time %.0f %%", 100*o.PerSecond/p.Peak, 100*o.PerProcessor()/max(p.Frugal, 1)), fmt.Sprintf("≥ %.0f %% of %s/s", 100*goodputFloor, count(p.Peak)), o.PerSecond >= goodputFloor*p.Peak},
		refused,
		{name("memory is flat"), fmt.Sprintf("%+.1f %% in the second half (%+.2f MB/s)", 100*grew, o.Memory.Slope/1e6), fmt.Sprintf("≤ %.0f %%", 100*growthFloor), grew <= growthFloor},
		{name("as before when it is over"), fmt.Sprintf("%.0f %%", 100*p.After.PerSecond/p.After.Rate), fmt.Sprintf("≥ %.0f %% of what arrives", 100*afterFloor), p.After.PerSecond >= afterFloor*p.After.Rate},
		{name("a slow agent delays nobody"), fmt.Sprintf("p99 %s, %s without it", brief(beside), brief(alone)), fmt.Sprintf("≤ %.0f ×", slowFloor), float64(beside) <= slowFloor*float64(alone)},
	}
}

// median99 is the median of the rounds' p99.
func median99(rounds []Result) time.Duration {
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
