// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runtime"
)

// Strategy is how a world chooses what a cell takes in next, and how soon. What
// one hardly ever does another does all the time.
type Strategy uint8

// The strategies.
const (
	Uniform    Strategy = iota // of the oldest, each as likely as any other
	Priority                   // who has the higher rank goes first; a few times, the one that would go next loses it
	Starvation                 // one actor is always last, and late

	strategies = int(Starvation) + 1
)

var strategyNames = [strategies]string{"uniform", "priority", "starvation"}

// String is the strategy's name.
func (s Strategy) String() string { return strategyNames[s] }

// ParseStrategy reads what String writes.
func ParseStrategy(text string) (Strategy, error) {
	for s, name := range strategyNames {
		if name == text {
			return Strategy(s), nil
		}
	}
	return 0, fmt.Errorf("strategy %.40q: want one of %v", text, strategyNames)
}

// Schedule is a strategy with what it drew.
type Schedule struct {
	Strategy Strategy
	Salt     uint64   // of the ranks
	Demote   []int    // the steps at which the one that would go next loses its rank, in order
	Starved  actor.ID // who is always last
}

const (
	uniformWindow      = 4    // how many of a cell's inputs may go next
	rankedWindow       = 16   // likewise, where ranks say which
	demotionsMax       = 4    // how often a rank is lost: so many events in a certain order a bug may take
	demotionStepsMax   = 3000 // steps
	starvationDelayMax = 40 * time.Millisecond
)

// drawSchedule makes the schedule of a seed, of the strategy that is named if one is.
func drawSchedule(c Entropy, agents []actor.Definition, keys int, named string) Schedule {
	s := Schedule{Strategy: [...]Strategy{Uniform, Uniform, Priority, Starvation}[c.Int(4)]}
	if named != "" {
		s.Strategy = invariant.Must(ParseStrategy(named))
	}
	switch s.Strategy {
	case Priority:
		s.Salt = uint64(c.Int(1 << 16))
		at := 0
		for range 1 + c.Int(demotionsMax) {
			at += 1 + c.Int(demotionStepsMax/demotionsMax)
			s.Demote = append(s.Demote, at)
		}
	case Starvation:
		s.Starved = actor.NewID(agents[c.Int(len(agents))].Name, fmt.Sprintf("s%d", c.Int(keys)))
	}
	return s
}

// String says which, and what it drew.
func (s Schedule) String() string {
	switch s.Strategy {
	case Priority:
		return fmt.Sprintf("%s, ranks lost at the steps %v", s.Strategy, s.Demote)
	case Starvation:
		return fmt.Sprintf("%s of %s", s.Strategy, s.Starved)
	}
	return s.Strategy.String()
}

// scheduler carries a schedule out.
type scheduler struct {
	Schedule
	demoted []string // whoever has lost its rank, the last to lose it last
}

// next is which of a cell's inputs goes next: never one before another of its stream.
func (s *scheduler) next(c *cell) int {
	w := c.n.w
	switch n := len(c.inputs); {
	case n < 2:
		return 0
	case s.Strategy == Priority && !w.recovering:
		return s.highestRanked(c, min(n, rankedWindow))
	case s.Strategy == Starvation && !w.recovering:
		for i := range min(n, rankedWindow) {
			if !s.isStarved(&c.inputs[i]) && inOrder(c.inputs, i) {
				if i > 0 {
					w.Stats.Points[InputStarved]++
				}
				return i
			}
		}
		return 0
	default:
		i := w.entropy.Int(min(n, uniformWindow))
		for j := range i {
			if c.inputs[j].orderGroup == c.inputs[i].orderGroup && c.inputs[i].orderGroup != unordered {
				return j
			}
		}
		return i
	}
}

// inOrder tells whether nothing of its stream stands before an input.
func inOrder(inputs []input, i int) bool {
	for j := range i {
		if inputs[j].orderGroup == inputs[i].orderGroup && inputs[i].orderGroup != unordered {
			return false
		}
	}
	return true
}

// highestRanked is the input of the highest rank.
func (s *scheduler) highestRanked(c *cell, n int) int {
	best, rank := 0, s.rank(c.inputs[0].owner())
	for i := 1; i < n; i++ {
		if r := s.rank(c.inputs[i].owner()); r > rank && inOrder(c.inputs, i) {
			best, rank = i, r
		}
	}
	w := c.n.w
	if len(s.Demote) > 0 && w.Stats.Steps >= s.Demote[0] {
		s.Demote = s.Demote[1:]
		w.Stats.Points[RankLost]++
		s.demoted = append(s.demoted, c.inputs[best].owner())
	}
	return best
}

// rank is that of an actor, or of a cell.
func (s *scheduler) rank(who string) int {
	for i, name := range s.demoted {
		if name == who {
			return -1 - i
		}
	}
	return int(mix(s.Salt, hashString(who)) >> 33)
}

func hashString(text string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * 1099511628211
	}
	return h
}

// owner input it is: of a message or what was read the actor, of what came of an
// effect the run.
func (in *input) owner() string {
	switch i := in.in.(type) {
	case runtime.Deliver:
		return i.Envelope.To.Agent + "/" + i.Envelope.To.Key
	case *runtime.Visit:
		return i.Call.To.Agent + "/" + i.Call.To.Key
	case runtime.Loaded:
		return i.Actor.Agent + "/" + i.Actor.Key
	case runtime.Recalled:
		return i.Actor.Agent + "/" + i.Actor.Key
	case runtime.Outcome:
		return string(i.ID.Run[:])
	case runtime.Streamed:
		return string(i.ID.Run[:])
	}
	return ""
}

func (s *scheduler) isStarved(in *input) bool {
	switch i := in.in.(type) {
	case runtime.Deliver:
		return i.Envelope.To == s.Starved
	case *runtime.Visit:
		return i.Call.To == s.Starved
	case runtime.Loaded:
		return i.Actor == s.Starved
	}
	return false
}

// stepDelay is how long it takes a cell to begin its next step.
func (s *scheduler) stepDelay(c *cell) time.Duration {
	w := c.n.w
	const tick = 5 * time.Microsecond
	switch {
	case s.Strategy == Priority && !w.recovering:
		return tick << (mix(s.Salt, uint64(c.n.index)<<16|uint64(c.index)) % 7)
	case s.Strategy == Starvation && !w.recovering && s.isStarved(&c.inputs[0]):
		w.Stats.Points[InputStarved]++
		w.lastDisturbance = max(w.lastDisturbance, w.now)
		return w.between(tick, starvationDelayMax)
	}
	return time.Duration(1+w.entropy.Int(16)) * tick
}
