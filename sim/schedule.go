// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/runtime"
)

// Strategy determines which input a cell takes next, and after what delay. Each
// strategy often produces orders that the others almost never produce.
type Strategy uint8

// The strategies.
const (
	Uniform    Strategy = iota // a uniform choice among the oldest inputs
	Priority                   // the input whose owner has the highest rank goes first; a few times, that owner loses its rank
	Starvation                 // the inputs of one actor are always last, and delayed

	strategies = int(Starvation) + 1
)

var strategyNames = [strategies]string{"uniform", "priority", "starvation"}

// String returns the name of the strategy.
func (s Strategy) String() string { return strategyNames[s] }

// ParseStrategy parses the output of String.
func ParseStrategy(text string) (Strategy, error) {
	for s, name := range strategyNames {
		if name == text {
			return Strategy(s), nil
		}
	}
	return 0, fmt.Errorf("strategy %.40q: want one of %v", text, strategyNames)
}

// Schedule is a strategy and its drawn parameters.
type Schedule struct {
	Strategy Strategy
	Salt     uint64   // seed of the ranks
	Demote   []int    // steps at which the highest-ranked owner loses its rank, in order
	Starved  actor.ID // actor whose inputs are always last
}

const (
	uniformWindow      = 4    // number of oldest inputs from which Uniform chooses
	rankedWindow       = 16   // number of oldest inputs that Priority and Starvation consider
	demotionsMax       = 4    // maximum number of lost ranks; a bug may need up to this number of events in a certain order
	demotionStepsMax   = 3000 // all demotions happen within this number of steps
	starvationDelayMax = 40 * time.Millisecond
)

// drawSchedule draws the schedule of a seed. A non-empty name fixes the strategy.
func drawSchedule(c Entropy, agents []actor.Definition, keys int, name string) Schedule {
	s := Schedule{Strategy: [...]Strategy{Uniform, Uniform, Priority, Starvation}[c.Int(4)]}
	if name != "" {
		s.Strategy = invariant.Must(ParseStrategy(name))
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
		s.Starved = actor.NewID(agents[c.Int(len(agents))].Name, keyOf(c.Int(keys)))
	}
	return s
}

// String returns the strategy and its parameters.
func (s Schedule) String() string {
	switch s.Strategy {
	case Priority:
		return fmt.Sprintf("%s, ranks lost at steps %v", s.Strategy, s.Demote)
	case Starvation:
		return fmt.Sprintf("%s of %s", s.Strategy, s.Starved)
	}
	return s.Strategy.String()
}

// scheduler executes a schedule.
type scheduler struct {
	Schedule
	demoted []string // owners that have lost their rank, most recent last
}

// next returns the index of the input that the cell takes next. Inputs of one order
// group are never reordered.
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

// inOrder reports whether input i is the first of its order group.
func inOrder(inputs []input, i int) bool {
	for j := range i {
		if inputs[j].orderGroup == inputs[i].orderGroup && inputs[i].orderGroup != unordered {
			return false
		}
	}
	return true
}

// highestRanked returns the index of the input with the highest rank.
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

// rank returns the rank of an input owner: an actor, a run or the cell.
func (s *scheduler) rank(owner string) int {
	for i, name := range s.demoted {
		if name == owner {
			return -1 - i
		}
	}
	return int(mix(s.Salt, hashString(owner)) >> 33)
}

func hashString(text string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * 1099511628211
	}
	return h
}

// owner returns the owner of an input: the actor of a message or of a read result,
// the run of an effect's outcome, "" for the cell itself.
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
	case runtime.PageLoaded:
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

// stepDelay returns the delay before the next step of a cell.
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
