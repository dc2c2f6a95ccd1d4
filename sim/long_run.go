// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"github.com/troupe-run/troupe/actor"
)

// A long run simulates an hour or more. Clients arrive all the time, and each tenth
// of the span has about as many steps as any other. The total numbers of faults and
// registry operations are those of a short run with the same amount of work, so
// their intervals are longer.
const (
	longSpanMin            = time.Hour
	longSteps              = 7_000 // steps caused by regular clients; load faults add more
	longFaultRounds        = 80    // rounds of periodic faults
	longArrivalGap         = 4 * time.Second
	longOperationGapFactor = 60               // factor by which the interval between registry operations grows
	longArrivalGapMax      = 38 * time.Second // interval when the run is ahead of its target
	tenths                 = 10
	firstTenthPercent      = 15 // target for the first tenth, in percent of all steps
	laterTenthPercent      = 75 // minimum target for a later tenth, in percent of the mean of the preceding ones
)

// Requirements on the statistics of a long run.
const (
	longStepsMeanMin = 10_000      // minimum mean number of steps
	quietMax         = time.Minute // maximum time without a client's request
	thinTenthDivisor = 20          // a tenth has at least 1/20 of all steps
)

// makeLong changes a plan into that of a long run.
func (p *Plan) makeLong(c Entropy) {
	p.Span = longSpanMin + time.Duration(c.Int(16))*time.Minute
	p.FaultInterval = p.Span / longFaultRounds
	p.Calls, p.Steps = 0, longSteps
	p.ArrivalInterval = longArrivalGap
	p.RegistryInterval *= longOperationGapFactor
	p.Busy = c.Int(1<<30) > 0 // true in every seed, but a shrunk run may omit arrivals
}

// arrivalGapMax returns the maximum time until the next client arrives.
func (w *Simulation) arrivalGapMax() time.Duration {
	p := &w.plan
	if p.Steps == 0 {
		return 2 * p.ArrivalInterval
	}
	return [...]time.Duration{p.ArrivalInterval, 2 * p.ArrivalInterval, longArrivalGapMax}[min(w.entropy.Recorded(w.arrivalPace()), 2)]
}

// arrivalPace returns 0 if clients must arrive sooner, 1 if the pace is right, and
// 2 if they must arrive later.
func (w *Simulation) arrivalPace() int {
	p := &w.plan
	elapsed := w.now.Sub(Origin)
	tenth := p.Span / tenths
	due := int(int64(w.tenthStepsTarget()) * int64(elapsed%tenth) / int64(tenth))
	switch done := w.Stats.TenthSteps[w.currentTenth()]; {
	case done < due:
		return 0
	case done > due+p.Steps/(10*tenths):
		return 2
	default:
		return 1
	}
}

// tenthStepsTarget returns the number of steps that clients have to cause in the
// current tenth. It is an equal share of the total, and more if load faults made
// the preceding tenths larger.
func (w *Simulation) tenthStepsTarget() int {
	current, before := w.currentTenth(), 0
	if current == 0 { // no load fault has been seen yet
		return w.plan.Steps * firstTenthPercent / 100
	}
	for _, n := range w.Stats.TenthSteps[:current] {
		before += n
	}
	return max(w.plan.Steps/tenths, before*laterTenthPercent/(100*current))
}

// maySkipArrival reports whether the next client may be left out.
func (w *Simulation) maySkipArrival() bool {
	return !w.plan.Busy || w.now.Sub(max(w.lastArrivalAt, Origin)) < quietMax/3
}

// currentTenth returns the index of the current tenth of the workload.
func (w *Simulation) currentTenth() int {
	return min(int(w.now.Sub(Origin)*tenths/w.plan.Span), tenths-1)
}

// recordArrival records a client's request, or the end of all arrivals. It counts the
// minutes since the previous request.
func (w *Simulation) recordArrival() {
	w.Stats.IdleMinutes += int(w.now.Sub(max(w.lastArrivalAt, Origin)) / quietMax)
	w.lastArrivalAt = w.now
}

// HasThinTenth reports whether a tenth of a long run had too few steps.
func (s *Stats) HasThinTenth() bool {
	all := 0
	for _, n := range s.TenthSteps {
		all += n
	}
	for _, n := range s.TenthSteps {
		if n*thinTenthDivisor < all {
			return true
		}
	}
	return false
}

// SimulatedTime returns the simulated duration of the run.
func (s *Stats) SimulatedTime() actor.Duration { return s.Workload + s.Recovery }
