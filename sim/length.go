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
	longLeast   = time.Hour
	longSteps   = 7_000 // clients see to so many in each; what storms add comes on top
	longStrikes = 80    // faults by the clock are asked for so often
	longGap     = 4 * time.Second
	longOrders  = 60               // times as long it is between two things for the registry
	longGapMost = 38 * time.Second // when more than enough has happened
	tenths      = 10
	firstWanted = 15 // % of all, in the first tenth
	tenthWanted = 75 // % of what the tenths before have on average
)

// What the statistics of a long world must show.
const (
	longStepsLeast = 10_000      // on average
	quietMost      = time.Minute // without a client's request
	tenthLeast     = 20          // a tenth has at least one step in so many
)

// lengthen makes a plan that of a long world.
func (p *Plan) lengthen(c Chooser) {
	p.Span = longLeast + time.Duration(c.Int(16))*time.Minute
	p.Strike = p.Span / longStrikes
	p.Calls, p.Steps = 0, longSteps
	p.Gap = longGap
	p.Orders *= longOrders
	p.Busy = c.Int(1<<30) > 0 // so in every seed; but a story that is told again may leave out who comes
}

// gapMost is how long it is at most until the next client comes.
func (w *World) gapMost() time.Duration {
	p := &w.plan
	if p.Steps == 0 {
		return 2 * p.Gap
	}
	return [...]time.Duration{p.Gap, 2 * p.Gap, longGapMost}[min(w.choose.Given(w.pace()), 2)]
}

// pace is whether clients have to come sooner than they do, 0, or later, 2.
func (w *World) pace() int {
	p := &w.plan
	elapsed := w.now.Sub(Origin)
	tenth := p.Span / tenths
	due := int(int64(w.tenthWanted()) * int64(elapsed%tenth) / int64(tenth))
	switch done := w.Stats.Tenths[w.tenth()]; {
	case done < due:
		return 0
	case done > due+p.Steps/(10*tenths):
		return 2
	default:
		return 1
	}
}

// tenthWanted is how many steps clients see to in this tenth: their share, and
// more behind tenths in which storms made many.
func (w *World) tenthWanted() int {
	now, before := w.tenth(), 0
	if now == 0 { // of storms nothing is known yet
		return w.plan.Steps * firstWanted / 100
	}
	for _, n := range w.Stats.Tenths[:now] {
		before += n
	}
	return max(w.plan.Steps/tenths, before*tenthWanted/(100*now))
}

// mayStayAway tells whether nobody has to come now, for once.
func (w *World) mayStayAway() bool {
	return !w.plan.Busy || w.now.Sub(max(w.lastCame, Origin)) < quietMost/3
}

// tenth is that of the workload's time which it is now.
func (w *World) tenth() int {
	return min(int(w.now.Sub(Origin)*tenths/w.plan.Span), tenths-1)
}

// came takes note of a client's request, or that there will be no more.
func (w *World) came() {
	w.Stats.Quiet += int(w.now.Sub(max(w.lastCame, Origin)) / quietMost)
	w.lastCame = w.now
}

// Thin tells whether too little happened in a tenth of a long world's time.
func (s *Stats) Thin() bool {
	all := 0
	for _, n := range s.Tenths {
		all += n
	}
	for _, n := range s.Tenths {
		if n*tenthLeast < all {
			return true
		}
	}
	return false
}

// Lasted is how long the world was.
func (s *Stats) Lasted() actor.Duration { return s.Workload + s.Calm }
