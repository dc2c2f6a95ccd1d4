// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/troupe-run/troupe/actor"
)

// Bounds of the search for the choice that made a failure inevitable.
const (
	resampledPointsMax   = 20
	evenPoints           = 8 // the first points, evenly spaced; the others bisect
	continuationsPerRun  = 20
	continuationStepsMax = 20_000
	resampledStepsMax    = 2_000_000 // of all continuations together
)

// Inevitability is the choice of a failed run from which on the failure could no longer
// be avoided. It is measured: the first choices of the run are kept, all later ones are
// drawn again, and the continuations that violate the same spec are counted. A
// continuation lasts at most twice as long as the run. The result is a function of the
// options and the choices.
type Inevitability struct {
	Spec    string
	Choices int              // number of choices of the run
	From    int              // number of kept choices from which on every continuation violates the spec; 0: the first point
	Choice  string           // stream and value of the last of these choices; "" if there is none
	At      actor.Duration   // time of that choice, from the start of the run
	Step    int              // number of steps before that choice
	Points  []ResampledPoint // by number of kept choices
}

// ResampledPoint counts the continuations that violate the spec, of continuationsPerRun.
type ResampledPoint struct{ Kept, Broken int }

// FindInevitability searches the choices of a failed run.
func FindInevitability(o Options, r Result) *Inevitability {
	s := resampling{options: o.quiet(r.Violation.Spec), spec: r.Violation.Spec, choices: r.Choices, stepsLeft: resampledStepsMax}
	s.options.timeMax, s.options.StepsMax = 2*r.Violation.At+time.Millisecond, continuationStepsMax
	whole := s.start(math.MaxInt, 0)
	s.count = len(whole.made)
	for i := range evenPoints {
		s.sample(i * s.count / evenPoints)
	}
	from := s.inevitableFrom()
	for len(s.points) < resampledPointsMax && s.stepsLeft > 0 {
		open := s.lastOpen()
		if open < 0 || from-open < 2 {
			break
		}
		s.sample(open + (from-open)/2)
		from = s.inevitableFrom()
	}
	found := &Inevitability{Spec: s.spec, Choices: s.count, From: from, Points: s.points}
	if from > 0 {
		c := whole.made[from-1]
		found.Choice, found.At, found.Step = c.String(), c.at, c.step
	}
	return found
}

// resampling is a search in progress.
type resampling struct {
	options   Options
	spec      string
	choices   Choices
	count     int              // number of choices of the whole run
	points    []ResampledPoint // sorted by Kept
	stepsLeft int
}

// sample counts the continuations of the first kept choices that violate the spec.
func (s *resampling) sample(kept int) {
	at, done := slices.BinarySearchFunc(s.points, kept, func(p ResampledPoint, kept int) int { return p.Kept - kept })
	if done {
		return
	}
	p := ResampledPoint{Kept: kept}
	for i := range uint64(continuationsPerRun) {
		if c := s.start(kept, mix(mix(s.options.Seed, uint64(kept)), i)); c.broken {
			p.Broken++
		}
	}
	s.points = slices.Insert(s.points, at, p)
}

// start runs one continuation and returns its entropy.
func (s *resampling) start(kept int, seed uint64) *forkedEntropy {
	c := &forkedEntropy{kept: NewReplayedEntropy(s.choices), fresh: NewSeededEntropy(seed), left: kept}
	o := s.options
	o.Entropy = c
	w := New(o)
	defer w.Close()
	c.world = w
	v := w.Run()
	c.broken = v != nil && v.Spec == s.spec
	s.stepsLeft -= w.Stats.Steps + runOverheadSteps
	return c
}

// lastOpen returns the last point at which a continuation holds the spec, or -1.
func (s *resampling) lastOpen() int {
	for _, p := range slices.Backward(s.points) {
		if p.Broken < continuationsPerRun {
			return p.Kept
		}
	}
	return -1
}

// inevitableFrom returns the first point after lastOpen. At the end of the run the
// failure has happened.
func (s *resampling) inevitableFrom() int {
	open := s.lastOpen()
	for _, p := range s.points {
		if p.Kept > open {
			return p.Kept
		}
	}
	return s.count
}

// forkedEntropy replays the first choices of a run and draws all later ones.
type forkedEntropy struct {
	kept   *ReplayedEntropy
	fresh  *SeededEntropy
	left   int // number of choices still to replay
	stream StreamID
	world  *Simulation // nil while it is built
	made   []madeChoice
	broken bool // the run violates the spec
}

// madeChoice is a replayed choice.
type madeChoice struct {
	stream StreamID
	value  int
	at     actor.Duration
	step   int
}

// String returns the stream and the value, and the name of the fault that the choice
// decides on, if any.
func (m madeChoice) String() string {
	text := fmt.Sprintf("%s = %d", m.stream, m.value)
	if owner := m.stream & ownerMask; topicOf(m.stream) == topicFault && int(owner) < faultKinds {
		text = Fault(owner).String() + ": " + text
	}
	return text
}

// SetStream implements Entropy.
func (c *forkedEntropy) SetStream(to StreamID) {
	if c.stream = to; c.left > 0 {
		c.kept.SetStream(to)
	} else {
		c.fresh.SetStream(to)
	}
}

// Int implements Entropy.
func (c *forkedEntropy) Int(n int) int {
	if c.left == 0 {
		return c.fresh.Int(n)
	}
	return c.replayed(c.kept.Int(n))
}

// Recorded implements Entropy.
func (c *forkedEntropy) Recorded(v int) int {
	if c.left == 0 {
		return c.fresh.Recorded(v)
	}
	return c.replayed(c.kept.Recorded(v))
}

func (c *forkedEntropy) replayed(v int) int {
	made := madeChoice{stream: c.stream, value: v}
	if w := c.world; w != nil {
		made.at, made.step = w.Elapsed(), w.Stats.Steps
	}
	c.made = append(c.made, made)
	if c.left--; c.left == 0 {
		c.fresh.SetStream(c.stream)
	}
	return v
}

// String returns one sentence.
func (f *Inevitability) String() string {
	if f == nil {
		return ""
	}
	var b strings.Builder
	if f.From == 0 {
		fmt.Fprintf(&b, "from the start on, all %d continuations break %s", continuationsPerRun, f.Spec)
	} else {
		fmt.Fprintf(&b, "from choice %s of %s on (%s, at %v, after %d steps), all %d continuations break %s",
			grouped(f.From), grouped(f.Choices), f.Choice, f.At, f.Step, continuationsPerRun, f.Spec)
	}
	for _, p := range slices.Backward(f.Points) {
		if p.Kept < f.From {
			fmt.Fprintf(&b, "; at choice %s %d of %d did", grouped(p.Kept), p.Broken, continuationsPerRun)
			break
		}
	}
	return b.String()
}

// Table returns a line for each point.
func (f *Inevitability) Table() string {
	var b strings.Builder
	for _, p := range f.Points {
		fmt.Fprintf(&b, "%8s of %s choices kept: %2d of %d continuations break %s\n", grouped(p.Kept), grouped(f.Choices), p.Broken, continuationsPerRun, f.Spec)
	}
	return b.String()
}

// grouped formats a number with a comma between thousands.
func grouped(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", grouped(n/1000), n%1000)
}
