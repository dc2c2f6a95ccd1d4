// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"github.com/troupe-run/troupe/actor"
)

// A long world goes on for an hour or more, of which no part is left out: people
// come all the time, and as much happens in each tenth of it as in any other.
// What comes by the clock comes as often as in a short one, measured by the work
// that is done meanwhile, and so leaves time in between.
const (
	longSpanMin            = time.Hour
	longSteps              = 7_000 // clients see to so many in each; what storms add comes on top
	longFaultRounds        = 80    // faults by the clock are asked for so often
	longArrivalGap         = 4 * time.Second
	longOperationGapFactor = 60               // times as long it is between two things for the registry
	longArrivalGapMax      = 38 * time.Second // when more than enough has happened
	tenths                 = 10
	firstTenthPercent      = 15 // % of all, in the first tenth
	laterTenthPercent      = 75 // % of what the tenths before have on average
)

// What the statistics of a long world must show.
const (
	longStepsMeanMin = 10_000      // on average
	quietMax         = time.Minute // without a client's request
	thinTenthDivisor = 20          // a tenth has at least one step in so many
)

// makeLong makes a plan that of a long world.
func (p *Plan) makeLong(c Entropy) {
	p.Span = longSpanMin + time.Duration(c.Int(16))*time.Minute
	p.FaultInterval = p.Span / longFaultRounds
	p.Calls, p.Steps = 0, longSteps
	p.ArrivalInterval = longArrivalGap
	p.RegistryInterval *= longOperationGapFactor
	p.Busy = c.Int(1<<30) > 0 // so in every seed; but a story that is told again may leave out who comes
}

// arrivalGapMax is how long it is at most until the next client comes.
func (w *Simulation) arrivalGapMax() time.Duration {
	p := &w.plan
	if p.Steps == 0 {
		return 2 * p.ArrivalInterval
	}
	return [...]time.Duration{p.ArrivalInterval, 2 * p.ArrivalInterval, longArrivalGapMax}[min(w.entropy.Recorded(w.arrivalPace()), 2)]
}

// arrivalPace is whether clients have to come sooner than they do, 0, or later, 2.
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

// tenthStepsTarget is how many steps clients see to in this tenth: their share, and
// more behind tenths in which storms made many.
func (w *Simulation) tenthStepsTarget() int {
	now, before := w.currentTenth(), 0
	if now == 0 { // of storms nothing is known yet
		return w.plan.Steps * firstTenthPercent / 100
	}
	for _, n := range w.Stats.TenthSteps[:now] {
		before += n
	}
	return max(w.plan.Steps/tenths, before*laterTenthPercent/(100*now))
}

// maySkipArrival tells whether nobody has to come now, for once.
func (w *Simulation) maySkipArrival() bool {
	return !w.plan.Busy || w.now.Sub(max(w.lastArrivalAt, Origin)) < quietMax/3
}

// currentTenth is that of the workload's time which it is now.
func (w *Simulation) currentTenth() int {
	return min(int(w.now.Sub(Origin)*tenths/w.plan.Span), tenths-1)
}

// recordArrival takes note of a client's request, or that there will be no more.
func (w *Simulation) recordArrival() {
	w.Stats.IdleMinutes += int(w.now.Sub(max(w.lastArrivalAt, Origin)) / quietMax)
	w.lastArrivalAt = w.now
}

// HasThinTenth tells whether too little happened in a tenth of a long world's time.
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

// SimulatedTime is how long the world was.
func (s *Stats) SimulatedTime() actor.Duration { return s.Workload + s.Recovery }
